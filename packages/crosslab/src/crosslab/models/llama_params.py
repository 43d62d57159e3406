# SPDX-License-Identifier: Apache-2.0
"""Llama weights under MLC-LLM's names and in its order, fused as in MLC-LLM's model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from crosslab.cached_build import cached_build
from crosslab.errors import UserError
from crosslab.models import gguf_formats, gguf_params
from crosslab.models.config import (
    MIXTRAL,
    LlamaConfig,
    read_config,
    read_family,
    write_config,
)
from crosslab.models.gguf_params import GgufWeights, Segment, joined
from crosslab.models.params import resumed_shards, write_params
from crosslab.models.weights_file import F32, save_weights
from groundwork.hashing import digest

_console = Console(stderr=True, highlight=False)


def param_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by name: a Llama's in the order of ``_metadata``.

    The family's biases, norms of heads and gates of experts follow.
    """
    c, width = config, config.heads * config.head_dim
    qkv = width + 2 * c.kv_heads * c.head_dim
    mlp, experts = (EXPERTS, (c.experts,)) if c.experts else (".mlp.", ())
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab, c.hidden)}
    more: dict[str, tuple[int, ...]] = {}
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.self_attn.qkv_proj.weight"] = (qkv, c.hidden)
        shapes[f"{at}.self_attn.o_proj.weight"] = (c.hidden, width)
        shapes[f"{at}{mlp}gate_up_proj.weight"] = (*experts, 2 * c.intermediate, c.hidden)
        shapes[f"{at}{mlp}down_proj.weight"] = (*experts, c.hidden, c.intermediate)
        shapes[f"{at}.input_layernorm.weight"] = (c.hidden,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (c.hidden,)
        if c.qkv_bias:
            more[f"{at}.self_attn.qkv_proj.bias"] = (qkv,)
        if c.qk_norm:
            more |= {f"{at}.self_attn.{part}_norm.weight": (c.head_dim,) for part in "qk"}
        if c.experts:
            more[f"{at}.mlp.gate.weight"] = (c.experts, c.hidden)
    shapes["model.norm.weight"] = (c.hidden,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.vocab, c.hidden)
    return shapes | more


def param_widths(config: LlamaConfig) -> dict[str, int]:
    """Return the number of inputs of each matrix, by its name in any family's definition."""
    widths = {name: shape[-1] for name, shape in param_shapes(config).items()}
    return widths | {other_name(name): n for name, n in widths.items()}


def other_name(name: str) -> str:
    """Return a parameter's name in MLC-LLM's Qwen 2 and Mixtral; it may be the same."""
    for ours, theirs in _OTHERS.items():
        name = name.replace(ours, theirs)
    return name


# Of Qwen's queries, keys and values, and of Mixtral's feed-forward layers.
_OTHERS = {
    ".qkv_proj.": ".c_attn.",
    ".mlp.moe_gate_up_proj.": ".moe.e1_e3.",
    ".mlp.moe_down_proj.": ".moe.e2.",
    ".mlp.gate.": ".moe.gate.",
}
EXPERTS = ".mlp.moe_"
"""Part of the name of a parameter that holds the weights of all experts."""
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def sources_of(name: str) -> list[str]:
    """Return Hugging Face's names of the weights that a parameter joins."""
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            return [name.replace(f".{fused}.", f".{part}.") for part in parts]
    return [name]


# Mixtral's published names.
_MIXTRAL = {".mlp.": ".block_sparse_moe.", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def matrices_of(name: str, config: LlamaConfig) -> list[list[str]]:
    """Return Hugging Face's names of the weights that a parameter joins, row after row.

    Each entry of the list has one name, or that of each expert's weight.
    """
    matrices = [[source] for source in sources_of(name.replace(EXPERTS, ".mlp."))]
    if EXPERTS in name:
        matrices = [
            [source.replace(".mlp.", f".mlp.experts.{e}.") for e in range(config.experts)]
            for (source,) in matrices
        ]
    if config.family == MIXTRAL and ".mlp." in name:
        for ours, theirs in _MIXTRAL.items():
            matrices = [[each.replace(ours, theirs) for each in names] for names in matrices]
    return matrices


def fuse_weights(
    model: Path, config: LlamaConfig, but: Collection[str] = ()
) -> Iterator[tuple[str, F32]]:
    """Yield name and float32 values of each parameter of a model in Hugging Face's layout.

    Args:
        model: folder of the weights.
        config: the model's sizes.
        but: names of parameters to leave out.

    Raises:
        UserError: a weight is missing or has the wrong shape.
    """
    weights = FileWeights(model, config)
    names = [name for name in weights if name not in but]
    for name in track(names, "weights", console=_console, transient=True):
        yield name, weights[name]


class FileWeights(Mapping[str, F32]):
    """A model's weights in float32 by MLC-LLM's names, read on access.

    Args:
        model: folder of the weights.
        config: the model's sizes.

    Raises:
        UserError: on access, a weight is missing or has the wrong shape.
    """

    def __init__(self, model: Path, config: LlamaConfig) -> None:
        self._model, self._weights = model, GgufWeights(model)
        self._config, self._shapes = config, param_shapes(config)

    def __getitem__(self, name: str) -> F32:
        shape = self._shapes[name]
        parts = [
            joined([self._weights.read(source) for source in sources])
            for sources in matrices_of(name, self._config)
        ]
        whole: F32 = np.concatenate(parts, axis=max(0, parts[0].ndim - 2))
        if whole.shape != shape:
            raise UserError(f"{self._model}: {name} has the shape {whole.shape}, not {shape}")
        # Gemma multiplies by its norm weights plus 1.
        plus_one = self._config.gelu and name.endswith("norm.weight")
        return whole + np.float32(1) if plus_one else whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def random_weights(config: LlamaConfig, seed: int) -> Iterator[tuple[str, F32]]:
    """Yield random parameters whose scale keeps the size of activations across layers.

    The values depend on config and seed only.
    """
    for number, (name, shape) in enumerate(param_shapes(config).items()):
        draw = np.random.default_rng([seed, number])
        values = draw.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            yield name, 1 + values * np.float32(0.1)
        elif name == "model.embed_tokens.weight":
            yield name, values
        else:
            yield name, values * np.float32(1 / math.sqrt(shape[1]))


def convert_params(model: Path, cache: Path) -> Path:
    """Convert an imported model's weights to MLC-LLM's q0f32 once; return the cached folder."""
    # The folder is a cached build: its name holds the hash of its content.
    key = digest(model.name, Path(__file__), _writer())

    def make(out: Path) -> None:
        done = resumed_shards(out)
        finished = {record["name"] for shard in done for record in shard["records"]}
        config = read_config(model / "config.json")
        write_params(fuse_weights(model, config, finished), out, finished=done)

    return cached_build(cache, "params-q0f32", key, make, resumable=True)


def gguf_layout(model: Path) -> dict[str, tuple[Segment, ...]]:
    """Return the segments of an imported model's parameters that stay in GGUF blocks."""
    config = read_family(model / "config.json")
    names = param_shapes(config)
    return GgufWeights(model).layout({name: matrices_of(name, config) for name in names})


def convert_gguf(model: Path, cache: Path) -> Path:
    """Store an imported model's weights in GGUF blocks and float32 once; return the folder."""
    sources = [Path(str(module.__file__)) for module in (gguf_formats, gguf_params)]
    key = digest(model.name, Path(__file__), _writer(), *sources)

    def make(out: Path) -> None:
        layout = gguf_layout(model)
        floats = fuse_weights(model, read_family(model / "config.json"), layout)
        write_params(chain(floats, GgufWeights(model).params(layout)), out, exact=True)

    return cached_build(cache, "params-gguf", key, make)


def random_params(config: LlamaConfig, seed: int, cache: Path) -> Path:
    """Write random parameters of a config in MLC-LLM's q0f32 once; return the cached folder."""
    key = digest(repr(config), str(seed), Path(__file__), _writer())
    weights = random_weights(config, seed)
    return cached_build(cache, "params-random", key, lambda out: write_params(weights, out))


def random_model(config: LlamaConfig, seed: int, cache: Path) -> Path:
    """Write a Hugging Face model with the weights of :func:`random_params`, once per seed."""

    def make(folder: Path) -> None:
        write_config(config, folder / "config.json")
        save_weights(_split(config, random_weights(config, seed)), folder)

    key = digest(repr(config), str(seed), Path(__file__), Path(__file__).with_name("config.py"))
    return cached_build(cache, "model-random", key, make)


def _split(config: LlamaConfig, fused: Iterable[tuple[str, F32]]) -> Iterator[tuple[str, F32]]:
    """Split fused parameters into weights under Hugging Face's names."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for name, values in fused:
        sources = sources_of(name)
        ends = [query, query + key] if len(sources) == 3 else [config.intermediate]
        parts = np.split(values, ends) if len(sources) > 1 else [values]
        for source, part in zip(sources, parts, strict=True):
            yield source, np.ascontiguousarray(part)


def _writer() -> Path:
    return Path(__file__).with_name("params.py")
