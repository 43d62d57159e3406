# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# A lambda in a loop of TVMScript is called before the loop's variable means anything else (B023).
# ruff: noqa: B023, E501
# fmt: off
"""The merge of two attention results for CPUs in vectors, under the name of the kernel it replaces.

Upstream's kernel in ``_decode_kernels.py`` does not know the size of a head, works on one core, and
calls exp2 and log2 of libm for each row of each head. It runs once a layer whenever a prompt comes in
chunks, when keys are in the cache and new, and where sequences share a prefix.
"""

from tvm import tirx
from tvm.script import tirx as T

from ._vector_math import exp2, log2
from ._vector_rows import MOST_LANES, fill_row, lanes_of


def _merge_state_inplace_cpu(v_dtype, *, num_heads: int | None = None, head_dim: int | None = None):
    """Return the function that merges attention over two sets of keys into the first result.

    Args:
        v_dtype: type of both outputs; sums are float32.
        num_heads: number of query heads; None for a kernel that takes it from its arguments.
        head_dim: head dimension of V, in elements; None likewise, and without vectors.

    Returns:
        The PrimFunc of outputs [rows, num_heads, head_dim] and log-sum-exps in base 2 [rows, num_heads],
        first and other, with upstream's parameters in upstream's order.
    """
    heads = tirx.Var("heads", "int32") if num_heads is None else num_heads
    dim = tirx.Var("dim", "int32") if head_dim is None else head_dim
    lanes = 1 if head_dim is None else lanes_of(head_dim, MOST_LANES)

    @T.prim_func(s_tir=True)
    def merge_state_inplace_cpu(v: T.handle, s: T.handle, v_other: T.handle, s_other: T.handle):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        rows = T.int32()
        V = T.match_buffer(v, (rows, heads, dim), v_dtype)
        S = T.match_buffer(s, (rows, heads), "float32")
        V_other = T.match_buffer(v_other, (rows, heads, dim), v_dtype)
        S_other = T.match_buffer(s_other, (rows, heads), "float32")

        for n in T.parallel(rows):
            for h in T.serial(heads):
                with T.sblock("merge"):
                    T.reads()
                    T.writes()
                    top = T.sblock_alloc_buffer((1,), "float32")
                    weight = T.sblock_alloc_buffer((1,), "float32")
                    other = T.sblock_alloc_buffer((1,), "float32")
                    total = T.sblock_alloc_buffer((1,), "float32")
                    top[0] = T.max(S[n, h], S_other[n, h])
                    weight[0] = exp2(S[n, h] - top[0])
                    other[0] = exp2(S_other[n, h] - top[0])
                    total[0] = weight[0] + other[0]
                    S[n, h] = top[0] + log2(total[0])
                    weight[0] = weight[0] / total[0]
                    other[0] = other[0] / total[0]
                    fill_row(V, (n, h), dim, lambda c: T.cast(T.cast(V[n, h, c], "float32") * weight[0] + T.cast(V_other[n, h, c], "float32") * other[0], v_dtype), lanes=lanes)

    return merge_state_inplace_cpu
