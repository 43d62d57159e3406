# SPDX-License-Identifier: Apache-2.0
"""Conversion of pools: maxima of windows and their indices, averages with a given divisor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from torchroad.conversion.arguments import Converter, argument
from torchroad.conversion.extremes import LARGEST, integers_of, least_of
from torchroad.conversion.sizes import shape_of

# Operators that reduce the last two or three axes to maxima of a given size.
ADAPTIVE_MAXIMA = ("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
# A maximum's index in the lower half of an integer, which has the number's key in its upper half.
HALF, MOST_INDEX = 1 << 32, (1 << 31) - 1


@dataclass(frozen=True)
class Windows:
    """The windows of an axis.

    Attributes:
        count: number of windows.
        extent: most elements of a window.
        place: maps a window and a number of an element to an index of the axis.
        may_leave: an index may be outside of the axis.
    """

    count: int
    extent: int
    place: Callable[[Any, Any], Any]
    may_leave: bool = False


def maximum_pool(axes: int) -> Converter:
    """Return a converter of the maxima of windows of the last ``axes`` axes."""

    def convert(node: Any, importer: Any) -> Any:
        window = of_axes(node.args[1], axes)
        steps = of_axes(argument(node, importer, 2, "stride") or window, axes)
        padding = of_axes(argument(node, importer, 3, "padding", 0), axes)
        spread = of_axes(argument(node, importer, 4, "dilation", 1), axes)
        ceils = bool(argument(node, importer, 5, "ceil_mode", False))
        counts = [size for size in shape_of(node, importer)[-axes:] if isinstance(size, int)]
        if len(counts) < axes:
            raise TypeError("an axis that is pooled may not vary")

        def windows(axis: int) -> Windows:
            step, before, apart = steps[axis], padding[axis], spread[axis]

            def place(i: Any, k: Any) -> Any:
                return i * step + k * apart - before

            return Windows(counts[axis], window[axis], place, bool(before or ceils))

        return _maxima(node, importer, [windows(axis) for axis in range(axes)])

    return convert


def adaptive_maximum(node: Any, importer: Any) -> Any:
    """Convert maxima of the last axes to a given size.

    Raises:
        TypeError: an axis varies.
    """
    before = importer.env[node.args[0]].ty.shape
    before = list(before)[-len(node.args[1]) :]
    if any(not isinstance(size, int | tirx.IntImm) for size in before):
        raise TypeError("an axis that is pooled may not vary")
    return _maxima(node, importer, list(map(_shared, map(int, before), node.args[1])))


def _shared(before: int, count: int) -> Windows:
    """Return windows that cover an axis; they overlap if their number does not divide its size."""
    extent = max(-((i + 1) * before // -count) - i * before // count for i in range(count))

    def place(i: Any, k: Any) -> Any:
        begin = tirx.floordiv(i * before, count)
        end = tirx.floordiv((i + 1) * before + (count - 1), count)
        # A shorter window repeats its last element.
        return tirx.min(begin + k, end - 1)

    return Windows(count, extent, place)


def _maxima(node: Any, importer: Any, windows: Sequence[Windows]) -> Any:
    """Return the maxima of windows; with their indices if the program reads them."""
    builder, x = importer.block_builder, importer.env[node.args[0]]

    def maxima(data: Any) -> Any:
        return _reduced(data, windows, LARGEST, lambda at, _: data(*at))

    def packed(numbers: Any) -> Any:
        def number(at: Any, place: Any) -> Any:
            upper = tirx.Cast("int64", numbers(*at)) * half
            return upper + (most - tirx.Cast("int64", place))

        half, most = (tirx.const(value, "int64") for value in (HALF, MOST_INDEX))
        best = _reduced(numbers, windows, te.max, number)
        return te.compute(best.shape, lambda *i: most - tirx.floormod(best(*i), half))

    values = builder.emit_te(maxima, x, primfunc_name_hint="maxima")
    if not isinstance(node.meta["val"], tuple | list):
        return values
    if not any(user.args[1] == 1 for user in node.users):
        return values, None
    numbers = integers_of(x, importer, most=True)
    return values, builder.emit_te(packed, numbers, primfunc_name_hint="places_of_maxima")


def _reduced(
    x: Any, windows: Sequence[Windows], reduced: Any, number: Callable[[Any, Any], Any]
) -> Any:
    """Reduce the elements of windows of the last axes.

    Args:
        x: data.
        windows: windows of the last axes.
        reduced: reduction.
        number: maps an element's indices, and its index among the last axes, to a number.
    """
    outer = len(x.shape) - len(windows)
    sizes = x.shape[outer:]
    inner = [te.reduce_axis((0, axis.extent)) for axis in windows]

    def element(*i: Any) -> Any:
        at = [axis.place(o, k) for axis, o, k in zip(windows, i[outer:], inner, strict=True)]
        place: Any = 0
        for index, size in zip(at, sizes, strict=True):
            place = place * size + index
        value = number((*i[:outer], *at), place)
        inside = [
            condition
            for axis, index, size in zip(windows, at, sizes, strict=True)
            if axis.may_leave
            for condition in (index >= 0, index < size)
        ]
        if inside:
            value = tirx.if_then_else(tirx.all(*inside), value, least_of(str(value.ty.dtype)))
        return reduced(value, axis=inner)

    return te.compute((*x.shape[:outer], *(axis.count for axis in windows)), element, name="pool")


def average_pool(axes: int) -> Converter:
    """Return a converter of average pooling that honours a divisor, unlike TVM's importer."""

    def convert(node: Any, importer: Any) -> Any:
        average = getattr(importer, f"_avg_pool{axes}d")
        divisor = argument(node, importer, 6, "divisor_override")
        if divisor is None:
            return average(node)
        x, builder = importer.env[node.args[0]], importer.block_builder
        window = of_axes(node.args[1], axes)
        steps = of_axes(argument(node, importer, 2, "stride") or window, axes)
        before = of_axes(argument(node, importer, 3, "padding", 0), axes)
        sizes = [tensor.meta["val"].shape[-axes:] for tensor in (node.args[0], node)]
        # Padding fills every window, so that all averages have the same divisor.
        width = [0] * 2 * (len(x.ty.shape) - axes)
        for inputs, outputs, extent, step, zeros in zip(*sizes, window, steps, before, strict=True):
            width += [zeros, max(0, (outputs - 1) * step + extent - inputs - zeros)]
        x = builder.emit(relax.op.nn.pad(x, width))
        averages = getattr(importer, f"_avg_pool{axes}d_impl")(x, window, steps)
        factor = relax.const(math.prod(window) / divisor, str(x.ty.dtype))
        return builder.emit(relax.op.multiply(averages, factor))

    return convert


def of_axes(value: Any, axes: int) -> list[int]:
    """Return a number for each axis; a single number applies to all axes."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * axes if len(numbers) == 1 else numbers
