# SPDX-License-Identifier: Apache-2.0
"""The reference for LLaVA: a Llama that reads a picture's states in place of tokens' embeddings.

Written from the descriptions of the tower (CLIP's vision transformer, arXiv:2103.00020) and of the
projector (LLaVA 1.5, arXiv:2310.03744): the states before the tower's last layer, without that of
the class, through two layers with a GELU between them. The tower is computed in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crosslab.errors import UserError
from crosslab.json_table import read_json_table
from crosslab.models.config import LlamaConfig, completed, plain_sizes, read_table
from crosslab.models.encoder import F64, attend_whole, erf_gelu, layer_norm, linear_layer
from crosslab.models.llama_params import param_shapes, sources_of
from crosslab.models.pictures import FILTERS
from crosslab.models.reference import ReferenceLlama
from crosslab.models.weights_file import F32, NamedWeights, StoredWeights

LLAVA = "llava"
PROCESSOR_FILE = "preprocessor_config.json"
_LANGUAGE, _TOWER = "language_model.", "vision_tower.vision_model"
# Published files leave out what transformers' classes have by default.
_TEXT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
# The only values that the compiled model computes, by table and field; the first is the default.
_SUPPORTED: Mapping[str, Mapping[str, Sequence[object]]] = {
    "": {
        "projector_hidden_act": ("gelu",),
        "vision_feature_layer": (-2,),
        "vision_feature_select_strategy": ("default",),
        "multimodal_projector_bias": (True,),
    },
    "text_config": {
        "model_type": ("llama",),
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    },
    "vision_config": {
        "model_type": ("clip_vision_model",),
        "hidden_act": ("quick_gelu",),
        "num_channels": (3,),
    },
}


@dataclass(frozen=True)
class LlavaConfig(LlamaConfig):
    """Sizes of a LLaVA: those of its language model, and of its tower.

    Attributes:
        token: id of the token in a picture's place.
        side: pixels of both sides of a picture.
        patch: pixels of both sides of a patch.
        tower_heads: heads of attention in the tower.
        tower_layers: layers of the tower; the last is not computed.
        tower_eps: epsilon of the tower's norms.
        picture: how a picture is prepared, see :func:`imported_fields`.
    """

    token: int = 0
    side: int = 336
    patch: int = 14
    tower_heads: int = 16
    tower_layers: int = 24
    tower_eps: float = 1e-5
    picture: Mapping[str, Any] = field(default_factory=dict)

    def with_picture(self, tokens: Sequence[int]) -> list[int]:
        """Repeat the token of a picture as often as the picture has states.

        Raises:
            UserError: the tokens do not have exactly one token of a picture.
        """
        if tokens.count(self.token) != 1:
            raise UserError(
                "the model's chat template has no place for a picture",
                remedy="give the folder with its chat_template.jinja or chat_template.json",
            )
        at = tokens.index(self.token)
        count = (self.side // self.patch) ** 2
        return [*tokens[:at], *[self.token] * count, *tokens[at + 1 :]]


def read_llava(path: Path) -> LlavaConfig:
    """Read the ``config.json`` of a LLaVA.

    Raises:
        UserError: a field is missing, or has a value without support.
    """
    table = read_table(path)
    whole: dict[str, Any] = read_json_table(path)
    parts: dict[str, Any] = {name: table.get(name) if name else whole for name in _SUPPORTED}
    for name, fields in _SUPPORTED.items():
        if not isinstance(part := parts[name], dict):
            raise UserError(f"{path}: lacks the table {name!r}")
        for key, values in fields.items():
            if (value := part.get(key, values[0])) not in values:
                place = f"{name}.{key}".removeprefix(".")
                raise UserError(f"{path}: {place} = {value!r} is not supported")
    vision = parts["vision_config"]
    names = ("hidden_size", "image_size", "patch_size", "num_attention_heads", "num_hidden_layers")
    sizes: dict[str, Any] = {f"vision_config.{n}": vision.get(n) for n in names}
    sizes["image_token_index"] = whole.get("image_token_index", whole.get("image_token_id"))
    if wrong := [n for n, size in sizes.items() if type(size) is not int or size < 1]:
        raise UserError(f"{path}: {wrong[0]} = {sizes[wrong[0]]!r} is not a size")
    if not _is_number(eps := vision.get("layer_norm_eps", 1e-5)):
        raise UserError(f"{path}: vision_config.layer_norm_eps = {eps!r} is not a number")
    hidden, side, patch, heads, layers, token = sizes.values()
    if side % patch or hidden % heads or (side // patch) ** 2 < 4:
        raise UserError(f"{path}: the sizes of vision_config do not divide each other")
    text = {**_TEXT, **{k: v for k, v in parts["text_config"].items() if v is not None}}
    return LlavaConfig(
        **asdict(replace(plain_sizes(path, text), family=LLAVA)),
        token=token,
        side=side,
        patch=patch,
        tower_heads=heads,
        tower_layers=layers,
        tower_eps=eps,
        picture=whole.get("picture", {}),
    )


def imported_fields(folder: Path) -> dict[str, Any]:
    """Return fields of an imported config: all that MLC-LLM and the runner read of other files.

    Returns:
        ``text_config`` with its rotary embedding under MLC-LLM's names; and ``picture``, which says
        as ``preprocessor_config.json`` does how a picture is prepared: ``shortest``, the pixels of
        the shorter side after resizing; ``filter``; ``scale``; ``mean`` and ``deviation`` of each
        colour.

    Raises:
        UserError: the file is missing, or asks for a preparation that the runner does not do.
    """
    path = folder / PROCESSOR_FILE
    table = read_json_table(path)
    side = read_llava(folder / "config.json").side
    steps = [f"do_{step}" for step in ("resize", "center_crop", "rescale", "normalize")]
    steps += ["do_convert_rgb"]
    if skipped := [step for step in steps if table.get(step, True) is not True]:
        raise UserError(f"{path}: {skipped[0]} = {table[skipped[0]]!r} is not supported")
    # Older files have numbers in place of tables.
    size, cut = table.get("size"), table.get("crop_size")
    shortest = size.get("shortest_edge") if isinstance(size, dict) else size
    sides = [cut.get("height"), cut.get("width")] if isinstance(cut, dict) else [cut, cut]
    if type(shortest) is not int or sides != [side, side] or shortest < side:
        raise UserError(
            f"{path}: size = {size!r} and crop_size = {cut!r} are not supported",
            remedy=f"give a model whose shortest_edge is at least its crop_size, {side}",
        )
    filters = dict(zip((2, 3), FILTERS, strict=True))
    names = {"mean": "image_mean", "deviation": "image_std"}
    colours: dict[str, Any] = {name: table.get(field) for name, field in names.items()}
    for name, values in colours.items():
        usable = isinstance(values, list) and len(values) == 3 and all(map(_is_number, values))
        if not usable or (name == "deviation" and 0 in values):
            raise UserError(f"{path}: {names[name]} = {values!r} is not three numbers to use")
    scale = table.get("rescale_factor", 1 / 255)
    resample = table.get("resample", 3)
    if type(resample) is not int or resample not in filters or not _is_number(scale):
        raise UserError(
            f"{path}: resample = {resample!r} and rescale_factor = {scale!r} are not supported"
        )
    text = completed(read_json_table(folder / "config.json")["text_config"])
    about = {"shortest": shortest, "filter": filters[resample], "scale": scale, **colours}
    return {"text_config": text, "picture": about}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


class LanguageParams(Mapping[str, F32]):
    """The parameters of a LLaVA's language model under a Llama's names, and the others."""

    def __init__(self, params: Mapping[str, F32]) -> None:
        self._params = params

    def __getitem__(self, name: str) -> F32:
        plain = name.startswith(("model.", "lm_head."))
        return self._params[f"{_LANGUAGE}{name}" if plain else name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(_LANGUAGE) for name in self._params)

    def __len__(self) -> int:
        return len(self._params)


class LlavaWeights(NamedWeights):
    """The weights of a LLaVA's folder."""

    def __init__(self, model: Path, config: LlavaConfig) -> None:
        language = [f"{_LANGUAGE}{name}" for name in param_shapes(config)]
        stored = StoredWeights.of_model(model).places
        parts = [name for name in stored if not name.startswith(_LANGUAGE)]
        super().__init__(model, {name: sources_of(name) for name in [*language, *parts]})


