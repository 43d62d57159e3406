# SPDX-License-Identifier: Apache-2.0
"""SmolLM3: a Llama of which each fourth layer has no rotary embedding."""

import dataclasses
from typing import Optional

from mlc_llm.loader.standard_loader import make_standard_hf_loader
from mlc_llm.nn import PagedKVCache
from mlc_llm.nn.own_cache import OwnCache
from mlc_llm.nn.rotary_on_cpu import turn
from tvm.relax.frontend.nn import Tensor, op

from .llama.llama_model import LlamaAttention, LlamaConfig, LlamaForCausalLM


@dataclasses.dataclass
class SmolLM3Config(LlamaConfig):  # type: ignore[misc, unused-ignore]
    """The config of a Llama, with 1 for each layer that has a rotary embedding, else 0."""

    no_rope_layers: Optional[list[int]] = None  # noqa: UP045
    no_rope_layer_interval: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.no_rope_layers:
            numbers = range(1, self.num_hidden_layers + 1)
            self.no_rope_layers = [int(n % self.no_rope_layer_interval != 0) for n in numbers]


class _Attention(LlamaAttention):  # type: ignore[misc, unused-ignore]
    """Attention that applies RoPE to queries and keys before it appends them to the cache."""

    def __init__(self, config: SmolLM3Config) -> None:
        super().__init__(config)
        self.rope_theta = config.position_embedding_base
        self.rope_scaling = config.rope_scaling

    def forward(self, hidden_states: Tensor, paged_kv_cache: PagedKVCache, layer_id: int) -> Tensor:
        """Compute a layer's attention [batch, tokens, hidden]."""
        batch, length, _ = hidden_states.shape
        d, heads, groups = self.head_dim, self.num_q_heads, self.num_kv_heads
        rows = batch * length
        qkv = op.reshape(self.qkv_proj(hidden_states), (rows, heads + 2 * groups, d))
        positions = paged_kv_cache.get_query_positions(rows)
        turned = turn(qkv, positions, groups, self.rope_theta, self.rope_scaling or {})
        joined = op.reshape(op.concat(turned, dim=1), (batch, length, heads + 2 * groups, d))
        output = paged_kv_cache.attention_with_fused_qkv(layer_id, joined, heads, sm_scale=d**-0.5)
        return self.o_proj(op.reshape(output, (batch, length, heads * d)))


class SmolLM3ForCausalLM(OwnCache, LlamaForCausalLM):  # type: ignore[misc, unused-ignore]
    """The model; its KV cache applies no RoPE."""

    def __init__(self, config: SmolLM3Config) -> None:
        super().__init__(config)
        for turns, layer in zip(config.no_rope_layers, self.model.layers, strict=True):
            if turns:
                layer.self_attn = _Attention(config)


huggingface = make_standard_hf_loader(
    model_cls=SmolLM3ForCausalLM, add_unused=["rotary_emb.inv_freq"]
)
