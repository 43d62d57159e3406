# SPDX-License-Identifier: Apache-2.0
"""Maxima, minima and orders of numbers as torch has them: a NaN is larger than all other numbers.

TVM's functions compare a NaN like a number, which loses it or leaves the order undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as script

from torchroad.conversion.arguments import Converter, argument
from torchroad.conversion.dtypes import dtype_of
from torchroad.conversion.sizes import shape_of

# Integers of a float's size, and the bits of infinity; larger numbers without a sign are NaN.
BITS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}

# Dtypes that TVM's runtime cannot sort.
NARROW = ("bool", "int8", "uint8", "int16", "uint16")


def larger(x: Any, y: Any) -> Any:
    """Return the larger of two numbers; NaN if one is NaN."""
    return _of_two(x, y, "llvm.maximum", tirx.max)


def smaller(x: Any, y: Any) -> Any:
    """Return the smaller of two numbers; NaN if one is NaN."""
    return _of_two(x, y, "llvm.minimum", tirx.min)


def _of_two(x: Any, y: Any, intrinsic: str, plain: Callable[[Any, Any], Any]) -> Any:
    dtype = str(x.ty.dtype)
    return tirx.call_llvm_pure_intrin(dtype, intrinsic, x, y) if _floats(dtype) else plain(x, y)


def _floats(dtype: Any) -> bool:
    return str(dtype).startswith("float")


def least_of(dtype: str) -> Any:
    """Return the least number of a dtype: -infinity for floats."""
    return tirx.const(-math.inf, dtype) if _floats(dtype) else tirx.min_value(dtype)


def most_of(dtype: str) -> Any:
    """Return the largest number of a dtype: infinity for floats."""
    return tirx.const(math.inf, dtype) if _floats(dtype) else tirx.max_value(dtype)


# Reductions to the largest and the smallest element.
LARGEST = te.comm_reducer(larger, least_of, name="largest")
SMALLEST = te.comm_reducer(smaller, most_of, name="smallest")


def relu(x: Any) -> Any:
    """Compute the larger of a number and 0; a comparison that fails keeps a NaN."""
    zero = tirx.const(0, x.dtype)
    return te.compute(x.shape, lambda *i: tirx.Select(x[i] < zero, zero, x[i]), name="relu")


# Operators that limit numbers: positions, names and defaults of the least and the most number.
LIMITS: dict[str, tuple[tuple[int, str, float | None, Any], ...]] = {
    "clamp.default": ((1, "min", None, larger), (2, "max", None, smaller)),
    "clamp.Tensor": ((1, "min", None, larger), (2, "max", None, smaller)),
    "clamp_min.default": ((1, "min", None, larger),),
    "clamp_max.default": ((1, "max", None, smaller),),
    "hardtanh.default": ((1, "min_val", -1.0, larger), (2, "max_val", 1.0, smaller)),
}


def clamp(node: Any, importer: Any) -> Any:
    """Convert a limitation of numbers by numbers or tensors."""
    x = importer.env[node.args[0]]
    for place, name, default, operator in LIMITS[node.target.__name__]:
        if (limit := argument(node, importer, place, name, default)) is not None:
            x = pair(x, limit, operator, node, importer)
    return x


def of_two(operator: Callable[[Any, Any], Any]) -> Converter:
    """Return a converter of an operator on two tensors, or a tensor and a number."""

    def convert(node: Any, importer: Any) -> Any:
        x, y = (argument(node, importer, place, "") for place in range(2))
        return pair(x, y, operator, node, importer)

    return convert


def pair(x: Any, y: Any, operator: Callable[..., Any], node: Any, importer: Any) -> Any:
    """Return an operator's results for the elements of a tensor, and of a tensor or a number."""
    builder, shape = importer.block_builder, shape_of(node, importer)

    def both(first: Any, second: Any = None) -> Any:
        def of(*i: Any) -> Any:
            limit = tirx.const(y, first.dtype) if second is None else second(*i)
            return operator(first(*i), limit)

        return te.compute(first.shape, of, name="limited")

    tensors = [x] if isinstance(y, int | float) else [x, y]
    wide = [builder.emit(relax.op.broadcast_to(tensor, shape)) for tensor in tensors]
    return builder.emit_te(both, *wide, primfunc_name_hint="limited")