def states_of_picture(config: LlavaConfig, params: Mapping[str, F32], numbers: F64) -> F32:
    """Return the states [tokens, hidden] of a picture.

    Args:
        config: sizes and constants.
        params: arrays under MLC-LLM's names.
        numbers: [3, side, side], prepared.
    """
    linear, norm = partial(linear_layer, params), partial(layer_norm, params, config.tower_eps)
    at, count = f"{_TOWER}.embeddings", config.side // config.patch
    cut = numbers.reshape(3, count, config.patch, count, config.patch)
    patches = cut.transpose(1, 3, 0, 2, 4).reshape(count**2, -1)
    weight = params[f"{at}.patch_embedding.weight"].astype(float)
    rows = [params[f"{at}.class_embedding"][None], patches @ weight.reshape(len(weight), -1).T]
    whole = np.concatenate(rows) + params[f"{at}.position_embedding.weight"].astype(float)
    x = norm(whole, f"{_TOWER}.pre_layrnorm")
    for layer in range(config.tower_layers - 1):
        at = f"{_TOWER}.encoder.layers.{layer}"
        y = norm(x, f"{at}.layer_norm1")
        q, k, v = (
            linear(y, f"{at}.self_attn.{n}_proj").reshape(len(y), config.tower_heads, -1)
            for n in "qkv"
        )
        x = x + linear(attend_whole(q, k, v), f"{at}.self_attn.out_proj")
        y = linear(norm(x, f"{at}.layer_norm2"), f"{at}.mlp.fc1")
        x = x + linear(y / (1 + np.exp(-1.702 * y)), f"{at}.mlp.fc2")
    projected = linear(x[1:], "multi_modal_projector.linear_1")
    return linear(erf_gelu(projected), "multi_modal_projector.linear_2").astype(np.float32)


@dataclass
class ReferenceLlava(ReferenceLlama):
    """A LLaVA with its parameters, and the cache of the tokens read so far.

    Attributes:
        picture: states [tokens, hidden] of a picture, in place of its tokens' embeddings.
    """

    picture: F32 | None = None

    def _embedded(self, tokens: Sequence[int]) -> F32:
        embedded = super()._embedded(tokens)
        assert isinstance(self.config, LlavaConfig)
        places = np.flatnonzero(np.asarray(tokens) == self.config.token)
        if self.picture is not None and len(places):
            embedded[places] = self.picture
        return embedded
