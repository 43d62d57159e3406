# SPDX-License-Identifier: Apache-2.0
"""VectorizeLoops: vectors for activations, residuals, norms and copies into the KV cache.

The pass treats the functions that no schedule has claimed and that are data parallel throughout, or
sum over their last axis. Intermediate results are computed where they are used; the innermost loop
over contiguous elements becomes vectors, the outermost is shared among threads, and elementary
functions become arithmetic (:mod:`elementary`). Loops that cannot be vectorized stay as they are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import tvm
from tvm import arith, s_tir, tirx
from tvm.target import Target

from ..functions import Rewrite, function_pass, is_reshape, is_scheduled
from ..stages import Stage, stages_of
from ..targets import Vectors, vectors_of
from ..tir import is_one, nodes_of, same_value
from . import elementary
from .elementary import ELEMENTARY
from .pieces import loop_over, pieces_of, steps_by_one
from .sums import summand_of, with_vector_sums

# A condition that differs between elements is no vector code.
NOT_IN_VECTORS = {"tirx.if_then_else", "tirx.call_extern"}


@function_pass
def VectorizeLoops(target: Target) -> Rewrite | None:
    """Pass that vectorizes data-parallel functions for CPUs with vectors."""
    vectors = vectors_of(target)
    return None if vectors is None else lambda _, func: vectorize_function(func, vectors)


def vectorize_function(func: tirx.PrimFunc, vectors: Vectors) -> tirx.PrimFunc | None:
    """Vectorize a data-parallel function.

    Args:
        func: the function.
        vectors: the target's vectors.

    Returns:
        The function, marked as scheduled; None where there is nothing to do or to gain. A
        reshape is left alone: it becomes a view later, which no copy can beat.
    """
    if is_scheduled(func):
        return None
    stages = stages_of(func)
    if not isinstance(func.body, tirx.SBlockRealize) or not _blocks(func.body):
        return None
    if not _is_data_parallel(func) and not (stages and all(map(_is_known, stages))):
        return None
    inlined = _inline(func)
    if is_reshape(inlined):
        return None if inlined.same_as(func) else inlined
    plain = _without_scalars(with_vector_sums(inlined, vectors.most))
    body = with_arithmetic(plain)
    most = vectors.most if body.same_as(plain) else vectors.most_with_math
    vectorized = _with_vectors(body, most)
    if vectorized.same_as(body):
        return None
    return inlined.with_body(_with_threads(vectorized)).with_attr("tirx.is_scheduled", True)


def _blocks(statement: Any) -> list[Any]:
    """Return the block realizations in a statement, without root blocks."""
    return [n for n in nodes_of(statement, tirx.SBlockRealize) if n.block.iter_vars]


def _is_data_parallel(func: tirx.PrimFunc) -> bool:
    blocks = _blocks(func.body)
    return bool(blocks) and all(
        axis.iter_type == tirx.IterVar.DataPar for b in blocks for axis in b.block.iter_vars
    )


def _is_known(stage: Stage) -> bool:
    """Return True if a stage is elementwise, or a sum over its last axis that is no product."""
    kinds = [axis.iter_type for axis in stage.block.iter_vars]
    if all(kind == tirx.IterVar.DataPar for kind in kinds):
        return True
    return summand_of(stage) is not None


def _inline(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline intermediate buffers into their readers, unless that repeats work.

    An elementary function is not computed within the argument of another one: arithmetic has its
    argument in many places, so that code would grow by a power with each such function.
    """
    names = {str(buffer.name) for buffer in func.body.block.alloc_buffers}
    realized = nodes_of(func.body, tirx.SBlockRealize)
    blocks = Counter(str(realize.block.name_hint) for realize in realized)
    schedule, done = s_tir.Schedule(func), 0
    inlined: list[Any] = []  # buffers that are computed with elementary functions
    for realize in _blocks(func.body):
        # A schedule finds a block by its name.
        if blocks[realize.block.name_hint] > 1 or not realize.block.writes:
            continue
        out = realize.block.writes[0].buffer
        reads = [region.buffer for region in realize.block.reads]
        has_functions = _has_functions(realize.block) or any(
            buffer.same_as(one) for buffer in reads for one in inlined
        )
        readers = [
            other.block
            for other in _blocks(func.body)
            if any(region.buffer.same_as(out) for region in other.block.reads)
        ]
        repeats = any(len(reader.iter_vars) > len(realize.block.iter_vars) for reader in readers)
        copies = isinstance(getattr(realize.block.body, "value", None), tirx.BufferLoad)
        if str(out.name) not in names or realize.block.init or (repeats and not copies):
            continue
        if has_functions and any(map(_has_functions, readers)):
            continue
        block = schedule.get_sblock(realize.block.name_hint)
        try:
            schedule.compute_inline(block)
            done += 1
        except s_tir.ScheduleError:
            try:
                schedule.reverse_compute_inline(block)
                done += 1
            # TVM 0.27 stumbles over what it should decline, before it changes anything.
            except (s_tir.ScheduleError, tvm.error.InternalError):
                continue
        if has_functions:
            inlined.append(out)
    return schedule.mod["main"].with_attrs(func.attrs or {}) if done else func


def _has_functions(block: Any) -> bool:
    calls = nodes_of(block.body, tvm.ir.Call)
    return any(getattr(call.op, "name", "") in ELEMENTARY for call in calls)


