# SPDX-License-Identifier: Apache-2.0
"""Torch's sizes as TVM's: of the result of an operator, also of sizes that vary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from tvm import tirx

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms[1:], terms[0]),
    "Mul": lambda *factors: math.prod(factors[1:], start=factors[0]),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), tirx.floordiv),
    "PythonMod": tirx.floormod,
    "Mod": tirx.floormod,
    "Max": tirx.max,
    "Min": tirx.min,
    "Pow": lambda base, power: math.prod([base] * int(power)),
}


def shape_of(node: Any, importer: Any) -> list[Any]:
    """Return the sizes of a node's first tensor: numbers, and expressions of TVM's sizes.

    Raises:
        TypeError: a size is not an expression of the inputs' sizes.
    """
    value = node.meta["val"]
    first = value[0] if isinstance(value, tuple | list) else value
    return [size_of(size, node, importer) for size in first.shape]


def size_of(size: Any, node: Any, importer: Any) -> Any:
    """Return one of torch's sizes as a number or an expression of TVM's sizes.

    Raises:
        TypeError: the size is not a whole number, or not an expression of the inputs' sizes.
    """
    if isinstance(size, torch.SymInt):
        return _translated(size.node.expr, _variables(node, importer))
    if not isinstance(size, int):
        raise TypeError(f"{size} is not a size")
    return size


def size_at(node: Any, importer: Any) -> Any:
    """Return the size that a node holds, as :func:`size_of` does."""
    return size_of(node.meta["val"], node, importer)


def _variables(node: Any, importer: Any) -> dict[Any, Any]:
    """Return TVM's variable of each of torch's symbols, from the shapes of the inputs."""
    variables = {}
    for place in node.graph.find_nodes(op="placeholder"):
        value = place.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        found = getattr(getattr(importer.env.get(place), "ty", None), "shape", None) or ()
        for size, variable in zip(shape, found, strict=False):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                variables[size.node.expr] = variable
    return variables


def _translated(size: Any, variables: dict[Any, Any]) -> Any:
    if size in variables:
        return variables[size]
    if size.is_Integer:
        return tirx.const(int(size), "int64")
    function = FUNCTIONS.get(type(size).__name__)
    if function is None:
        raise TypeError(f"its size {size} is not known before a run")
    return function(*(_translated(part, variables) for part in size.args))
