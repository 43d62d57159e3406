# SPDX-License-Identifier: Apache-2.0
"""Conversion of operators that write elements at indices along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from torchroad.conversion.arguments import Converter, argument
from torchroad.conversion.extremes import least_of, most_of
from torchroad.conversion.indexing import written_along

# Torch's reductions: the reduction of TVM, and its identity by dtype.
REDUCTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sum": ("add", lambda dtype: tirx.const(0, dtype)),
    "mean": ("add", lambda dtype: tirx.const(0, dtype)),
    "prod": ("mul", lambda dtype: tirx.const(1, dtype)),
    "amax": ("max", least_of),
    "amin": ("min", most_of),
}


def scattered(reduction: str) -> Converter:
    """Return a converter of an operator that writes ("update") or adds ("add") values."""

    def convert(node: Any, importer: Any) -> Any:
        builder, (x, axis, indices, values) = importer.block_builder, importer.retrieve_args(node)
        if isinstance(values, int | float):
            number = relax.const(values, str(x.ty.dtype))
            values = builder.emit(relax.op.broadcast_to(number, indices.ty.shape))
        values = _first(values, indices, importer)
        return written_along(x, axis, indices, values, reduction, builder)

    return convert


def scattered_with_reduction(node: Any, importer: Any) -> Any:
    """Convert ``scatter_reduce.two``."""
    builder = importer.block_builder
    x, axis, indices, values, reduction = importer.retrieve_args(node)
    takes_own = bool(argument(node, importer, 5, "include_self", True))
    dtype, (name, identity) = str(x.ty.dtype), REDUCTIONS[reduction]
    values = _first(values, indices, importer)

    def filled(number: float) -> Any:
        return builder.emit(relax.op.broadcast_to(relax.const(number, dtype), indices.ty.shape))

    if not takes_own:
        x = written_along(x, axis, indices, filled(identity(dtype).value), "update", builder)
    result = written_along(x, axis, indices, values, name, builder)
    if reduction == "mean":
        own = builder.emit(relax.op.full_like(x, relax.const(float(takes_own), dtype)))
        count = written_along(own, axis, indices, filled(1.0), "add", builder)
        divisor = builder.emit(relax.op.maximum(count, relax.const(1.0, dtype)))
        divide = relax.op.divide if dtype.startswith("float") else relax.op.floor_divide
        return builder.emit(divide(result, divisor))
    if dtype.startswith("float") and reduction in ("amax", "amin"):
        # TVM's maxima lose a NaN.
        marks = (builder.emit(relax.op.astype(relax.op.isnan(t), dtype)) for t in (x, values))
        own, others = marks
        count = written_along(own, axis, indices, others, "add", builder)
        is_nan = builder.emit(relax.op.greater(count, relax.const(0.0, dtype)))
        return builder.emit(relax.op.where(is_nan, relax.const(math.nan, dtype), result))
    return result


def _first(values: Any, indices: Any, importer: Any) -> Any:
    """Return as many values as there are indices; torch ignores further values."""
    shape = indices.ty.shape
    if tuple(map(str, shape)) == tuple(map(str, values.ty.shape)):
        return values

    def first(given: Any, sizes: Any) -> Any:
        return te.compute(sizes, lambda *i: given[i], name="first")

    return importer.block_builder.emit_te(first, values, shape, primfunc_name_hint="first")
