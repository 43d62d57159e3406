# SPDX-License-Identifier: Apache-2.0
"""The products of a mixture's experts on CPUs.

Those of ``moe_matmul.py`` are written for GPUs: tiles for thread blocks, shared memory, barriers.
Here a function is a loop over experts with a product for each, in one block named :data:`BLOCK`,
for which compiler_pass/rvv/linear/experts.py puts in kernels. The block's annotations are the
packing of the weights (``bits``, ``group_size``, ``zero_point``), and whether all rows
are one (``one_x``).
"""

from dataclasses import dataclass
from typing import Any, Optional

import tvm
from tvm import tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T

BLOCK = "experts"


def wanted() -> bool:
    """Return True if the model is exported for a CPU."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and target.kind.name == "llvm"


@dataclass(frozen=True)
class Quantized:
    """Packing of weights.

    Attributes:
        dtype: of a value, such as "int4".
        group_size: values along the inputs that share a scale.
    """

    dtype: str
    group_size: int

    @property
    def bits(self) -> int:
        """Return the bits of a value."""
        return tvm.DataType(self.dtype).bits


def experts(
    x: Tensor,
    w: Tensor,
    indptr: Tensor,
    scale: Optional[Tensor] = None,  # noqa: UP045
    quantized: Optional[Quantized] = None,  # noqa: UP045
) -> Tensor:
    """Multiply rows by the weights of their experts.

    Args:
        x: [rows, inputs], or [1, inputs] where all rows are one.
        w: [experts, outputs, inputs], or that packed into words.
        indptr: [experts + 1]: rows ``indptr[e]`` up to ``indptr[e + 1]`` are of expert ``e``; or
            [1, rows]: the expert of each row.
        scale: [experts, outputs, groups], of packed weights.
        quantized: packing of the weights.

    Returns:
        [rows, outputs], of x's type.
    """
    by_row = indptr.ndim == 2
    arguments = [x, w, indptr] if scale is None else [x, w, scale, indptr]
    rows = indptr.shape[1] if by_row else x.shape[0]
    out = Tensor.placeholder([rows, w.shape[1]], x.dtype)
    function = _function(x, w, indptr, scale, quantized)
    return op.tensor_ir_op(function, BLOCK, args=arguments, out=out)


def _function(
    x: Tensor,
    w: Tensor,
    indptr: Tensor,
    scale: Optional[Tensor],  # noqa: UP045
    quantized: Optional[Quantized],  # noqa: UP045
) -> tirx.PrimFunc:
    by_row = indptr.ndim == 2
    one_x = int(by_row and x.shape[0] == 1)
    inputs, dtype, rows_dtype = x.shape[1], x.dtype, indptr.dtype
    outputs = w.shape[1]
    w_shape, w_dtype, indptr_shape = w.shape, w.dtype, indptr.shape
    steps = indptr.shape[1] if by_row else w.shape[0]
    zero = tirx.const(0, dtype)

    # Of step e: its expert, its first row, how many rows, and where in x a row is.
    def expert(indptr: Any, e: Any) -> Any:
        return indptr[0, e] if by_row else e

    def first(indptr: Any, e: Any) -> Any:
        return e if by_row else indptr[e]

    def count(indptr: Any, e: Any) -> Any:
        return 1 if by_row else indptr[e + 1] - indptr[e]

    def of_x(row: Any) -> Any:
        return 0 if one_x else row

    if scale is None:

        @T.prim_func(private=True, s_tir=True)
        def plain(var_x: T.handle, var_w: T.handle, var_indptr: T.handle, var_out: T.handle):
            T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True})
            x_rows, out_rows = T.int32(), T.int32()
            X = T.match_buffer(var_x, (x_rows, inputs), dtype)
            W = T.match_buffer(var_w, w_shape, w_dtype)
            indptr = T.match_buffer(var_indptr, indptr_shape, rows_dtype)
            out = T.match_buffer(var_out, (out_rows, outputs), dtype)
            for e in T.serial(steps):
                with T.sblock(BLOCK):
                    v = T.axis.spatial(steps, e)
                    T.reads(X[:, :], W[:, :, :], indptr[:])
                    T.writes(out[:, :])
                    T.sblock_attr({"one_x": one_x})
                    for i, n in T.grid(count(indptr, v), outputs):
                        out[first(indptr, v) + i, n] = zero
                        for k in T.serial(inputs):
                            out[first(indptr, v) + i, n] = (
                                out[first(indptr, v) + i, n]
                                + X[of_x(first(indptr, v) + i), k] * W[expert(indptr, v), n, k]
                            )

        return plain

    assert quantized is not None
    bits, group_size, scale_shape = quantized.bits, quantized.group_size, scale.shape
    in_word = tvm.DataType(w_dtype).bits // bits
    zero_point = 2 ** (bits - 1) - 1
    packing = {"bits": bits, "group_size": group_size, "zero_point": zero_point, "one_x": one_x}
    mask = tirx.const(2**bits - 1, w_dtype)

    def weight(w: Any, scale: Any, e: Any, n: Any, k: Any) -> Any:
        shift = (k % in_word * bits).astype(w_dtype)
        value = tirx.bitwise_and(tirx.shift_right(w[e, n, k // in_word], shift), mask)
        return (value.astype(dtype) - tirx.const(zero_point, dtype)) * scale[e, n, k // group_size]

    @T.prim_func(private=True, s_tir=True)
    def packed(
        var_x: T.handle,
        var_w: T.handle,
        var_scale: T.handle,
        var_indptr: T.handle,
        var_out: T.handle,
    ):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True})
        x_rows, out_rows = T.int32(), T.int32()
        X = T.match_buffer(var_x, (x_rows, inputs), dtype)
        W = T.match_buffer(var_w, w_shape, w_dtype)
        scale = T.match_buffer(var_scale, scale_shape, dtype)
        indptr = T.match_buffer(var_indptr, indptr_shape, rows_dtype)
        out = T.match_buffer(var_out, (out_rows, outputs), dtype)
        for e in T.serial(steps):
            with T.sblock(BLOCK):
                v = T.axis.spatial(steps, e)
                T.reads(X[:, :], W[:, :, :], scale[:, :, :], indptr[:])
                T.writes(out[:, :])
                T.sblock_attr(packing)
                for i, n in T.grid(count(indptr, v), outputs):
                    out[first(indptr, v) + i, n] = zero
                    for k in T.serial(inputs):
                        out[first(indptr, v) + i, n] = out[first(indptr, v) + i, n] + X[
                            of_x(first(indptr, v) + i), k
                        ] * weight(W, scale, expert(indptr, v), n, k)

    return packed
