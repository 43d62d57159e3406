# SPDX-License-Identifier: Apache-2.0
"""Walks over TIR and small pieces of it that several passes need."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal


class PatternMismatch(Exception):
    """The error for a function that does not match a pass's pattern; it names the difference."""


def require_dense_float32(*buffers: Any) -> None:
    """Check that all buffers are dense and float32.

    Raises:
        PatternMismatch: a buffer has another type, or strides.
    """
    for buffer in buffers:
        if str(buffer.dtype) != "float32":
            raise PatternMismatch(f"{buffer.name} is {buffer.dtype}, the kernels are float32")
        if buffer.strides:
            raise PatternMismatch(f"{buffer.name} is not dense")


def nodes_of(root: Any, kind: Any) -> list[Any]:
    """Return every node of a type (or types) in a tree, children first."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, kind):
            found.append(node)

    tirx.stmt_functor.post_order_visit(root, visit)
    return found


def blocks_named(func: tirx.PrimFunc, name: str) -> list[Any]:
    """Return the blocks of a function with a name."""
    return [block for block in nodes_of(func.body, tirx.SBlock) if block.name_hint == name]


def uses(expression: Any, var: Any) -> bool:
    """Return True if an expression uses a variable."""
    return any(node.same_as(var) for node in nodes_of(expression, object))


def same_value(one: Any, other: Any) -> bool:
    """Return True if two expressions are equal and read the same buffers.

    TVM's structural equality takes elements of two buffers of one shape as equal.
    """
    loads = [nodes_of(side, tirx.BufferLoad) for side in (one, other)]
    return structural_equal(one, other) and all(
        left.buffer.same_as(right.buffer) for left, right in zip(*loads, strict=True)
    )


def substitute(expression: Any, values: dict[Any, Any]) -> Any:
    """Replace variables of an expression by values."""
    return tirx.stmt_functor.substitute(tirx.Evaluate(expression), values).value


def whole(buffer: Any) -> Any:
    """Return the region of all elements of a buffer."""
    return tirx.BufferRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape])


def block_of(body: Any, name: str, reads: Any, writes: Any, allocated: Any = ()) -> Any:
    """Wrap a statement in a block without axes that declares the accessed regions."""
    block = tirx.SBlock([], reads, writes, name, body, alloc_buffers=list(allocated))
    return tirx.SBlockRealize([], tirx.const(True), block)


def with_root(func: tirx.PrimFunc, statements: list[Any], allocated: list[Any]) -> tirx.PrimFunc:
    """Replace the statements and buffers of a function's root block."""
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    return func.with_body(block_of(body, func.body.block.name_hint, [], [], allocated))


def is_one(extent: Any) -> bool:
    """Return True if an extent is the constant 1."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
