# SPDX-License-Identifier: Apache-2.0
"""RWKV 5 and 6 on CPUs: upstream's layers over states that the caller owns (nn/states_on_cpu.py).

A call gets, in place of TVM's RNNState, a tuple of two tensors: the sequences and their states. The
runner counts the tokens of a sequence in a KV cache, so the library makes the smallest one.
"""

from typing import Any

from mlc_llm import op as op_ext
from mlc_llm.nn import PagedKVCache, RopeMode
from mlc_llm.nn.own_cache import OwnCache
from mlc_llm.nn.states_on_cpu import ReadsStates, StatesOnCpu
from tvm.relax.frontend.nn import Tensor

# Heads of this size have kernels on every CPU.
HEAD = 32
# The published models divide the heads' outputs by it before their norm, whose epsilon is 1e-5.
DIVISOR = 8


class RwkvOnCpu(ReadsStates, OwnCache):
    """The functions that the runner of this project calls, over states that it owns."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        for block in self.model.blocks:
            block.attention.ln_x.eps = 1e-5 * DIVISOR**2

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a layer's states, in upstream's order."""
        heads = (self.num_heads, self.head_size, self.head_size)
        return ((self.hidden_size,), heads, (self.hidden_size,))

    @property
    def recurrent_floats(self) -> int:
        """Number of floats of a sequence's states in all layers."""
        layer = 2 * self.hidden_size + self.num_heads * self.head_size**2
        return layer * self.num_hidden_layers

    def _read(self, input_embed: Tensor, cache: PagedKVCache, states: Any) -> Any:
        op_ext.configure()
        places = StatesOnCpu(*states, self.shapes)
        logits, after = self.forward(input_embed, places)
        return logits, cache, after.states

    def prefill(self, input_embed: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any) -> Any:
        """Read tokens [1, tokens, hidden] of a sequence; return last logits, cache and states."""
        return self._read(input_embed, paged_kv_cache, rnn_state)

    def decode(self, input_embed: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any) -> Any:
        """Read a token [1, 1, hidden] of a sequence; return its logits, cache and states."""
        return self._read(input_embed, paged_kv_cache, rnn_state)

    def batch_decode(
        self, input_embeds: Tensor, paged_kv_cache: PagedKVCache, rnn_state: Any
    ) -> Any:
        """Read a token of each sequence [batch, 1, hidden]; return logits, cache and states."""
        return self._read(input_embeds, paged_kv_cache, rnn_state)

    @property
    def cache_settings(self) -> dict[str, Any]:
        """Arguments of the smallest cache, of one head in one layer, which no function reads."""
        names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rope_scale")
        return {
            **dict.fromkeys(names, 1),
            **dict.fromkeys(("qk_head_dim", "v_head_dim"), HEAD),
            **{"attn_kind": "mha", "rope_mode": RopeMode.NONE, "rope_theta": 10000},
            "dtype": self.dtype,
        }
