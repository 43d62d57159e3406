# SPDX-License-Identifier: Apache-2.0
"""Facts read from a PrimFunc, for defects that its text shows more surely than its results."""

from __future__ import annotations

from typing import Any


def loops_depending_on(function: Any, name: str) -> list[str]:
    """Loop variables whose trip count depends on the symbolic size of that name."""
    from tvm import tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For) and name in _variables(node.extent):
            found.append(node.loop_var.name)

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


def _variables(expr: Any) -> set[str]:
    from tvm import tirx  # noqa: PLC0415

    names: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Var):
            names.add(node.name)

    tirx.stmt_functor.post_order_visit(expr, visit)
    return names


def scratch_accesses_out_of_bounds(function: Any) -> list[str]:
    """Accesses to buffers of a block, of constant shape, which are not provably inside them.

    Loops of a constant trip count give the bounds of their variable; an index of anything else
    counts as not provable.
    """
    from tvm import arith, ir, tirx  # noqa: PLC0415

    analyzer = arith.Analyzer()
    scratch: list[Any] = []
    accesses: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For) and isinstance(node.extent, tirx.IntImm):
            analyzer.bind(node.loop_var, ir.Range.from_min_extent(node.min, node.extent))
        elif isinstance(node, tirx.SBlock):
            scratch.extend(node.alloc_buffers)
        elif isinstance(node, tirx.BufferLoad | tirx.BufferStore):
            accesses.append(node)

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return [
        str(access)
        for access in accesses
        if any(access.buffer.same_as(b) for b in scratch) and not _inside(access, analyzer)
    ]


def _inside(access: Any, analyzer: Any) -> bool:
    from tvm import tirx  # noqa: PLC0415

    for index, size in zip(access.indices, access.buffer.shape, strict=True):
        if not isinstance(size, tirx.IntImm):
            continue
        bound = analyzer.const_int_bound(index)
        if bound.min_value < 0 or bound.max_value >= int(size):
            return False
    return True
