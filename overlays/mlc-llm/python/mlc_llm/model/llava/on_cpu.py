# SPDX-License-Identifier: Apache-2.0
"""LLaVA on CPUs: the tower reads pixels that the caller has prepared.

Upstream's function resizes and normalizes pixels by loops that are bound to a GPU's threads, with
another filter than the published processor. The runner prepares pixels as the model's
``preprocessor_config.json`` says. Here the picture's patches are rows of a product, and attention
is that of :mod:`mlc_llm.nn.whole_attention_on_cpu`, so that both have kernels.
"""

import dataclasses
from typing import Any

import numpy as np
from mlc_llm.loader import ExternMapping
from mlc_llm.loader.standard_loader import make_standard_hf_loader
from mlc_llm.model.vision import clip_vision
from mlc_llm.nn.whole_attention_on_cpu import attend_whole
from mlc_llm.quantization import Quantization
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from . import llava_model

# Published files leave out what transformers' classes have by default.
_TEXT = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
_VISION = {"layer_norm_eps": 1e-5}
_PATCHES = "vision_tower.vision_model.embeddings.patch_embedding.weight"


@dataclasses.dataclass
class LlavaConfig(llava_model.LlavaConfig):  # type: ignore[misc, unused-ignore]
    """The config of a LLaVA.

    Attributes:
        vocab_size: that of the language model.
        picture: how the caller prepares a picture; the library's metadata repeats it.
    """

    vocab_size: int = 0
    picture: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # A copy that the compiler has changed holds configs in place of tables.
        if isinstance(self.text_config, dict):
            # Upstream asks a hub, or a table of presets, for the model of this name.
            named = {k: v for k, v in self.text_config.items() if k != "_name_or_path"}
            self.text_config = {**_TEXT, **named}
        if isinstance(self.vision_config, dict):
            self.vision_config = {**_VISION, **self.vision_config}
        super().__post_init__()
        self.vocab_size = self.text_config.vocab_size


class _Attention(clip_vision.CLIPAttention):  # type: ignore[misc, unused-ignore]
    """Attention of each patch to all patches of a picture."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Compute a layer's attention [1, patches, hidden]."""
        _, rows, hidden = hidden_states.shape
        shape = (rows, self.num_heads, self.head_dim)
        q, k, v = (
            op.reshape(layer(hidden_states), shape)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        bounds = Tensor.from_const(np.array([0, rows], "int32"))
        mixed = attend_whole(q, k, v, bounds, op.zeros((rows,), "int32"))
        return self.out_proj(op.reshape(mixed, (1, rows, hidden)))


class _Patches(nn.Linear):  # type: ignore[misc, unused-ignore]
    """The product of a picture's patches, in place of a convolution with their size and stride."""

    def __init__(self, config: clip_vision.CLIPVisionConfig) -> None:
        super().__init__(config.num_channels * config.patch_size**2, config.hidden_size, bias=False)
        self.patch_size = config.patch_size

    def forward(self, x: Tensor) -> Tensor:
        """Return the states [1, hidden, patches] of pixels [1, channels, height, width]."""
        _, channels, height, width = x.shape
        size = self.patch_size
        down, across = height // size, width // size
        split = op.reshape(x, (channels, down, size, across, size))
        rows = op.reshape(op.permute_dims(split, (1, 3, 0, 2, 4)), (1, down * across, -1))
        return op.permute_dims(super().forward(rows), (0, 2, 1))


class LlavaForCausalLM(llava_model.LlavaForCausalLM):  # type: ignore[misc, unused-ignore]
    """The model with a tower for CPUs."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        tower = self.vision_tower.vision_model
        tower.embeddings.patch_embedding = _Patches(config.vision_config)
        for layer in tower.encoder.layers:
            layer.self_attn = _Attention(config.vision_config)

    @property
    def more_metadata(self) -> dict[str, Any]:
        """Entries of the library's metadata: how the caller prepares a picture, and its tokens."""
        vision = self.config.vision_config
        tokens = (vision.image_size // vision.patch_size) ** 2
        sizes = {
            "size": vision.image_size,
            "token": self.config.image_token_index,
            "tokens": tokens,
            # In float32, in which the last product is computed.
            "bytes": 4 * tokens * self.config.text_config.hidden_size,
        }
        return {"picture": {**self.config.picture, **sizes}}

    def image_preprocess(self, pixel_values: Tensor) -> Tensor:
        """Return the pixels, which the caller has prepared."""
        return pixel_values

    def get_default_spec(self) -> nn.spec.ModuleSpec:
        """Return the functions of the library and their inputs."""
        spec, vision = super().get_default_spec(), self.config.vision_config
        shape = [1, vision.num_channels, vision.image_size, vision.image_size]
        function = spec.method_specs[spec.method_names.index("image_embed")]
        function.arg_specs = [nn.spec.Tensor(shape, "float32")]
        return spec


_loader = make_standard_hf_loader(
    model_cls=LlavaForCausalLM,
    layer_prefix="language_model.model.layers",
    num_layers_getter=lambda config: config.text_config.num_hidden_layers,
)


def huggingface(config: LlavaConfig, quantization: Quantization) -> ExternMapping:
    """Return the parameters' sources in published files; patches' weights become a matrix."""
    mapping = _loader(config, quantization)
    convert = mapping.map_func[_PATCHES]
    mapping.map_func[_PATCHES] = lambda weight: convert(weight.reshape(len(weight), -1))
    return mapping
