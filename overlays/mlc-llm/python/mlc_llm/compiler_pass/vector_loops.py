# SPDX-License-Identifier: Apache-2.0
"""Vectorizes what moves and maps elements: activations, residuals, copies into the KV cache.

:class:`VectorizeLoops` treats the functions that no schedule has claimed and that are data
parallel throughout. Intermediate results are computed where they are used; the innermost loop
over contiguous elements becomes vectors, the outermost is shared among threads, and elementary
functions become arithmetic (:mod:`vector_math`). Loops that cannot be vectorized stay as they are.

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, arith, relax, s_tir, tirx
from tvm.target import Target
from tvm_ffi import structural_equal

from . import vector_math
from .each_function import change_functions
from .linear_match import Stage, stages_of
from .vector_target import Vectors, vectors_of

# Shorter vectors are not worth their setting up.
FEWEST_LANES = 4
# A condition that differs between elements is no vector code.
NOT_IN_VECTORS = {"tirx.if_then_else", "tirx.call_extern"}
ELEMENTARY = {"tirx.exp": vector_math.exp, "tirx.sigmoid": vector_math.sigmoid}


@tvm.transform.module_pass(opt_level=0, name="VectorizeLoops")
class VectorizeLoops:
    """Vectorizes data-parallel functions for CPUs with vectors; the identity on other targets."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of a module that allow it."""
        vectors = vectors_of(self.target)
        if vectors is None:
            return mod
        return change_functions(mod, lambda _, func: vectorize_function(func, vectors))


def vectorize_function(func: tirx.PrimFunc, vectors: Vectors) -> tirx.PrimFunc | None:
    """Vectorize a data-parallel function.

    Args:
        func: the function.
        vectors: what vectors the target has.

    Returns:
        The function, marked as scheduled; None where there is nothing to do or to gain. A
        reshape is left alone: it becomes a view later, which no copy can beat.
    """
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled"):
        return None
    stages = stages_of(func)
    if not isinstance(func.body, tirx.SBlockRealize) or not _blocks(func.body):
        return None
    if not _is_data_parallel(func) and not (stages and all(map(_is_known, stages))):
        return None
    inlined = _inline(func)
    if _is_reshape(inlined):
        return None if inlined.same_as(func) else inlined
    plain = _without_scalars(_with_vector_sums(inlined, vectors.most))
    body = _with_arithmetic(plain)
    most = vectors.most if body.same_as(plain) else vectors.most_with_math
    vectorized = _with_vectors(body, most)
    if vectorized.same_as(body):
        return None
    return inlined.with_body(_with_threads(vectorized)).with_attr("tirx.is_scheduled", True)


def _is_reshape(func: tirx.PrimFunc) -> bool:
    try:
        return bool(relax.analysis.has_reshape_pattern(func))
    # It does not take indices of two integer types, which MLC-LLM's copies of experts' rows have.
    except tvm.error.InternalError:
        return False


def _blocks(statement: Any) -> list[Any]:
    """The realizations of blocks below a statement, itself included, root blocks left out."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlockRealize) and node.block.iter_vars:
            found.append(node)

    tirx.stmt_functor.post_order_visit(statement, visit)
    return found


def _is_data_parallel(func: tirx.PrimFunc) -> bool:
    blocks = _blocks(func.body)
    return bool(blocks) and all(
        axis.iter_type == tirx.IterVar.DataPar for b in blocks for axis in b.block.iter_vars
    )


def _is_known(stage: Stage) -> bool:
    """Whether a stage maps elements, or sums over the last of its axes and is no product."""
    kinds = [axis.iter_type for axis in stage.block.iter_vars]
    if all(kind == tirx.IterVar.DataPar for kind in kinds):
        return True
    return _summand(stage) is not None


def _summand(stage: Stage) -> Any:
    """What a stage adds up over its last axis, from zero; None if it does anything else."""
    block, store = stage.block, stage.block.body
    kinds = [axis.iter_type for axis in block.iter_vars]
    if kinds.count(tirx.IterVar.CommReduce) != 1 or kinds[-1] != tirx.IterVar.CommReduce:
        return None
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    here = tirx.BufferLoad(store.buffer, store.indices)
    zero = tirx.BufferStore(store.buffer, tirx.const(0, "float32"), store.indices)
    from_zero = block.init is not None and structural_equal(block.init, zero)
    factors = getattr(store.value.b, "a", None), getattr(store.value.b, "b", None)
    loads = [f.buffer for f in factors if isinstance(f, tirx.BufferLoad)]
    is_product = len(loads) == 2 and not loads[0].same_as(loads[1])
    if str(store.buffer.dtype) != "float32" or not from_zero or is_product:
        return None
    return store.value.b if structural_equal(store.value.a, here) else None


def _inline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute intermediate buffers where they are read, unless that repeats the work."""
    names = {str(buffer.name) for buffer in func.body.block.alloc_buffers}
    schedule, done = s_tir.Schedule(func), 0
    for realize in _blocks(func.body):
        out = realize.block.writes[0].buffer
        readers = [
            other.block
            for other in _blocks(func.body)
            if any(region.buffer.same_as(out) for region in other.block.reads)
        ]
        repeats = any(len(reader.iter_vars) > len(realize.block.iter_vars) for reader in readers)
        copies = isinstance(getattr(realize.block.body, "value", None), tirx.BufferLoad)
        if str(out.name) not in names or realize.block.init or (repeats and not copies):
            continue
        try:
            block = schedule.get_sblock(realize.block.name_hint)
            schedule.compute_inline(block)
            done += 1
        except s_tir.ScheduleError:
            try:
                schedule.reverse_compute_inline(block)
                done += 1
            # TVM 0.27 stumbles over what it should decline, before it changes anything.
            except (s_tir.ScheduleError, tvm.error.InternalError):
                continue
    return schedule.mod["main"].with_attrs(func.attrs or {}) if done else func


