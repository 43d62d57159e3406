# SPDX-License-Identifier: Apache-2.0
"""The function of a model that creates its paged KV cache, with settings of the model's own."""

from typing import Any

from mlc_llm.nn import PagedKVCache, RopeMode
from tvm import tirx


class OwnCache:
    """A base before upstream's class of the model."""

    @property
    def cache_settings(self: Any) -> dict[str, Any]:
        """Arguments of ``PagedKVCache.create_generic``: a Llama's, whose cache applies no RoPE."""
        return {
            "attn_kind": "mha",
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "qk_head_dim": self.head_dim,
            "v_head_dim": self.head_dim,
            "rope_mode": RopeMode.NONE,
            "rope_scale": 1,
            "rope_theta": self.rope_theta,
            "dtype": self.dtype,
        }

    def create_paged_kv_cache(
        self,
        max_batch_size: tirx.Var,
        max_total_seq_len: tirx.Var,
        prefill_chunk_size: tirx.Var,
        page_size: tirx.Var,
        support_sliding_window: tirx.Var,
    ) -> PagedKVCache:
        """Create the cache of all layers."""
        return PagedKVCache.create_generic(
            max_batch_size=max_batch_size,
            max_total_seq_len=max_total_seq_len,
            prefill_chunk_size=prefill_chunk_size,
            page_size=page_size,
            support_sliding_window=support_sliding_window,
            **self.cache_settings,
        )