def _without_scalars(body: Any) -> Any:
    """Replace reads of one-element local buffers by their values, for vector loops."""

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
    stores = [node for statement in rest for node in nodes_of(statement, tirx.BufferStore)]
    is_scalar = [int(e) for e in alloc.buffer.shape if isinstance(e, tirx.IntImm)] == [1]
    # The value moves to its uses, so that nothing may change what it reads before them.
    fixed = [alloc.buffer, *(load.buffer for load in nodes_of(store.value, tirx.BufferLoad))]
    is_final = not any(node.buffer.same_as(one) for node in stores for one in fixed)
    return bool(rest) and is_scalar and store.buffer.same_as(alloc.buffer) and is_final


def _put(statement: Any, buffer: Any, value: Any) -> Any:
    def replace(load: Any) -> Any:
        return value if load.buffer.same_as(buffer) else None

    return tirx.stmt_functor.ir_transform(statement, None, replace, ["tirx.BufferLoad"])


def with_arithmetic(body: Any) -> Any:
    """Replace float32 elementary functions by arithmetic."""

    def gated(product: Any) -> Any:
        for x, gate in (product.a, product.b), (product.b, product.a):
            is_gate = getattr(getattr(gate, "op", None), "name", "") == "tirx.sigmoid"
            if is_gate and str(x.ty.dtype) == "float32" and same_value(gate.args[0], x):
                return elementary.silu(x)
        return None

    def replace(node: Any) -> Any:
        function = ELEMENTARY.get(getattr(node.op, "name", ""))
        return function(node.args[0]) if function and str(node.ty.dtype) == "float32" else None

    body = tirx.stmt_functor.ir_transform(body, None, gated, ["tirx.Mul"])
    return tirx.stmt_functor.ir_transform(body, None, replace, ["ir.Call"])


def _with_vectors(body: Any, most: int) -> Any:
    """Vectorize the innermost loops over contiguous elements, with at most ``most`` lanes."""

    def replace(loop: Any) -> Any:
        if not isinstance(loop.extent, tirx.IntImm) or loop.kind != tirx.ForKind.SERIAL:
            return None
        pieces = pieces_of(int(loop.extent), most)
        if not pieces or not is_contiguous(loop):
            return None

        def body_at(_: Any, index: Any) -> Any:
            return tirx.stmt_functor.substitute(loop.body, {loop.loop_var: index})

        name, dtype = loop.loop_var.name, loop.loop_var.ty
        loops = [loop_over(piece, name, dtype, body_at) for piece in pieces]
        return loops[0] if len(loops) == 1 else tirx.SeqStmt(loops)

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.For"])


def is_contiguous(loop: Any) -> bool:
    """Return True if vectors can run a loop's iterations.

    No loop, if_then_else or call of C is in it, :func:`steps_by_one` holds for each access, and no
    iteration accesses an element that another one writes.
    """
    calls = nodes_of(loop.body, tvm.ir.Call)
    if nodes_of(loop.body, (tirx.For, tirx.While, tirx.AssertStmt)) or any(
        getattr(call.op, "name", "") in NOT_IN_VECTORS for call in calls
    ):
        return False
    bindings: dict[Any, Any] = {}
    for realize in nodes_of(loop.body, tirx.SBlockRealize):
        axes = [axis.var for axis in realize.block.iter_vars]
        bindings.update(zip(axes, realize.iter_values, strict=True))
    accesses = nodes_of(loop.body, (tirx.BufferStore, tirx.BufferLoad))
    if not all(steps_by_one(access, bindings, loop.loop_var) for access in accesses):
        return False
    stores = [access for access in accesses if isinstance(access, tirx.BufferStore)]
    return all(
        _are_apart(store, other, bindings, loop.extent)
        for store in stores
        for other in accesses
        if other.buffer.same_as(store.buffer)
    )


def _are_apart(one: Any, other: Any, bindings: dict[Any, Any], extent: Any) -> bool:
    """Return True if accesses of a buffer in different iterations reach different elements.

    Args:
        one: an access whose last index steps by one.
        other: another such access.
        bindings: values of variables in their indices.
        extent: number of iterations.
    """
    places = [
        [tirx.stmt_functor.substitute(index, bindings) for index in access.indices]
        for access in (one, other)
    ]
    if all(same_value(*pair) for pair in zip(*places, strict=True)):
        return True
    analyzer = arith.Analyzer()
    *rows, step = [analyzer.simplify(left - right) for left, right in zip(*places, strict=True)]
    if any(isinstance(row, tirx.IntImm) and int(row) for row in rows):
        return True
    return all(isinstance(n, tirx.IntImm) for n in (step, extent)) and abs(int(step)) >= int(extent)


def _with_threads(body: Any) -> Any:
    """Make the outermost loop with several iterations in each nest parallel.

    Loops within a block with axes stay: nothing says that their iterations are independent.
    """

    def replace(node: Any) -> Any:
        if isinstance(node, tirx.SBlockRealize) and node.block.iter_vars:
            return node
        if not isinstance(node, tirx.For) or node.kind != tirx.ForKind.SERIAL:
            return None
        if is_one(node.extent):
            return None
        inner = node.body
        if isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.VECTORIZED:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.PARALLEL, inner)

    kinds = ["tirx.For", "tirx.SBlockRealize"]
    return tirx.stmt_functor.ir_transform(body, replace, None, kinds)
