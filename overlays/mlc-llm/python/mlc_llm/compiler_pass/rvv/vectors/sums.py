# SPDX-License-Identifier: Apache-2.0
"""Sums over contiguous elements, in vectors of partial sums."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from ..stages import Stage, starts_at_zero
from ..tir import block_of, nodes_of, substitute, whole
from .pieces import Piece, loop_over, pieces_of, steps_by_one

# Lanes that are added up in order; of more, halves are added first. An order of 64 lanes takes
# SpacemiT's X60 192 cycles, of 8 lanes 11.
IN_ORDER = 8


def summand_of(stage: Stage) -> Any:
    """Return the summand of a stage that sums contiguous elements; None for products and others.

    A vector of elements with a distance would be gathered, and of halves LLVM gathers it wrongly.
    """
    block, store = stage.block, stage.block.body
    kinds = [axis.iter_type for axis in block.iter_vars]
    if kinds.count(tirx.IterVar.CommReduce) != 1 or kinds[-1] != tirx.IterVar.CommReduce:
        return None
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    here = tirx.BufferLoad(store.buffer, store.indices)
    factors = getattr(store.value.b, "a", None), getattr(store.value.b, "b", None)
    loads = [f.buffer for f in factors if isinstance(f, tirx.BufferLoad)]
    is_product = len(loads) == 2 and not loads[0].same_as(loads[1])
    if str(store.buffer.dtype) != "float32" or not starts_at_zero(block) or is_product:
        return None
    last, read = block.iter_vars[-1].var, nodes_of(store.value.b, tirx.BufferLoad)
    if not all(steps_by_one(load, {}, last) for load in read):
        return None
    return store.value.b if structural_equal(store.value.a, here) else None


def with_vector_sums(func: tirx.PrimFunc, most: int) -> Any:
    """Return the body with sums over contiguous elements as vectors of partial sums."""

    def replace(loop: Any) -> Any:
        realize = loop.body
        if not isinstance(realize, tirx.SBlockRealize) or not isinstance(loop.extent, tirx.IntImm):
            return None
        stage = Stage([loop], realize.block, loop)
        summand, pieces = summand_of(stage), pieces_of(int(loop.extent), most)
        if summand is None or not pieces or not realize.iter_values[-1].same_as(loop.loop_var):
            return None
        return _vector_sum(loop, realize, summand, pieces)

    return tirx.stmt_functor.ir_transform(func.body, None, replace, ["tirx.For"])


def _vector_sum(loop: Any, realize: Any, summand: Any, pieces: list[Piece]) -> Any:
    block, dtype, lanes = realize.block, loop.loop_var.ty, pieces[0].lanes
    axes = [axis.var for axis in block.iter_vars]
    place = dict(zip(axes[:-1], realize.iter_values[:-1], strict=True))
    parts = tirx.decl_buffer((lanes,), "float32", "parts")
    first = tirx.Var("lane", dtype)
    zeros = tirx.BufferStore(parts, tirx.const(0, "float32"), [first])

    def add(piece: Piece) -> Any:
        def term(lane: Any, index: Any) -> Any:
            of_one = {**place, axes[-1]: index}
            value = substitute(summand, of_one)
            return tirx.BufferStore(parts, tirx.BufferLoad(parts, [lane]) + value, [lane])

        return loop_over(piece, "run", dtype, term)

    halves, left = [], lanes
    while left > IN_ORDER:
        left //= 2
        lane = tirx.Var("lane", dtype)
        both = tirx.BufferLoad(parts, [lane]) + tirx.BufferLoad(parts, [lane + left])
        store = tirx.BufferStore(parts, both, [lane])
        halves.append(tirx.For(lane, 0, left, tirx.ForKind.VECTORIZED, store))

    vector = tirx.BufferLoad(parts, [tirx.Ramp(tirx.const(0, dtype), tirx.const(1, dtype), left)])
    total = tirx.call_llvm_pure_intrin(
        "float32", "llvm.vector.reduce.fadd", tirx.const(0, "float32"), vector
    )
    indices = [tirx.stmt_functor.substitute(i, place) for i in block.body.indices]
    statements = [
        tirx.For(first, 0, lanes, tirx.ForKind.VECTORIZED, zeros),
        *map(add, pieces),
        *halves,
        tirx.BufferStore(block.body.buffer, total, indices),
    ]
    reads = [whole(region.buffer) for region in block.reads]
    writes = [whole(block.body.buffer)]
    return block_of(tirx.SeqStmt(statements), block.name_hint, reads, writes, [parts])
