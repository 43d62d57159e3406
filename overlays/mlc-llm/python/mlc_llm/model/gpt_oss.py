# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: attention with sinks, every second layer in a window, and experts with biases.

A sink is one more score of a head's softmax, without a value: it lets a head attend to nothing.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from mlc_llm.loader import ExternMapping
from mlc_llm.nn import PagedKVCache, RopeMode
from mlc_llm.nn.expert import MixtralExperts
from mlc_llm.nn.own_cache import OwnCache
from mlc_llm.op import moe_misc
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from .llama.llama_model import LlamaAttention, LlamaConfig, LlamaForCausalLM

SLIDING = "sliding_attention"
FULL = "full_attention"
_FLOAT, _INDEX = "float32", "int32"


@dataclasses.dataclass
class GptOssConfig(LlamaConfig):  # type: ignore[misc, unused-ignore]
    """Sizes of a gpt-oss; fields are named as in the published config.

    ``experts_by_name`` is true where the weights of each expert are matrices of their own, as in
    folders made of GGUF files; published files hold those of all experts as one.
    """

    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    sliding_window: int = 128
    layer_types: list[str] = dataclasses.field(default_factory=list)
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702
    experts_by_name: bool = False

    def __post_init__(self) -> None:
        scaling, self.rope_scaling = self.rope_scaling, None
        super().__post_init__()
        self.rope_scaling = scaling
        if not self.layer_types:
            self.layer_types = [(SLIDING, FULL)[i % 2] for i in range(self.num_hidden_layers)]
        # Attention among the tokens of a chunk has no window.
        self.prefill_chunk_size = min(self.prefill_chunk_size, self.sliding_window)

    @property
    def score_scale(self) -> float:
        """Factor of the scores: head_dim^-0.5, times YaRN's factor of queries and that of keys."""
        scaling = self.rope_scaling or {}
        given = scaling.get("attention_factor")
        factor = given or 0.1 * math.log(max(scaling.get("factor", 1.0), 1.0)) + 1.0
        return float(factor**2 * self.head_dim**-0.5)


