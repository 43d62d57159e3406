# SPDX-License-Identifier: Apache-2.0
"""Convolutions of each channel by itself, as calls of the depthwise kernel.

The pattern is one block ``out[n, c, i, j] += data[n, d, i * s + a * t, j * u + b * v] *
weight[c, 0, a, b]`` from zero, over float32, where d is c or c divided by a number, and data is
padded already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import arith, tirx
from tvm_ffi import structural_equal

from ..stages import Stage, factors_of, same_extents
from ..tir import PatternMismatch, block_of, require_dense_float32, substitute, uses, whole
from .calls import call
from .parts import int64

MISFIT = "it is not a convolution of each channel by itself"


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution: one kernel for each output channel.

    Attributes:
        stage: the sums.
        out: [batch, channels, rows, columns].
        data: [batch, channels of its own, height, width].
        weight: [channels, 1, kernel rows, kernel columns].
        channel: index of data's channel, in the variable of the block's second axis.
        steps: strides and dilations: of a row's index, then of a column's.
        unpacking: empty, as such weights are not quantized.
    """

    stage: Stage
    out: Any
    data: Any
    weight: Any
    channel: Any
    steps: tuple[tuple[int, int], tuple[int, int]]
    unpacking: tuple[Stage, ...] = ()


def match_depthwise(stage: Stage) -> Depthwise:
    """Read a product as a depthwise convolution.

    Raises:
        PatternMismatch: the sum is not a depthwise convolution.
    """
    block, factors = stage.block, factors_of(stage)
    out, (data, weight) = block.body.buffer, (load.buffer for load in factors)
    axes = [axis.var for axis in block.iter_vars]
    kinds = [axis.iter_type for axis in block.iter_vars]
    if kinds != [tirx.IterVar.DataPar] * 4 + [tirx.IterVar.CommReduce] * 2:
        raise PatternMismatch(MISFIT)
    if not len(out.shape) == len(data.shape) == len(weight.shape) == 4:
        raise PatternMismatch(MISFIT)
    image, channel, row, column, a, b = axes
    of_image, of_channel, of_row, of_column = factors[0].indices
    steps = _steps(of_row, row, a), _steps(of_column, column, b)
    zero = factors[1].indices[1]
    expected = tirx.BufferStore(
        out,
        tirx.BufferLoad(out, axes[:4])
        + tirx.BufferLoad(data, [image, of_channel, of_row, of_column])
        * tirx.BufferLoad(weight, [channel, zero, a, b]),
        axes[:4],
    )
    others = [var for var in axes if not var.same_as(channel)]
    if (
        not structural_equal(block.body, expected)
        or not of_image.same_as(image)
        or not same_extents([zero], [0])
        or any(uses(of_channel, var) for var in others)
    ):
        raise PatternMismatch(MISFIT)
    require_dense_float32(out, data, weight)
    extents = [axis.dom.extent for axis in block.iter_vars]
    kernel = [weight.shape[0], *weight.shape[2:]]
    if not same_extents(extents[:4], out.shape) or not same_extents(
        [extents[1], *extents[4:]], kernel
    ):
        raise PatternMismatch("its loops do not cover the buffers")
    return Depthwise(stage, out, data, weight, of_channel, steps)


def _steps(index: Any, place: Any, tap: Any) -> tuple[int, int]:
    """Return stride and dilation from an index ``stride * place + dilation * tap``.

    Raises:
        PatternMismatch: the index has another form.
    """
    found = arith.detect_linear_equation(index, [place, tap])
    if len(found) != 3 or not all(isinstance(one, tirx.IntImm) for one in found):
        raise PatternMismatch(MISFIT)
    stride, dilation, offset = map(int, found)
    if offset or stride < 1 or dilation < 1:
        raise PatternMismatch(MISFIT)
    return stride, dilation


def call_for_each_channel(found: Depthwise, symbol: str, out: Any) -> Any:
    """Return the statement that convolves the channels in parallel.

    Args:
        found: the convolution.
        symbol: the depthwise kernel.
        out: the buffer that is written in place of found.out.
    """
    axes = found.stage.block.iter_vars[:2]
    image, channel = (tirx.Var(name, axis.var.ty) for name, axis in zip("nc", axes, strict=True))
    own = substitute(found.channel, {axes[1].var: channel})
    _, channels, rows, columns = (int64(extent) for extent in out.shape)
    _, sources, height, width = (int64(extent) for extent in found.data.shape)
    kernel = [int64(extent) for extent in found.weight.shape[2:]]
    number = int64(image) * channels + int64(channel)
    source = int64(image) * sources + int64(own)
    pointers = [
        out.access_ptr("w", offset=number * rows * columns),
        found.data.access_ptr("r", offset=source * height * width),
        found.weight.access_ptr("r", offset=int64(channel) * kernel[0] * kernel[1]),
    ]
    (row_stride, row_dilation), (column_stride, column_dilation) = found.steps
    steps = map(int64, (row_stride, column_stride, row_dilation, column_dilation))
    statement = call(symbol, [*pointers, rows, columns, *kernel, *steps, width])
    reads = [whole(found.data), whole(found.weight)]
    body = block_of(statement, found.stage.name, reads, [whole(out)])
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
    for loop, axis, kind in reversed([*zip((image, channel), axes, kinds, strict=True)]):
        body = tirx.For(loop, axis.dom.min, axis.dom.extent, kind, body)
    return body