def extreme(reduced: Callable[..., Any]) -> Converter:
    """Return a converter of the reduction over some axes by ``reduced``: LARGEST or SMALLEST."""

    def convert(node: Any, importer: Any) -> Any:
        axes = argument(node, importer, 1, "dim")
        keeps = bool(argument(node, importer, 2, "keepdim", False))
        x = importer.env[node.args[0]]
        return _reduced(x, axes, keeps, reduced, importer)

    return convert


def _reduced(x: Any, axes: Any, keeps: bool, reduced: Any, importer: Any) -> Any:
    if str(x.ty.dtype) == "bool":
        x = importer.block_builder.emit(relax.op.astype(x, "int8"))
    rank = len(x.ty.shape)
    gone = [axis % rank for axis in ([axes] if isinstance(axes, int) else axes or range(rank))]

    def formula(data: Any) -> Any:
        inner = {axis: te.reduce_axis((0, data.shape[axis])) for axis in gone}
        kept = [axis for axis in range(rank) if axis not in inner]
        left = range(rank) if keeps else kept

        def element(*i: Any) -> Any:
            at = {**dict(zip(left, i, strict=True)), **inner}
            return reduced(data[tuple(at[axis] for axis in range(rank))], axis=[*inner.values()])

        shape = [1 if axis in inner else data.shape[axis] for axis in left]
        return te.compute(shape, element, name="extreme")

    return importer.block_builder.emit_te(formula, x, primfunc_name_hint="extreme")


def any_true(node: Any, importer: Any) -> Any:
    """Convert a disjunction over some axes: true if an element is not 0; a NaN is not 0."""
    builder, x = importer.block_builder, importer.env[node.args[0]]
    axes = argument(node, importer, 1, "dim")
    keeps = bool(argument(node, importer, 2, "keepdim", False))
    truth = builder.emit(relax.op.astype(x, "bool"))
    largest = _reduced(truth, axes, keeps, LARGEST, importer)
    return builder.emit(relax.op.astype(largest, dtype_of(node)))


def keys(x: Any, negated: bool) -> Any:
    """Compute integers in the order of numbers, or in the reverse order; NaN has the largest."""
    dtype, infinity = BITS[str(x.dtype)]

    def key(*i: Any) -> Any:
        bits = tirx.reinterpret(dtype, x(*i))
        size = tirx.reinterpret(dtype, te.abs(x(*i)))
        is_negative = bits >= 0 if negated else bits < 0
        signed = tirx.Select(is_negative, 0 - size, size)
        return tirx.Select(size > tirx.const(infinity, dtype), tirx.max_value(dtype), signed)

    return te.compute(x.shape, key, name="keys")


def integers_of(x: Any, importer: Any, *, most: bool) -> Any:
    """Return integers, the largest for the largest element; unless ``most``, for the smallest."""
    builder = importer.block_builder
    if str(x.ty.dtype) in BITS:
        return builder.emit_te(keys, x, not most, primfunc_name_hint="keys")
    whole = builder.emit(relax.op.astype(x, "int32")) if str(x.ty.dtype) in NARROW else x
    return whole if most else builder.emit(relax.op.bitwise_not(whole))


def place_of_extreme(most: bool) -> Converter:
    """Return a converter of the index of the largest element; unless ``most``, the smallest."""

    def convert(node: Any, importer: Any) -> Any:
        builder, x = importer.block_builder, importer.env[node.args[0]]
        axis = argument(node, importer, 1, "dim")
        keeps = bool(argument(node, importer, 2, "keepdim", False))
        numbers = integers_of(x, importer, most=most)
        if axis is None:
            numbers = builder.emit(relax.op.reshape(numbers, [-1]))
        place = builder.emit(relax.op.argmax(numbers, 0 if axis is None else axis, keepdims=keeps))
        return builder.emit(relax.op.reshape(place, shape_of(node, importer)))

    return convert


