# SPDX-License-Identifier: Apache-2.0
"""A paged KV cache as a model for a CPU asks TVM for it: 2 layers, 6 query and 2 KV heads of 48.

Or 6 heads of latent attention: slots of 48 elements, the first 32 of them a latent vector.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

LATENT = 32


def kv_cache_module(
    tvm: ModuleType,
    target: Any,
    *,
    latent: bool = False,
    value: int = LATENT,
    dtype: str = "float32",
    int8_pages: bool = False,
) -> Any:
    """The IRModule of a function which creates a paged KV cache for that target; made once.

    ``value`` is the size of a head's value when it is taken out of a latent vector.
    """
    return _module(str(target), latent, value, dtype, int8_pages)


@cache
def _module(target: str, latent: bool, value: int, dtype: str, int8_pages: bool) -> Any:
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test
    from tvm import relax, tirx  # noqa: PLC0415
    from tvm.relax.frontend.nn.llm.kv_cache import RopeMode, TIRPagedKVCache  # noqa: PLC0415

    builder = relax.BlockBuilder()
    sizes = [tirx.Var(name, "int64") for name in ("batch", "total", "chunk", "page", "sliding")]
    shape = relax.Var("sizes", relax.ShapeType(sizes))
    with builder.function("create", [shape]):
        cache = TIRPagedKVCache(
            attn_kind="mla" if latent else "mha",
            max_batch_size=sizes[0],
            max_total_seq_len=sizes[1],
            prefill_chunk_size=sizes[2],
            page_size=sizes[3],
            support_sliding_window=sizes[4],
            layer_partition=relax.ShapeExpr([0, 2]),
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=1 if latent else 2,
            qk_head_dim=48,
            v_head_dim=LATENT if latent else 48,
            mla_original_qk_head_dim=48 if latent else 0,
            mla_original_v_head_dim=value if latent else 0,
            rope_mode=RopeMode.NONE if latent else RopeMode.NORMAL,
            rope_scale=1,
            rope_theta=10000,
            rope_scaling={},
            rope_ext_factors=relax.prim_value(0),
            rotary_dim=48,
            enable_disaggregation=False,
            dtype=dtype,
            target=tvm.target.Target(target),
            # Without the option, the call is one that other releases of TVM accept too.
            **({"int8_pages": True} if int8_pages else {}),
        )
        builder.emit_func_output(cache._expr)
    return builder.get()
