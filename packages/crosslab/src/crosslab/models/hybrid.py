# SPDX-License-Identifier: Apache-2.0
"""The reference for Qwen3.5, in which most layers have linear attention.

Written from the architecture's description: gated delta networks (Yang et al., 2024,
arXiv:2412.06464), one token after another, with states in double precision; attention with a gate
for each output, and rotary embeddings of the first features of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.config import LlamaConfig, plain_sizes, read_table
from crosslab.models.llama_params import sources_of
from crosslab.models.reference import ReferenceLlama
from crosslab.models.weights_file import F32, NamedWeights

F64 = NDArray[np.float64]
HYBRID = "qwen3_5"
# Added to the square of a length by which queries and keys are divided.
EPSILON = 1e-6


@dataclass(frozen=True)
class HybridConfig(LlamaConfig):
    """Sizes of a Qwen3.5.

    Attributes:
        interval: each layer whose number, from 1, it divides has full attention.
        key_heads: heads of queries and keys in linear attention.
        value_heads: heads of values in linear attention; a multiple of key_heads.
        key_dim: width of a query or key in linear attention.
        value_dim: width of a value in linear attention.
        kernel: tokens that the short convolution sees.
        rotary: features of a head that are turned, the first ones.
    """

    interval: int = 4
    key_heads: int = 16
    value_heads: int = 16
    key_dim: int = 128
    value_dim: int = 128
    kernel: int = 4
    rotary: int = 64

    def is_full(self, layer: int) -> bool:
        """Return True if a layer, from 0, has full attention."""
        return (layer + 1) % self.interval == 0


def read_hybrid(path: Path) -> HybridConfig:
    """Return the sizes of a Qwen3.5 model from its ``config.json``, the file ``path``.

    Raises:
        UserError: a field is missing, or is not a number.
    """
    table = read_table(path)
    names = {
        "interval": "full_attention_interval",
        "key_heads": "linear_num_key_heads",
        "value_heads": "linear_num_value_heads",
        "key_dim": "linear_key_head_dim",
        "value_dim": "linear_value_head_dim",
        "kernel": "linear_conv_kernel_dim",
    }
    own: dict[str, Any] = {n: table[field] for n, field in names.items() if field in table}
    if wrong := [names[n] for n, value in own.items() if type(value) is not int or value < 1]:
        raise UserError(f"{path}: {wrong[0]} = {table[wrong[0]]!r} is not a size")
    plain = plain_sizes(path, table)
    rope = table.get("rope_parameters") or {}
    part: Any = rope.get("partial_rotary_factor", 0.25) if isinstance(rope, dict) else None
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise UserError(f"{path}: rope_parameters = {rope!r} has no partial_rotary_factor up to 1")
    of_hybrid = replace(plain, family=HYBRID, qk_norm=True)
    return HybridConfig(**asdict(of_hybrid), rotary=int(plain.head_dim * part), **own)


class HybridWeights(NamedWeights):
    """The weights of a Qwen3.5's folder."""

    def __init__(self, model: Path, config: HybridConfig) -> None:
        names = [*self._layers(config), "model.embed_tokens.weight", "model.norm.weight"]
        names += [] if config.tied else ["lm_head.weight"]
        super().__init__(model, {name: self._published(name) for name in names})

    @staticmethod
    def _layers(config: HybridConfig) -> Iterator[str]:
        full = [f"self_attn.{name}.weight" for name in ("qkv_proj", "o_proj", "q_norm", "k_norm")]
        products = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "norm")
        linear = [f"linear_attn.{name}.weight" for name in products]
        linear += [f"linear_attn.{name}" for name in ("A_log", "dt_bias", "conv1d_weight")]
        both = ["mlp.gate_up_proj.weight", "mlp.down_proj.weight"]
        both += ["input_layernorm.weight", "post_attention_layernorm.weight"]
        for layer in range(config.layers):
            for name in (*(full if config.is_full(layer) else linear), *both):
                yield f"model.layers.{layer}.{name.replace('qkv_proj', 'c_attn')}"

    @staticmethod
    def _published(name: str) -> list[str]:
        sources = sources_of(name.replace("c_attn", "qkv_proj"))
        renamed = (source.replace("conv1d_weight", "conv1d.weight") for source in sources)
        return [source.replace("model.", "model.language_model.", 1) for source in renamed]

    def __getitem__(self, name: str) -> F32:
        shifted = name.endswith("norm.weight") and "linear_attn" not in name
        return super().__getitem__(name) + np.float32(shifted)