class _Attention(LlamaAttention):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: GptOssConfig) -> None:
        super().__init__(config)
        outputs = (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, outputs, bias=True)
        self.o_proj = nn.Linear(self.num_q_heads * self.head_dim, config.hidden_size, bias=True)
        self.sinks = nn.Parameter((self.num_q_heads,))
        self.score_scale = config.score_scale

    def forward(self, hidden_states: Tensor, paged_kv_cache: PagedKVCache, layer_id: int) -> Tensor:
        """Compute a layer's attention [batch, tokens, hidden]."""
        batch, length, _ = hidden_states.shape
        heads, d = self.num_q_heads, self.head_dim
        qkv = op.reshape(self.qkv_proj(hidden_states), (batch * length, -1, d))
        output, lse = self._attention(qkv, paged_kv_cache, layer_id)
        # The cache's kernels count in powers of two.
        share = op.sigmoid(lse * math.log(2) - op.astype(self.sinks, _FLOAT))
        output = output * op.astype(op.reshape(share, (batch * length, heads, 1)), output.dtype)
        return self.o_proj(op.reshape(output, (batch, length, heads * d)))

    def _attention(self, qkv: Tensor, cache: PagedKVCache, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return the output [tokens, heads, d], and log2 of each softmax's denominator."""
        rows, _, d = qkv.shape
        builder = relax.BlockBuilder.current()
        both = builder.emit(
            relax.call_dps_packed(
                "vm.builtin.paged_attention_kv_cache_attention_with_lse",
                [
                    cache._expr,
                    relax.prim_value(layer_id),
                    relax.prim_value(self.score_scale),
                    qkv._expr,
                ],
                out_ty=[
                    relax.TensorType((rows, self.num_q_heads, d), qkv.dtype),
                    relax.TensorType((rows, self.num_q_heads), _FLOAT),
                ],
            )
        )
        output, lse = (Tensor(_expr=builder.emit(relax.TupleGetItem(both, i))) for i in (0, 1))
        return output, lse


class _Experts(nn.Module):  # type: ignore[misc, unused-ignore]
    """A router, and experts whose gate is clamped (the published kind of SwiGLU)."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.experts, self.chosen = config.num_local_experts, config.num_experts_per_tok
        self.limit, self.alpha = config.swiglu_limit, config.swiglu_alpha
        hidden, width = config.hidden_size, config.intermediate_size
        self.router = nn.Linear(hidden, self.experts, bias=True)
        self.moe_gate_up_proj = MixtralExperts(self.experts, hidden, 2 * width)
        self.gate_up_bias = nn.Parameter((self.experts, 2 * width))
        self.moe_down_proj = MixtralExperts(self.experts, width, hidden)
        self.down_bias = nn.Parameter((self.experts, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Map states [batch, tokens, hidden] to the weighted sum of the chosen experts' outputs."""
        batch, length, hidden = x.shape
        tokens, chosen = batch * length, self.chosen
        x = op.reshape(x, (tokens, hidden))
        weights, experts = moe_misc.gating_softmax_topk(self.router(x), chosen)
        flat = op.reshape(experts, (tokens * chosen,))
        if tokens == 1:
            y = self._outputs(x, experts, flat)
        else:
            cumsum = moe_misc.moe_cumsum(experts, self.experts)
            place, of_token = moe_misc.get_indices(cumsum, experts)
            index = moe_misc.get_indptr(
                cumsum, self.experts, tokens, inclusive=False, out_dtype=_INDEX
            )
            ordered = op.take(x, of_token, axis=0)
            y = self._outputs(ordered, index, op.take(flat, place, axis=0))
            y = moe_misc.scatter_output(y, place)
        weighted = op.reshape(y, (tokens, chosen, hidden)) * op.reshape(
            weights, (tokens, chosen, 1)
        )
        return op.reshape(moe_misc.moe_sum(weighted, dim=1), (batch, length, hidden))

    def _outputs(self, x: Tensor, index: Tensor, experts: Tensor) -> Tensor:
        """Return the experts' outputs [rows, hidden], before they are weighted.

        Args:
            x: [rows, hidden], or one row for all.
            index: see ``experts_on_cpu.experts``.
            experts: [rows], the expert of each row.
        """
        both = self.moe_gate_up_proj(x, index) + op.take(self.gate_up_bias, experts, axis=0)
        gate, up = op.split(both, 2, axis=-1)
        most, least = (self._constant(each, both) for each in (self.limit, -self.limit))
        gate, up = op.minimum(gate, most), op.maximum(op.minimum(up, most), least)
        gated = gate * op.sigmoid(gate * self.alpha) * (up + 1.0)
        return self.moe_down_proj(gated, index) + op.take(self.down_bias, experts, axis=0)

    @staticmethod
    def _constant(value: float, like: Tensor) -> Tensor:
        return Tensor.from_const(np.array(value, like.dtype))


class GptOssForCausalLM(OwnCache, LlamaForCausalLM):  # type: ignore[misc, unused-ignore]
    """A Llama with gpt-oss' attention and experts."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__(config)
        self.config = config
        for layer in self.model.layers:
            layer.self_attn, layer.mlp = _Attention(config), _Experts(config)

    @property
    def cache_settings(self) -> dict[str, Any]:
        """Arguments of ``PagedKVCache.create_generic``."""
        kinds = {SLIDING: "mha_sliding", FULL: "mha"}
        return {
            **super().cache_settings,
            "attn_kind": [kinds[kind] for kind in self.config.layer_types],
            "rope_mode": RopeMode.NORMAL,
            "rope_scaling": self.config.rope_scaling,
            "layer_sliding_window_size": self.config.sliding_window,
        }


def huggingface(config: GptOssConfig, quantization: Any) -> ExternMapping:
    """Return the mapping of parameters to published weights, with the functions that join them."""
    model = GptOssForCausalLM(config)
    if quantization is not None:
        model.to(quantization.model_dtype)
    _, params, _ = model.export_tvm(spec=model.get_default_spec(), allow_extern=True)
    mapping = ExternMapping()
    for name, param in params:
        sources, join = _sources(name, config)
        mapping.add_mapping(name, sources, _typed(join, param.dtype))
    return mapping


def _typed(join: Any, dtype: str) -> Any:
    return lambda *arrays: join(*arrays).astype(dtype)


def _sources(name: str, config: GptOssConfig) -> tuple[list[str], Any]:
    """Return the published weights of a parameter, and the function that joins them."""
    if ".qkv_proj." in name:
        return [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"], _rows
    at, _, last = name.rpartition(".mlp.")
    if last not in _EXPERTS:
        return [name], _rows
    part, kind = _EXPERTS[last]
    parts = ("gate", "up") if part == "gate_up" else (part,)
    experts = f"{at}.mlp.experts"
    if config.experts_by_name:
        named = [
            f"{experts}.{expert}.{each}_proj.{kind}"
            for expert in range(config.num_local_experts)
            for each in parts
        ]
        return named, lambda *arrays: np.stack(
            [_rows(*arrays[i : i + len(parts)]) for i in range(0, len(arrays), len(parts))]
        )
    if kind == "bias":
        return [f"{experts}.{part}_proj_bias"], _apart if parts[1:] else _rows
    turned = lambda array: array.swapaxes(-1, -2)  # noqa: E731
    whole = (lambda array: turned(_apart(array))) if parts[1:] else turned
    return [f"{experts}.{part}_proj"], whole


_EXPERTS = {
    "moe_gate_up_proj.weight": ("gate_up", "weight"),
    "gate_up_bias": ("gate_up", "bias"),
    "moe_down_proj.weight": ("down", "weight"),
    "down_bias": ("down", "bias"),
}


def _rows(*arrays: Any) -> Any:
    return np.concatenate(arrays, axis=0)


def _apart(array: Any) -> Any:
    """Return all gates, then all ups, of columns in which they alternate."""
    return np.concatenate([array[..., ::2], array[..., 1::2]], axis=-1)
