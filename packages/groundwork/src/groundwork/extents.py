# SPDX-License-Identifier: Apache-2.0
"""Extents of a model's work: numbers, or arithmetic on sizes that are bound later."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
# Of an extent; how deep Python reads longer ones depends on its release.
_MOST_CHARACTERS = 1000
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def names(extent: int | str) -> set[str]:
    """Return the names of the open sizes in an extent.

    Raises:
        SyntaxError: the text is not an expression.
        ValueError: the text is too long.
    """
    if not isinstance(extent, str):
        return set()
    nodes = ast.walk(_parsed(extent))
    return {n.id for n in nodes if isinstance(n, ast.Name)} - set(_CALLS)


def evaluate(extent: int | str, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent such as ``seq_len*64``.

    Raises:
        KeyError: ``sizes`` lacks a name, which is the error's argument.
        SyntaxError: the text is not an expression.
        ValueError: the text is too long, or not integer arithmetic.
        ZeroDivisionError: a divisor is 0.
    """
    if isinstance(extent, int):
        return extent

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as given) if name in _CALLS:
                return _CALLS[name](*map(value, given))
        raise ValueError(f"{extent!r} is not integer arithmetic")

    return value(_parsed(extent))


def _parsed(extent: str) -> ast.expr:
    if len(extent) > _MOST_CHARACTERS:
        raise ValueError(f"an extent of {len(extent)} characters, more than {_MOST_CHARACTERS}")
    return ast.parse(extent, mode="eval").body