@dataclass
class ReferenceHybrid(ReferenceLlama):
    """A Qwen3.5 with its parameters, and the cache and states of the tokens read so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.config, HybridConfig)
        self.hybrid = c = self.config
        kinds = ("linear_attn.out_proj", "self_attn.o_proj")
        self.outputs = [kinds[c.is_full(layer)] for layer in range(c.layers)]
        channels = 2 * c.key_heads * c.key_dim + c.value_heads * c.value_dim
        shape = (c.value_heads, c.key_dim, c.value_dim)
        self.recurrent: list[F64] = [np.zeros(shape) for _ in range(c.layers)]
        self.inputs: list[F64] = [np.zeros((c.kernel - 1, channels)) for _ in range(c.layers)]

    def _attention(self, layer: int, x: F32) -> F32:
        if self.hybrid.is_full(layer):
            return self._gated(layer, x)
        c, rows = self.hybrid, len(x)
        qkv = self._convolved(layer, self._linear(x, layer, "linear_attn.in_proj_qkv"))
        wide = c.key_heads * c.key_dim
        q, k = (
            part.reshape(rows, c.key_heads, -1) for part in (qkv[:, :wide], qkv[:, wide : 2 * wide])
        )
        v = qkv[:, 2 * wide :].reshape(rows, c.value_heads, -1)
        times = c.value_heads // c.key_heads
        q, k = (np.repeat(_unit(part), times, axis=1) for part in (q, k))
        at = f"model.layers.{layer}.linear_attn"
        a = self._linear(x, layer, "linear_attn.in_proj_a") + self.params[f"{at}.dt_bias"]
        decay = np.exp(-np.exp(self.params[f"{at}.A_log"]) * np.logaddexp(0.0, a, dtype=float))
        beta = _sigmoid(self._linear(x, layer, "linear_attn.in_proj_b"))
        out = np.empty((rows, c.value_heads, c.value_dim))
        for t in range(rows):
            state = self.recurrent[layer] * decay[t, :, None, None]
            held = np.einsum("hkv,hk->hv", state, k[t])
            new = beta[t, :, None] * (v[t] - held)
            state = state + k[t, :, :, None] * new[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t]) * c.key_dim**-0.5
            self.recurrent[layer] = state
        z = self._linear(x, layer, "linear_attn.in_proj_z").reshape(out.shape)
        gated = self._norm(out.astype(np.float32), f"{at}.norm") * z * _sigmoid(z)
        return np.asarray(gated, np.float32).reshape(rows, -1)

    def _convolved(self, layer: int, x: F32) -> F64:
        """Return silu of each channel's convolution with its past."""
        seen = np.concatenate([self.inputs[layer], x])
        self.inputs[layer] = seen[len(x) :]
        weight = self.params[f"model.layers.{layer}.linear_attn.conv1d_weight"][:, 0]
        taps = weight.T.astype(np.float64)
        total: F64 = sum(seen[k : k + len(x)] * tap for k, tap in enumerate(taps))
        silu: F64 = total * _sigmoid(total)
        return silu

    def _gated(self, layer: int, x: F32) -> F32:
        c, rows = self.config, len(x)
        heads = self._linear(x, layer, "self_attn.qkv_proj").reshape(rows, -1, c.head_dim)
        both, k, v = np.split(heads, [2 * c.heads, 2 * c.heads + c.kv_heads], axis=1)
        q, gate = np.split(both.reshape(rows, c.heads, -1), 2, axis=-1)
        q, k = (
            self._norm(part, f"model.layers.{layer}.self_attn.{name}_norm")
            for name, part in (("q", q), ("k", k))
        )
        mixed: F32 = self._attended(layer, q, k, v) * _sigmoid(gate).reshape(rows, -1)
        return mixed

    def _rotate(self, x: F32, positions: NDArray[np.int64]) -> F32:
        turned = super()._rotate(x[..., : self.hybrid.rotary], positions)
        return np.concatenate([turned, x[..., self.hybrid.rotary :]], axis=-1)


def _unit(x: F64) -> F64:
    unit: F64 = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + EPSILON)
    return unit


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))
