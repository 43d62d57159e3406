# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of a compiled model, and the kernels' share of them."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from crosslab.compile.driver import CompiledModel
from crosslab.compile.modes import WORK_FILE

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

# Attention's products to the blocks of the functions that compute them on a paged cache.
ATTENTION = {"QK": "S_gemm", "PV": "O_gemm"}


@dataclass(frozen=True)
class MultiplyAdds:
    """The multiply-adds of a call.

    Attributes:
        total: all multiply-adds.
        on_kernels: multiply-adds of products that call a kernel.
        plain: multiply-adds of products without a kernel, by function.
    """

    total: int
    on_kernels: int
    plain: Mapping[str, int]

    @property
    def share(self) -> float:
        """The kernels' share; 1 for a model without products."""
        return self.on_kernels / self.total if self.total else 1.0


def multiply_adds(library: CompiledModel, entry: str, sizes: Mapping[str, int]) -> MultiplyAdds:
    """Count the multiply-adds of a call.

    Args:
        library: the compiled model, with its work file and its report of kernels.
        entry: name of the called function.
        sizes: values of the varying sizes, by name.
    """
    kernels = {(e["function"], e["block"]) for e in library.tensorized if e["symbol"]}
    of_cache = {e["block"] for e in library.tensorized if not e["symbol"]}
    work = json.loads((library.folder / WORK_FILE).read_text(encoding="utf-8"))
    total, plain = 0, dict[str, int]()
    for product in work["entries"][entry]["products"]:
        extents = (product[name] for name in ("count", "batch", "m", "n", "k"))
        amount = 1
        for extent in extents:
            amount *= extent if isinstance(extent, int) else evaluate(extent, sizes)
        total += amount
        block = ATTENTION.get(product["block"]) if product["kind"] == "attention" else None
        if block in of_cache if block else (product["function"], product["block"]) not in kernels:
            plain[product["function"]] = plain.get(product["function"], 0) + amount
    return MultiplyAdds(total, total - sum(plain.values()), plain)


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """Return the value of an extent in Python's arithmetic, such as ``n*4``.

    Raises:
        ValueError: the text has other parts than integers, names, operators of two operands,
            ``min`` and ``max``.
        KeyError: ``sizes`` lacks a name, or the operator is not one of ``+ - * // %``.
    """

    def value(node: ast.AST) -> int:
        match node:
            case ast.Expression():
                return value(node.body)
            case ast.Constant(value=int(number)):
                return number
            case ast.Name():
                return sizes[node.id]
            case ast.BinOp():
                return _OPERATORS[type(node.op)](value(node.left), value(node.right))
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, *_] as given):
                return (min if name == "min" else max)(map(value, given))
        raise ValueError(f"{text!r} is not arithmetic on sizes")

    return value(ast.parse(text, mode="eval"))
