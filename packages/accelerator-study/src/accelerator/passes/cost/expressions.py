# SPDX-License-Identifier: Apache-2.0
"""Factors, loads and variables of TIR expressions, and extents as text."""

from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import arith, ir, tirx

from .records import Extent


def same_buffer(param: Any, access: Any) -> bool:
    """True if a parameter is the buffer of a load or store; copies keep the name."""
    return bool(access.buffer.same_as(param) or access.buffer.name == param.name)


def factors_of(expr: Any) -> list[Any]:
    """The factors of a product, casts around it aside; none of None."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    if isinstance(expr, tirx.Mul):
        return factors_of(expr.a) + factors_of(expr.b)
    return [] if expr is None else [expr]


def carries(expr: Any, reduction: list[Any]) -> bool:
    """True if an axis of the reduction is used otherwise than divided, as in a group's scale."""
    hits: list[Any] = []

    def enter(node: Any) -> bool:
        if isinstance(node, tirx.FloorDiv):
            return False
        if isinstance(node, tirx.Var) and any(node.same_as(v) for v in reduction):
            hits.append(node)
        return True

    tirx.stmt_functor.pre_order_visit(tirx.Evaluate(expr), enter)
    return bool(hits)


def nodes_in_statement(body: Any) -> list[Any]:
    """Every node of a statement, inner ones first."""
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(body, found.append)
    return found


def nodes_in(expr: Any) -> list[Any]:
    """Every node of an expression, inner ones first."""
    found: list[Any] = []
    if isinstance(expr, ir.Expr):
        tirx.stmt_functor.post_order_visit(expr, found.append)
    return found


def loads_in(expr: Any) -> list[tirx.BufferLoad]:
    """The loads in an expression, those in indices too."""
    return [n for n in nodes_in(expr) if isinstance(n, tirx.BufferLoad)]


def data_loads_in(expr: Any) -> list[tirx.BufferLoad]:
    """Loads that are not part of another load's index."""
    loads = loads_in(expr)
    within = [x for load in loads for i in load.indices for x in loads_in(i)]
    return [x for x in loads if not any(x.same_as(w) for w in within)]


def uses(expr: Any, variables: list[Any]) -> bool:
    """True if an expression has one of the variables."""
    return any(n.same_as(v) for n in nodes_in(expr) if isinstance(n, tirx.Var) for v in variables)


def gathers(expr: Any) -> bool:
    """True if an index is itself loaded."""
    return any(loads_in(i) for load in loads_in(expr) for i in load.indices)


def replaced(expr: Any, load: tirx.BufferLoad, value: Any) -> Any:
    """The expression with ``value`` where ``load`` was."""

    def swap(node: Any) -> Any:
        return value if tvm_ffi.structural_equal(node, load) else None

    statement = tirx.Evaluate(expr)
    return tirx.stmt_functor.ir_transform(statement, None, swap, ["tirx.BufferLoad"]).value


def product_of(parts: list[Any]) -> Any:
    """The product of extents; 1 of none."""
    return reduce(lambda x, y: x * y, parts, tirx.IntImm("int64", 1))


def bits_of(dtype: Any) -> int:
    """Width of a data type."""
    return int(tvm.DataType(str(dtype)).bits)


def index_text(indices: Any) -> str:
    """The indices of an access as text."""
    return f"[{','.join(str(extent_text(i)) for i in indices)}]"


_SIGNS = (
    (tirx.Add, "+"),
    (tirx.Sub, "-"),
    (tirx.Mul, "*"),
    (tirx.FloorDiv, "//"),
    (tirx.FloorMod, "%"),
)


def extent_text(expr: Any, symbols: dict[Any, Any] | None = None) -> Extent:
    """An extent as an integer, or as text in Python's arithmetic."""
    if isinstance(expr, int):
        return expr
    if symbols:
        kept = {v: e for v, e in symbols.items() if not v.same_as(e)}
        expr = tirx.stmt_functor.substitute(expr, kept) if kept else expr
    expr = arith.Analyzer().simplify(expr)
    return int(expr) if isinstance(expr, tirx.IntImm) else _written(expr)


def _written(expr: Any) -> str:
    if isinstance(expr, tirx.Var):
        return str(expr.name)
    if isinstance(expr, tirx.IntImm):
        return str(int(expr))
    if isinstance(expr, tirx.Cast):
        return _written(expr.value)
    if isinstance(expr, tirx.BufferLoad):
        return f"{expr.buffer.name}{index_text(expr.indices)}"
    if isinstance(expr, tirx.Min | tirx.Max):
        name = "min" if isinstance(expr, tirx.Min) else "max"
        return f"{name}({_written(expr.a)},{_written(expr.b)})"
    return _written_with_sign(expr)


def _written_with_sign(expr: Any) -> str:
    for kind, sign in _SIGNS:
        if isinstance(expr, kind):
            return f"({_written(expr.a)}{sign}{_written(expr.b)})"
    return str(expr)
