# SPDX-License-Identifier: Apache-2.0
"""Stages of a TIR function: loop nests that follow each other, with one block in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, tirx
from tvm_ffi import structural_equal

from .functions import is_scheduled
from .tir import PatternMismatch, same_value


@dataclass(frozen=True)
class Stage:
    """A loop nest of a function's body, and its block."""

    loops: list[Any]
    block: Any
    statement: Any

    @property
    def name(self) -> str:
        """Return the block's name."""
        return str(self.block.name_hint)

    @property
    def written(self) -> Any:
        """Return the buffer that the block writes."""
        return self.block.writes[0].buffer

    def reads(self, buffer: Any) -> bool:
        """Return True if the block reads a buffer."""
        return any(region.buffer.same_as(buffer) for region in self.block.reads)


def stages_of(func: tirx.PrimFunc) -> list[Stage] | None:
    """Return the loop nests of a function in order; None if its body has other statements."""
    if not isinstance(func.body, tirx.SBlockRealize):
        return None
    body = func.body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    stages = []
    for statement in statements:
        loops, inner = [], statement
        while isinstance(inner, tirx.For):
            loops.append(inner)
            inner = inner.body
        if not isinstance(inner, tirx.SBlockRealize) or len(inner.block.writes) != 1:
            return None
        if [*inner.iter_values] != [loop.loop_var for loop in loops]:
            return None
        stages.append(Stage(loops, inner.block, statement))
    return stages


def staged_functions(
    mod: IRModule,
) -> Iterator[tuple[str, tirx.PrimFunc, list[Stage], list[Stage]]]:
    """Yield name, function, stages and products of each TIR function without a schedule.

    Both lists are empty where the body has another form.
    """
    for g_var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and not is_scheduled(func):
            stages = stages_of(func) or []
            yield g_var.name_hint, func, stages, [stage for stage in stages if is_product(stage)]


def starts_at_zero(block: Any) -> bool:
    """Return True if a block that stores to one place begins there with zero."""
    store = block.body
    zero = tirx.BufferStore(store.buffer, tirx.const(0, store.buffer.dtype), store.indices)
    return block.init is not None and bool(structural_equal(block.init, zero))


def is_product(stage: Stage) -> bool:
    """Return True if a block sums products of two buffers; a sum of squares does not count.

    It sums from zero over one axis, or over two, as a convolution of one channel does.
    """
    value = getattr(stage.block.body, "value", None)
    kinds = [axis.iter_type for axis in stage.block.iter_vars]
    return (
        kinds.count(tirx.IterVar.CommReduce) in (1, 2)
        and isinstance(value, tirx.Add)
        and isinstance(value.b, tirx.Mul)
        and not same_value(value.b.a, value.b.b)
        and starts_at_zero(stage.block)
    )


def factors_of(product: Stage) -> list[Any]:
    """Return the two buffer loads that a product's block multiplies.

    Raises:
        PatternMismatch: the block multiplies other expressions.
    """
    factors = [product.block.body.value.b.a, product.block.body.value.b.b]
    if not all(isinstance(factor, tirx.BufferLoad) for factor in factors):
        raise PatternMismatch("its factors are not plain elements of buffers")
    return factors


def same_extents(left: Any, right: Any) -> bool:
    """Return True if two lists of extents are equal, regardless of integer types."""
    left, right = list(left), list(right)
    return len(left) == len(right) and all(map(_same, left, right))


def _same(left: Any, right: Any) -> bool:
    numbers = [int(e) if isinstance(e, int | tirx.IntImm) else None for e in (left, right)]
    if None in numbers:
        return bool(structural_equal(left, right))
    return numbers[0] == numbers[1]
