# SPDX-License-Identifier: Apache-2.0
"""Torch's dtypes for operators to which TVM's importer would give other dtypes.

TVM 0.26 makes a constant tensor in its model tensor's dtype rather than the requested dtype
(``zeros_like(mask, dtype=float32)`` becomes bool), rounds a number that is combined with integers,
and gives int32 for torch's sorts, which give int64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tvm import relax, te, tirx

from torchroad.conversion.sizes import shape_of

# Positions of arguments that are conditions, which keep their dtype.
CHOOSING = {"where.self": 0}
# Operators that TVM does not compile for truth values, which become integers for them.
OF_NUMBERS = {
    *(f"{n}.{k}" for n in ("eq", "ne", "lt", "le", "gt", "ge") for k in ("Tensor", "Scalar")),
    *("add.Tensor", "mul.Tensor", "maximum.default", "minimum.default"),
}


def dtype_of(node: Any) -> str | None:
    """Return torch's dtype of a node's tensor; None for a node without a tensor."""
    value = node.meta.get("val")
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None


@contextmanager
def promoted(node: Any, importer: Any) -> Iterator[None]:
    """Cast an elementwise operator's arguments to torch's dtype during a ``with`` block."""
    before = {}
    if (dtype := _computed_in(node)) is not None:
        for position, argument in enumerate(node.args):
            chosen = position == CHOOSING.get(node.target.__name__)
            if isinstance(argument, torch.fx.Node) and dtype_of(argument) and not chosen:
                value = importer.env[argument]
                if str(value.ty.dtype) != dtype:
                    before[argument] = value
                    cast = importer.block_builder.emit(relax.op.astype(value, dtype))
                    importer.env[argument] = cast
    try:
        yield
    finally:
        importer.env.update(before)


def _computed_in(node: Any) -> str | None:
    """Return the dtype in which an elementwise operator computes; None if unknown."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return None
    if (dtype := dtype_of(node)) != "bool":
        return dtype
    name = node.target.__name__
    # The result of a comparison does not show the dtype of the computation.
    values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    if len(values) != 2 or not all(isinstance(v, torch.Tensor | int | float) for v in values):
        return None
    dtype = str(torch.result_type(*values)).removeprefix("torch.")
    return "int8" if dtype == "bool" and name in OF_NUMBERS else dtype


def checked(node: Any, result: Any, importer: Any) -> Any:
    """Return an operator's result, checked; int32 and int64, and int8 for bool, are cast.

    Raises:
        TypeError: the result's shape or dtype differs from torch's.
    """
    dtype = dtype_of(node)
    if dtype is None or not isinstance(getattr(result, "ty", None), relax.TensorType):
        return result
    if not isinstance(result.ty.shape, relax.ShapeExpr):
        known = relax.TensorType(shape_of(node, importer), result.ty.dtype)
        result = importer.block_builder.match_cast(result, known)
    _check_shape(node.meta["val"].shape, result.ty.shape)
    result_dtype = str(result.ty.dtype)
    if result_dtype == dtype:
        return result
    if {result_dtype, dtype} == {"int32", "int64"}:
        return importer.block_builder.emit(relax.op.astype(result, dtype))
    if (result_dtype, dtype) == ("int8", "bool"):
        return importer.block_builder.emit(relax.op.not_equal(result, relax.const(0, "int8")))
    raise TypeError(f"TVM's importer gives it the dtype {result_dtype}, torch {dtype}")


def _check_shape(wanted: Any, found: Any) -> None:
    """Refuse a shape whose fixed sizes differ from torch's."""
    if found is None:
        return
    sizes = [getattr(size, "value", None) for size in found]
    known = [(a, b) for a, b in zip(wanted, sizes, strict=False) if type(a) is type(b) is int]
    if len(sizes) != len(wanted) or any(a != b for a, b in known):
        shapes = [", ".join(map(str, shape)) for shape in (sizes, wanted)]
        raise TypeError(f"TVM's importer gives the shape ({shapes[0]}), torch ({shapes[1]})")


def reinterpreted(node: Any, importer: Any) -> Any:
    """Convert ``view(dtype)``: the bytes of numbers as numbers of another dtype, low bytes first.

    Raises:
        TypeError: a dtype is bool.
    """
    x, dtype = importer.env[node.args[0]], str(dtype_of(node))
    if "bool" in (dtype, str(x.ty.dtype)):
        raise TypeError("truth values have no bits")
    old_bits, new_bits = (int(re.sub(r"\D", "", name)) for name in (str(x.ty.dtype), dtype))
    old, new = f"uint{old_bits}", f"uint{new_bits}"

    def part(given: Any, *i: Any) -> Any:
        """Return the bits of an element that is as large as several results, or as one."""
        count = old_bits // new_bits
        bits = tirx.reinterpret(old, given(*i[:-1], i[-1] // count) if i else given())
        if count > 1:
            bits = tirx.shift_right(bits, tirx.Cast(old, i[-1] % count * new_bits))
        return tirx.Cast(new, bits)

    def joined(given: Any, *i: Any) -> Any:
        """Return the bits of several elements, which are as large as one result."""
        total, count = tirx.const(0, new), new_bits // old_bits
        for k in range(count):
            bits = tirx.Cast(new, tirx.reinterpret(old, given(*i[:-1], i[-1] * count + k)))
            total = tirx.bitwise_or(total, tirx.shift_left(bits, tirx.const(k * old_bits, new)))
        return total

    bits_of = part if old_bits >= new_bits else joined

    def formula(given: Any) -> Any:
        def element(*i: Any) -> Any:
            return tirx.reinterpret(dtype, bits_of(given, *i))

        return te.compute(shape_of(node, importer), element, name="bits")

    return importer.block_builder.emit_te(formula, x, primfunc_name_hint="bits")


def _constant(value: Callable[[Any], Any]) -> Any:
    """Return a converter of an operator that makes a tensor of a single number, ``value(node)``."""

    def convert(node: Any, importer: Any) -> Any:
        number, dtype, shape = value(node), dtype_of(node), shape_of(node, importer)
        if isinstance(number, torch.fx.Node):
            raise TypeError("its value is not known before a run")
        filler = relax.const(number, dtype)
        # TVM 0.26 cannot compile a full tensor of infinity or NaN.
        if not math.isfinite(number):
            return importer.block_builder.emit(relax.op.broadcast_to(filler, shape))
        return importer.block_builder.emit(relax.op.full(shape, filler, dtype))

    return convert


# Operators that make a tensor of a single number.
CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("zeros_like.default", "new_zeros.default"), _constant(lambda _: 0)),
    **dict.fromkeys(("ones_like.default", "new_ones.default"), _constant(lambda _: 1)),
    **dict.fromkeys(("full.default", "full_like.default"), _constant(lambda node: node.args[1])),
    "new_full.default": _constant(lambda node: node.args[2]),
}
