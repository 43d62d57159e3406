# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of queries and keys that no KV cache turns."""

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.relax.frontend.nn.llm.position_embedding import llama_rope_with_position_map


def turn(
    qkv: Tensor, positions: Tensor, kv_heads: int, theta: float, scaling: Mapping[str, Any]
) -> list[Tensor]:
    """Return turned queries, turned keys and the values, each [rows, its heads, d].

    Args:
        qkv: [rows, heads + 2 * kv_heads, d].
        positions: int32 [rows].
        kv_heads: heads of the keys, and of the values.
        theta: the base of the frequencies.
        scaling: ``rope_scaling`` of a config; may be empty.
    """
    rows, both, d = qkv.shape
    heads = both - 2 * kv_heads
    func = llama_rope_with_position_map(
        theta, 1.0, d, heads, kv_heads, qkv.dtype, rope_scaling=dict(scaling)
    )
    # A call of TVM 0.26 has its scalars before the outputs.
    x, places, q, k, v, apply_rope = func.params
    params = [x, places, apply_rope, q, k, v]
    plain = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)
    turned = op.tensor_ir_op(
        plain.without_attr("global_symbol"),
        "fused_rope",
        [qkv, positions, tirx.IntImm("int64", 1)],
        [Tensor.placeholder((rows, n, d), qkv.dtype) for n in (heads, kv_heads, kv_heads)],
    )
    return list(turned)
