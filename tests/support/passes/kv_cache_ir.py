# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache as a model for a CPU asks TVM for it: 2 layers, 6 query and 2 KV heads of 48."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any


def kv_cache_module(tvm: ModuleType, target: Any) -> Any:
    """The IRModule of a function which creates a paged KV cache for that target; made once."""
    return _module(str(target))


@cache
def _module(target: str) -> Any:
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test
    from tvm import relax, tirx  # noqa: PLC0415
    from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache  # noqa: PLC0415

    builder = relax.BlockBuilder()
    sizes = [tirx.Var(name, "int64") for name in ("batch", "total", "chunk", "page", "sliding")]
    shape = relax.Var("sizes", relax.ShapeType(sizes))
    with builder.function("create", [shape]):
        cache = TIRPagedKVCache(
            attn_kind="mha",
            max_batch_size=sizes[0],
            max_total_seq_len=sizes[1],
            prefill_chunk_size=sizes[2],
            page_size=sizes[3],
            support_sliding_window=sizes[4],
            layer_partition=relax.ShapeExpr([0, 2]),
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            qk_head_dim=48,
            v_head_dim=48,
            mla_original_qk_head_dim=0,
            mla_original_v_head_dim=0,
            rope_mode=RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=10000,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=48,
            enable_disaggregation=False,
            dtype="float32",
            target=tvm.target.Target(target),
        )
        builder.emit_func_output(cache._expr)
    return builder.get()
