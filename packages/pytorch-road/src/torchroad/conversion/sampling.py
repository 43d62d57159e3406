# SPDX-License-Identifier: Apache-2.0
"""Conversion of ``grid_sample``: images read at the points of a grid.

TVM's importer expects the grid's coordinates in front of its points, and gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.relax.frontend.nn.llm._vector_math import const, polynomial

SAMPLERS = ("grid_sampler_2d.default", "grid_sampler_3d.default")
# Weights of bicubic interpolation by the distance, below 1 and from 1 to 2, as torch's with -0.75.
CUBIC_NEAR, CUBIC_FAR = [1.0, 0.0, -2.25, 1.25], [3.0, -6.0, 3.75, -0.75]


class Interpolation(IntEnum):
    """The use of neighbouring elements, by torch's number."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2


class Padding(IntEnum):
    """The elements beyond an image, by torch's number."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


@dataclass(frozen=True)
class Sampler:
    """The settings of ``grid_sample``.

    Attributes:
        interpolation: use of neighbouring elements.
        padding: elements beyond the image.
        corners: -1 and 1 are the centres of the first and the last element, not their outer edges.
    """

    interpolation: Interpolation
    padding: Padding
    corners: bool

    @property
    def count(self) -> int:
        """The number of elements of an axis that a point reads."""
        return {Interpolation.LINEAR: 2, Interpolation.NEAREST: 1, Interpolation.CUBIC: 4}[
            self.interpolation
        ]

    def position(self, point: Any, size: Any) -> Any:
        """Return the position on an axis, in elements, of a coordinate from -1 to 1."""
        if self.corners:
            place = (point + const(1)) * const(0.5) * (size - const(1))
        else:
            place = ((point + const(1)) * size - const(1)) * const(0.5)
        # Bicubic interpolation pads each of its elements instead.
        return place if self.interpolation is Interpolation.CUBIC else self.padded(place, size)

    def padded(self, place: Any, size: Any) -> Any:
        """Return a position after padding moves it into the image; unchanged with ZEROS."""
        if self.padding is Padding.ZEROS:
            return place
        if self.padding is Padding.REFLECTION:
            edge = const(0 if self.corners else -0.5)
            span = tirx.max(size - const(1) if self.corners else size, const(0.5))
            off = te.abs(place - edge)
            flips = te.floor(off / span)
            rest = off - flips * span
            is_odd = flips - const(2) * te.floor(flips * const(0.5)) > const(0.5)
            place = tirx.Select(is_odd, span - rest, rest) + edge
        return tirx.min(tirx.max(place, const(0)), size - const(1))

    def element(self, place: Any, tap: Any, size: Any) -> Any:
        """Return the index of the ``tap``-th element that a position reads; -1 beyond the image."""
        if self.interpolation is Interpolation.NEAREST:
            index = te.nearbyint(place)
        elif self.interpolation is Interpolation.LINEAR:
            index = te.floor(place) + tap
        else:
            index = self.padded(te.floor(place) + tap - const(1), size)
        # Maxima and minima map a NaN to -1, too.
        near = tirx.min(tirx.max(index, const(-1)), size)
        return tirx.Cast("int32", tirx.Select(near >= size, const(-1), near))

    def share(self, place: Any, tap: Any) -> Any:
        """Return the weight of the ``tap``-th element that a position reads."""
        if self.interpolation is Interpolation.NEAREST:
            return const(1)
        rest = place - te.floor(place)
        if self.interpolation is Interpolation.LINEAR:
            return tirx.Select(tap > const(0.5), rest, const(1) - rest)
        distance = te.abs(rest + const(1) - tap)
        near, far = polynomial(distance, CUBIC_NEAR), polynomial(distance, CUBIC_FAR)
        return tirx.Select(distance > const(1), far, near)


def sampled(node: Any, importer: Any) -> Any:
    """Convert an operator of ``SAMPLERS``."""
    x, grid = (importer.env[operand] for operand in node.args[:2])
    sampler = Sampler(Interpolation(node.args[2]), Padding(node.args[3]), bool(node.args[4]))
    builder = importer.block_builder
    return builder.emit_te(
        partial(samples, sampler=sampler), x, grid, primfunc_name_hint="grid_sample"
    )


def samples(x: Any, grid: Any, sampler: Sampler) -> Any:
    """Compute the elements of images at points.

    Args:
        x: [batch, channels, sizes].
        grid: [batch, sizes of the result, axes]; an image's last axis has the first coordinate.
        sampler: settings.
    """
    axes, outer = len(x.shape) - 2, grid.shape[:-1]
    spread = (*outer, sampler.count)

    def of_axis(axis: int, value: Callable[..., Any], name: str) -> Any:
        size = tirx.Cast("float32", x.shape[2 + axis])

        def element(*i: Any) -> Any:
            place = sampler.position(grid[(*i[:-1], axes - 1 - axis)], size)
            return value(place, tirx.Cast("float32", i[-1]), size)

        return te.compute(spread, element, name=name)

    indices = [of_axis(axis, sampler.element, "places") for axis in range(axes)]
    shares = [of_axis(axis, lambda p, t, _: sampler.share(p, t), "shares") for axis in range(axes)]
    taps = [te.reduce_axis((0, sampler.count)) for _ in range(axes)]

    def element(batch: Any, channel: Any, *i: Any) -> Any:
        at = [index[(batch, *i, tap)] for index, tap in zip(indices, taps, strict=True)]
        value = x[(batch, channel, *at)]
        for share, tap in zip(shares, taps, strict=True):
            value = value * share[(batch, *i, tap)]
        inside = tirx.all(*(index >= 0 for index in at))
        return te.sum(tirx.if_then_else(inside, value, const(0)), axis=taps)

    return te.compute((outer[0], x.shape[1], *outer[1:]), element, name="samples")