def extreme_and_place(most: bool) -> Converter:
    """Return a converter of an axis's largest element, unless ``most`` smallest, and its index."""
    value, place = extreme(LARGEST if most else SMALLEST), place_of_extreme(most)
    return lambda node, importer: (value(node, importer), place(node, importer))


def in_order(node: Any, importer: Any) -> tuple[Any, Any]:
    """Convert a sort to elements and their indices; equal elements keep their order."""
    stable = node.target.__name__ == "sort.stable"
    axis = argument(node, importer, 2 if stable else 1, "dim", -1)
    descending = bool(argument(node, importer, 3 if stable else 2, "descending", False))
    return _ordered(importer.env[node.args[0]], axis, descending, importer)


def most_in_order(node: Any, importer: Any) -> tuple[Any, Any]:
    """Convert ``topk``: some of the largest or smallest elements, in order, and their indices."""
    builder, count = importer.block_builder, node.args[1]
    x = importer.env[node.args[0]]
    axis = argument(node, importer, 2, "dim", -1) % len(x.ty.shape)
    largest = bool(argument(node, importer, 3, "largest", True))
    both = _ordered(x, axis, largest, importer)
    first, second = (
        builder.emit(relax.op.strided_slice(one, [axis], [0], [count], [1])) for one in both
    )
    return first, second


def _ordered(x: Any, axis: int, descending: bool, importer: Any) -> tuple[Any, Any]:
    builder = importer.block_builder
    numbers = integers_of(x, importer, most=True)
    places = builder.emit(relax.op.argsort(numbers, axis, descending, "int64"))
    return builder.emit(relax.op.gather_elements(x, places, axis)), places


def running_extreme(most: bool) -> Converter:
    """Return a converter of the elements' running maximum if ``most``, else minimum, and its index.

    The index is that of the last of equal elements.
    """

    def convert(node: Any, importer: Any) -> Any:
        builder, x, axis = importer.block_builder, importer.env[node.args[0]], node.args[1]
        last = len(x.ty.shape) - 1
        order = list(range(last + 1))
        order[axis], order[last] = order[last], order[axis]
        rows = builder.emit(relax.op.permute_dims(integers_of(x, importer, most=most), order))
        flat = builder.emit(relax.op.reshape(rows, [-1, rows.ty.shape[last]]))
        places = builder.emit_te(running_places, flat, primfunc_name_hint="running")
        places = builder.emit(relax.op.reshape(places, rows.ty.shape))
        places = builder.emit(relax.op.permute_dims(places, order))
        return builder.emit(relax.op.gather_elements(x, places, axis)), places

    return convert


def running_places(numbers: Any) -> Any:
    """Compute the last index of the largest integer up to each column of [rows, columns]."""
    rows, columns = numbers.shape

    def loop(sources: Any, outs: Any) -> Any:
        source, out = (script.buffer_proxy(buffer) for buffer in (sources[0], outs[0]))
        with IRBuilder() as builder:
            with script.serial(0, rows) as row, script.serial(0, columns) as column:
                before = tirx.max(column - 1, 0)
                with script.If(column == 0):
                    with script.Then():
                        out[row, column] = tirx.const(0, "int64")
                    with script.Else():
                        chosen = source[row, column] >= source[row, out[row, before]]
                        here = tirx.Cast("int64", column)
                        out[row, column] = tirx.Select(chosen, here, out[row, before])
            return builder.get()

    buffers = (
        tirx.decl_buffer((rows, columns), dtype, name, layout=None)
        for dtype, name in ((numbers.dtype, "numbers"), ("int64", "places"))
    )
    inside, outside = ([buffer] for buffer in buffers)
    return te.extern(
        [(rows, columns)], [numbers], loop, name="running", in_buffers=inside,
        out_buffers=outside, dtype="int64",
    )  # fmt: skip