def _with_vector_sums(func: tirx.PrimFunc, most: int) -> Any:
    """The body with sums over contiguous elements in vectors of partial sums."""

    def replace(loop: Any) -> Any:
        realize = loop.body
        if not isinstance(realize, tirx.SBlockRealize) or not isinstance(loop.extent, tirx.IntImm):
            return None
        stage = Stage([loop], realize.block, loop)
        summand, pieces = _summand(stage), _pieces(int(loop.extent), most)
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
            value = tirx.stmt_functor.substitute(tirx.Evaluate(summand), of_one).value
            return tirx.BufferStore(parts, tirx.BufferLoad(parts, [lane]) + value, [lane])

        return _loop_over(piece, "run", dtype, term)

    whole = tirx.BufferLoad(parts, [tirx.Ramp(tirx.const(0, dtype), tirx.const(1, dtype), lanes)])
    total = tirx.call_llvm_pure_intrin(
        "float32", "llvm.vector.reduce.fadd", tirx.const(0, "float32"), whole
    )
    indices = [tirx.stmt_functor.substitute(i, place) for i in block.body.indices]
    statements = [
        tirx.For(first, 0, lanes, tirx.ForKind.VECTORIZED, zeros),
        *map(add, pieces),
        tirx.BufferStore(block.body.buffer, total, indices),
    ]
    reads = [_all_of(region.buffer) for region in block.reads]
    sums = tirx.SBlock(
        [],
        reads,
        [_all_of(block.body.buffer)],
        block.name_hint,
        tirx.SeqStmt(statements),
        alloc_buffers=[parts],
    )
    return tirx.SBlockRealize([], tirx.const(True), sums)


def _all_of(buffer: Any) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape])


def _without_scalars(body: Any) -> Any:
    """Values named by a local buffer of one element, where they are used: a vector has no such."""

    def replace(sequence: Any) -> Any:
        statements = list(sequence.seq)
        for index, (alloc, store) in enumerate(itertools.pairwise(statements)):
            rest = statements[index + 2 :]
            if _names_a_value(alloc, store, rest):
                rest = [_put(statement, alloc.buffer, store.value) for statement in rest]
                statements = [*statements[:index], *rest]
                return replace(tirx.SeqStmt(statements)) if len(statements) > 1 else statements[0]
        return sequence

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.SeqStmt"])


def _names_a_value(alloc: Any, store: Any, rest: list[Any]) -> bool:
    if not isinstance(alloc, tirx.AllocBuffer) or not isinstance(store, tirx.BufferStore):
        return False
    again: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferStore) and node.buffer.same_as(alloc.buffer):
            again.append(node)

    for statement in rest:
        tirx.stmt_functor.post_order_visit(statement, visit)
    is_scalar = [int(e) for e in alloc.buffer.shape if isinstance(e, tirx.IntImm)] == [1]
    return bool(rest) and is_scalar and store.buffer.same_as(alloc.buffer) and not again


def _put(statement: Any, buffer: Any, value: Any) -> Any:
    def replace(load: Any) -> Any:
        return value if load.buffer.same_as(buffer) else None

    return tirx.stmt_functor.ir_transform(statement, None, replace, ["tirx.BufferLoad"])


def _with_arithmetic(body: Any) -> Any:
    """Elementary functions of float32 as arithmetic."""

    def replace(node: Any) -> Any:
        function = ELEMENTARY.get(getattr(node.op, "name", ""))
        return function(node.args[0]) if function and str(node.ty.dtype) == "float32" else None

    return tirx.stmt_functor.ir_transform(body, None, replace, ["ir.Call"])


