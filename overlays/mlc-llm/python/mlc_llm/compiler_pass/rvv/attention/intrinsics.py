# SPDX-License-Identifier: Apache-2.0
"""Attention kernels as tensor intrinsics."""

from tvm import tirx
from tvm.script import tirx as T

from ..kernel_library import TileShape


def make_intrinsic(shape: TileShape, symbol: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return the description and the implementation of a kernel as a tensor intrinsic.

    The ABI is that of kernels/include/mlc_rvv_kernels.h: pointers to accumulator, left and
    right operand, then their leading dimensions in elements as int64.
    """
    return _describe(shape), _implement(shape, symbol)


def _operand_shapes(shape: TileShape) -> list[tuple[int, int]]:
    """Return the shapes of the accumulator, the left and the right operand."""
    q, kv, d = shape.q_tile, shape.kv_tile, shape.d
    return [(q, kv), (q, d), (kv, d)] if shape.product == "qk" else [(q, d), (q, kv), (kv, d)]


def _describe(shape: TileShape) -> tirx.PrimFunc:
    (rows, columns), (_, depth), (rhs_rows, rhs_columns) = _operand_shapes(shape)
    dtype = shape.dtype

    def at(column, step):
        """Return the right operand's index for a column and a step of the reduction."""
        return (column, step) if shape.product == "qk" else (step, column)

    @T.prim_func(s_tir=True)
    def description(acc_handle: T.handle, lhs_handle: T.handle, rhs_handle: T.handle):
        acc = T.match_buffer(acc_handle, (rows, columns), dtype, offset_factor=1)
        lhs = T.match_buffer(lhs_handle, (rows, depth), dtype, offset_factor=1)
        rhs = T.match_buffer(rhs_handle, (rhs_rows, rhs_columns), dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(acc[0:rows, 0:columns], lhs[0:rows, 0:depth], rhs[0:rhs_rows, 0:rhs_columns])
            T.writes(acc[0:rows, 0:columns])
            for i, j, k in T.grid(rows, columns, depth):
                with T.sblock("product"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    acc[vi, vj] = acc[vi, vj] + lhs[vi, vk] * rhs[at(vj, vk)]

    return description


def _implement(shape: TileShape, symbol: str) -> tirx.PrimFunc:
    (rows, columns), (_, depth), (rhs_rows, rhs_columns) = _operand_shapes(shape)
    dtype = shape.dtype

    @T.prim_func(s_tir=True)
    def implementation(acc_handle: T.handle, lhs_handle: T.handle, rhs_handle: T.handle):
        ld_acc, ld_lhs, ld_rhs = T.int32(), T.int32(), T.int32()
        acc = T.match_buffer(
            acc_handle, (rows, columns), dtype, strides=[ld_acc, 1], offset_factor=1
        )
        lhs = T.match_buffer(lhs_handle, (rows, depth), dtype, strides=[ld_lhs, 1], offset_factor=1)
        rhs = T.match_buffer(
            rhs_handle, (rhs_rows, rhs_columns), dtype, strides=[ld_rhs, 1], offset_factor=1
        )
        with T.sblock("root"):
            T.reads(acc[0:rows, 0:columns], lhs[0:rows, 0:depth], rhs[0:rhs_rows, 0:rhs_columns])
            T.writes(acc[0:rows, 0:columns])
            T.evaluate(
                T.call_extern(
                    "void",
                    symbol,
                    acc.access_ptr("rw"),
                    lhs.access_ptr("r"),
                    rhs.access_ptr("r"),
                    T.Cast("int64", ld_acc),
                    T.Cast("int64", ld_lhs),
                    T.Cast("int64", ld_rhs),
                )
            )

    return implementation
