# SPDX-License-Identifier: Apache-2.0
"""Factors, loads and variables of TIR expressions, and extents as text."""

from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import arith, ir, tirx

from .records import Extent


def same_buffer(param: Any, access: Any) -> bool:
    """Return True if a parameter is the buffer of a load or store; copies keep the name."""
    return bool(access.buffer.same_as(param) or access.buffer.name == param.name)


def factors_of(expr: Any) -> list[Any]:
    """Return the factors of a product without outer casts; [] for None."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    if isinstance(expr, tirx.Mul):
        return factors_of(expr.a) + factors_of(expr.b)
    return [] if expr is None else [expr]


def carries(expr: Any, reduction: list[Any]) -> bool:
    """Return True if an expression uses a reduction axis undivided, unlike a group's scale."""
    hits: list[Any] = []

    def enter(node: Any) -> bool:
        if isinstance(node, tirx.FloorDiv):
            return False
        if isinstance(node, tirx.Var) and any(node.same_as(v) for v in reduction):
            hits.append(node)
        return True

    tirx.stmt_functor.pre_order_visit(tirx.Evaluate(expr), enter)
    return bool(hits)


def nodes_in(tree: Any) -> list[Any]:
    """Return every node of a statement or expression, inner nodes first."""
    nodes: list[Any] = []
    if isinstance(tree, ir.Expr | tirx.Stmt):
        tirx.stmt_functor.post_order_visit(tree, nodes.append)
    return nodes


def loads_in(expr: Any) -> list[tirx.BufferLoad]:
    """Return the loads in an expression, also the loads in indices."""
    return [n for n in nodes_in(expr) if isinstance(n, tirx.BufferLoad)]


def data_loads_in(expr: Any) -> list[tirx.BufferLoad]:
    """Return the loads that are not part of another load's index."""
    loads = loads_in(expr)
    within = [x for load in loads for i in load.indices for x in loads_in(i)]
    return [x for x in loads if not any(x.same_as(w) for w in within)]


def uses(expr: Any, variables: list[Any]) -> bool:
    """Return True if an expression contains a variable of ``variables``."""
    return any(n.same_as(v) for n in nodes_in(expr) if isinstance(n, tirx.Var) for v in variables)


def gathers(expr: Any) -> bool:
    """Return True if an index of a load in the expression is itself loaded."""
    return any(loads_in(i) for load in loads_in(expr) for i in load.indices)


def replaced(expr: Any, load: tirx.BufferLoad, value: Any) -> Any:
    """Return the expression with ``value`` in place of ``load``."""

    def swap(node: Any) -> Any:
        return value if tvm_ffi.structural_equal(node, load) else None

    statement = tirx.Evaluate(expr)
    return tirx.stmt_functor.ir_transform(statement, None, swap, ["tirx.BufferLoad"]).value


def product_of(parts: list[Any]) -> Any:
    """Return the product of extents; 1 for an empty list."""
    return reduce(lambda x, y: x * y, parts, tirx.IntImm("int64", 1))


def bits_of(dtype: Any) -> int:
    """Return the width of a data type in bits."""
    return int(tvm.DataType(str(dtype)).bits)


def index_text(indices: Any) -> str:
    """Return the indices of an access as text."""
    return f"[{','.join(str(extent_text(i)) for i in indices)}]"


_FORMS = (
    (tirx.Add, "({}+{})"),
    (tirx.Sub, "({}-{})"),
    (tirx.Mul, "({}*{})"),
    (tirx.FloorDiv, "({}//{})"),
    (tirx.FloorMod, "({}%{})"),
    (tirx.Min, "min({},{})"),
    (tirx.Max, "max({},{})"),
)


def extent_text(expr: Any, symbols: dict[Any, Any] | None = None) -> Extent:
    """Return an extent as an integer or Python's arithmetic, with variables as in ``symbols``."""
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
    for kind, form in _FORMS:
        if isinstance(expr, kind):
            return form.format(_written(expr.a), _written(expr.b))
    return str(expr)