def _with_vectors(body: Any, most: int) -> Any:
    """The innermost loops over contiguous elements as vectors of at most so many."""

    def replace(loop: Any) -> Any:
        if not isinstance(loop.extent, tirx.IntImm) or loop.kind != tirx.ForKind.SERIAL:
            return None
        pieces = _pieces(int(loop.extent), most)
        if not pieces or not _is_contiguous(loop):
            return None

        def body_at(_: Any, index: Any) -> Any:
            return tirx.stmt_functor.substitute(loop.body, {loop.loop_var: index})

        name, dtype = loop.loop_var.name, loop.loop_var.ty
        loops = [_loop_over(piece, name, dtype, body_at) for piece in pieces]
        return loops[0] if len(loops) == 1 else tirx.SeqStmt(loops)

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.For"])


@dataclass(frozen=True)
class Piece:
    """Iterations that are done in vectors of one width, or one by one if that is 1."""

    start: int
    lanes: int
    runs: int


def _pieces(extent: int, most: int) -> list[Piece]:
    """All iterations of a loop in vectors of at most so many, a power of two; [] if too few.

    One width for all of them if that is half of the most, at least; otherwise the widest vectors
    that there are enough iterations for, then narrower ones, and the last few one by one.
    """
    lanes = math.gcd(extent, most)
    if 2 * lanes >= most and lanes >= FEWEST_LANES:
        return [Piece(0, lanes, extent // lanes)]
    pieces, start, lanes = [], 0, most
    while lanes >= FEWEST_LANES:
        if runs := (extent - start) // lanes:
            pieces.append(Piece(start, lanes, runs))
            start += runs * lanes
        lanes //= 2
    if pieces and start < extent:
        pieces.append(Piece(start, 1, extent - start))
    return pieces


def _loop_over(piece: Piece, name: str, dtype: Any, body: Callable[[Any, Any], Any]) -> Any:
    """The iterations of a piece, of a body that takes the lane and the index."""
    run, lane = tirx.Var(name, dtype), tirx.Var("lane", dtype)
    start = tirx.const(piece.start, dtype)
    if piece.lanes == 1:
        # Not a loop that threads would share: it is shorter than any vector.
        return tirx.For(run, 0, piece.runs, tirx.ForKind.UNROLLED, body(run, start + run))
    inner = body(lane, run * piece.lanes + lane + start)
    inner = tirx.For(lane, 0, piece.lanes, tirx.ForKind.VECTORIZED, inner)
    return tirx.For(run, 0, piece.runs, tirx.ForKind.SERIAL, inner)


def _is_contiguous(loop: Any) -> bool:
    """Whether an iteration accesses what lies next to the last one's, or the same throughout."""
    bindings: dict[Any, Any] = {}
    accesses, obstacles = [], []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For | tirx.While):
            obstacles.append(node)
        elif isinstance(node, tirx.SBlockRealize):
            axes = [axis.var for axis in node.block.iter_vars]
            bindings.update(zip(axes, node.iter_values, strict=True))
        elif isinstance(node, tirx.BufferStore | tirx.BufferLoad):
            accesses.append(node)
        elif isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") in NOT_IN_VECTORS:
            obstacles.append(node)

    tirx.stmt_functor.post_order_visit(loop.body, visit)
    if obstacles:
        return False
    return all(_steps_by_one(node, bindings, loop.loop_var) for node in accesses)


def _steps_by_one(access: Any, bindings: dict[Any, Any], var: Any) -> bool:
    *outer, last = (tirx.stmt_functor.substitute(i, bindings) for i in access.indices)
    if any(_uses(i, var) for i in outer):
        return False
    if not _uses(last, var):
        return isinstance(access, tirx.BufferLoad)
    linear = arith.detect_linear_equation(last, [var])
    return len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) == 1


def _uses(expression: Any, var: Any) -> bool:
    found = []
    tirx.stmt_functor.post_order_visit(
        expression, lambda node: found.append(node) if node.same_as(var) else None
    )
    return bool(found)


def _with_threads(body: Any) -> Any:
    """The outermost loop of more than one iteration, in each nest, shared among threads."""

    def replace(node: Any) -> Any:
        if not isinstance(node, tirx.For) or node.kind != tirx.ForKind.SERIAL:
            return None
        is_one = isinstance(node.extent, tirx.IntImm) and int(node.extent) == 1
        inner = node.body
        if is_one:
            return None
        if isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.VECTORIZED:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.PARALLEL, inner)

    return tirx.stmt_functor.ir_transform(body, replace, None, ["tirx.For"])
