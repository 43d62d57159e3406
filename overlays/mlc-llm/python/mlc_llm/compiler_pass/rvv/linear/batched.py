# SPDX-License-Identifier: Apache-2.0
"""Batches of matrix products, such as attention's scores, as calls of the gemm kernel.

The pattern is one block ``C[b..., i, j] += A[b..., i, k] * B[c..., j, k]`` from zero, over float32,
where c are expressions of b: all its matrices are activations, and each has its rows contiguous.
All sizes may be symbolic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from ..stages import Stage, factors_of, same_extents
from ..tir import PatternMismatch, block_of, require_dense_float32, substitute, uses, whole
from .calls import PANEL_ROWS


@dataclass(frozen=True)
class BatchedProduct:
    """Matrices out[b] = left[b] * transpose(right[c]).

    Attributes:
        stage: the products.
        out: C, [batch..., rows, n].
        left: A, [batch..., rows, k].
        right: B, [batch of its own..., n, k].
        places: c, the indices of B's matrix, in the variables of the block's first axes.
        unpacking: empty, as such matrices are not quantized.
    """

    stage: Stage
    out: Any
    left: Any
    right: Any
    places: tuple[Any, ...]
    unpacking: tuple[Stage, ...] = ()


def match_batched(stage: Stage) -> BatchedProduct:
    """Read a product as a batch of products.

    Raises:
        PatternMismatch: the product is not a batch of products.
    """
    block = stage.block
    factors = factors_of(stage)
    out, left, right = block.body.buffer, *(load.buffer for load in factors)
    axes = [axis.var for axis in block.iter_vars]
    if block.iter_vars[-1].iter_type != tirx.IterVar.CommReduce or len(axes) < 4:
        raise PatternMismatch("it is not a sum over the last of four or more axes")
    if not len(left.shape) == len(out.shape) == len(axes) - 1 or len(right.shape) < 2:
        raise PatternMismatch("it is not C[..., i, j] += A[..., i, k] * B[..., j, k]")
    *batch, row, column, step = axes
    places = factors[1].indices[:-2]
    expected = tirx.BufferStore(
        out,
        tirx.BufferLoad(out, [*batch, row, column])
        + tirx.BufferLoad(left, [*batch, row, step])
        * tirx.BufferLoad(right, [*places, column, step]),
        [*batch, row, column],
    )
    if not structural_equal(block.body, expected) or any(
        uses(place, axis) for place in places for axis in (row, column, step)
    ):
        raise PatternMismatch("it is not C[..., i, j] += A[..., i, k] * B[..., j, k]")
    require_dense_float32(out, left, right)
    extents = [axis.dom.extent for axis in block.iter_vars]
    if (
        not same_extents(extents[:-1], out.shape)
        or not same_extents([*extents[:-2], extents[-1]], left.shape)
        or not same_extents(extents[-2:], right.shape[-2:])
    ):
        raise PatternMismatch("its loops do not cover the buffers")
    return BatchedProduct(stage, out, left, right, tuple(places))


def call_for_each_matrix(batched: BatchedProduct, symbol: str, columns: int, out: Any) -> Any:
    """Return the statement that multiplies the matrices of a batch, its last axis in parallel.

    Args:
        batched: the products.
        symbol: the gemm kernel.
        columns: width of a panel, which is what a task computes.
        out: the buffer that is written in place of C.
    """
    *_, rows, n = batched.out.shape
    k = batched.left.shape[-1]
    axes = [*batched.stage.block.iter_vars][:-3]
    loops = [tirx.Var(f"matrix_{i}", axis.var.ty) for i, axis in enumerate(axes)]
    of_block = {axis.var: loop for axis, loop in zip(axes, loops, strict=True)}
    places = [substitute(place, of_block) for place in batched.places]
    task = tirx.Var("task", "int64")
    start = task * columns
    panel = tirx.decl_buffer((PANEL_ROWS * columns,), "float32", "panel")
    matrix, other = (_flat(b.shape[:-2], i) for b, i in ((out, loops), (batched.right, places)))
    pointers = [
        out.access_ptr("w", offset=matrix * _wide(rows) * _wide(n) + start),
        batched.left.access_ptr("r", offset=matrix * _wide(rows) * _wide(k)),
        batched.right.access_ptr("r", offset=(other * _wide(n) + start) * _wide(k)),
    ]
    width = tirx.min(_wide(n) - start, tirx.IntImm("int64", columns))
    # A cast to the type that a size has keeps it 64 bits wide, see calls.py.
    sizes = map(_argument, [rows, width, k, n, k, k])
    arguments = [*pointers, *sizes, panel.access_ptr("rw"), *map(_argument, [PANEL_ROWS, columns])]
    call = tirx.Evaluate(tirx.call_extern("void", symbol, *arguments))
    reads = [whole(batched.left), whole(batched.right)]
    body = block_of(call, batched.stage.name, reads, [whole(out)], [panel])
    tasks = tirx.ceildiv(_wide(n), tirx.IntImm("int64", columns))
    body = tirx.For(task, _wide(0), tasks, tirx.ForKind.SERIAL, body)
    for axis, loop in reversed([*zip(axes, loops, strict=True)]):
        kind = tirx.ForKind.PARALLEL if axis is axes[-1] else tirx.ForKind.SERIAL
        body = tirx.For(loop, axis.dom.min, axis.dom.extent, kind, body)
    return body


def _flat(sizes: Any, indices: Any) -> Any:
    """Return the flat number of a matrix from its batch indices."""
    number = _wide(0)
    for size, index in zip(sizes, indices, strict=True):
        number = number * _wide(size) + _wide(index)
    return number


def _wide(value: Any) -> Any:
    if isinstance(value, int | tirx.IntImm):
        return tirx.IntImm("int64", int(value))
    return value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value)


def _argument(value: Any) -> Any:
    return tirx.Cast("int64", _wide(value))
