# SPDX-License-Identifier: Apache-2.0
"""Conversion of convolutions of one, two and three dimensions to products for kernels.

A convolution is the product of its inputs' patches with its weights, group by group. A depthwise
convolution has a separate kernel. A transposed convolution is a product, whose results are then
summed for each output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from torchroad.conversion import formulas
from torchroad.conversion.pools import of_axes


@dataclass(frozen=True)
class Window:
    """The window of a convolution along the axes of an image.

    Attributes:
        kernel: sizes of the kernel.
        stride: distances between outputs.
        padding: numbers of zeros on both sides.
        dilation: distances between a kernel's elements.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def area(self) -> int:
        """The number of elements of the kernel."""
        return math.prod(self.kernel)

    def outputs(self, image: Sequence[Any]) -> list[Any]:
        """Return the sizes of the convolution's output for an image of these sizes."""
        axes = zip(image, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]

    def inputs(self, image: Sequence[Any], more: Sequence[int]) -> list[Any]:
        """Return the sizes of a transposed convolution's output, with ``more`` added at the end."""
        axes = zip(image, self.kernel, self.stride, self.padding, self.dilation, more, strict=True)
        return [(size - 1) * s - 2 * p + d * (k - 1) + m + 1 for size, k, s, p, d, m in axes]

    def flat(self) -> Window:
        """Return the window with a leading axis of size 1, for images with a single row."""
        return Window((1, *self.kernel), (1, *self.stride), (0, *self.padding), (1, *self.dilation))


def convolution(node: Any, importer: Any) -> Any:
    """Convert ``convolution.default`` to a product, or to a depthwise convolution."""
    x, weight, bias, *numbers, transposed, more, groups = importer.retrieve_args(node)
    builder, axes = importer.block_builder, len(weight.ty.shape) - 2
    kernel = tuple(int(size) for size in list(weight.ty.shape)[2:])
    window = Window(kernel, *(tuple(of_axes(sizes, axes)) for sizes in numbers))
    batch, _, *image = x.ty.shape
    if transposed:
        sizes = window.inputs(image, of_axes(more, axes))
        outputs = _transposed(x, weight, window, groups, sizes, builder)
        outputs = builder.emit(relax.op.reshape(outputs, [batch, outputs.ty.shape[1], *sizes]))
    else:
        outputs = product(x, weight, window, groups, builder)
    if bias is None:
        return outputs
    bias = builder.emit(relax.op.reshape(bias, [1, bias.ty.shape[0], *[1] * axes]))
    return builder.emit(relax.op.add(outputs, bias))


def product(x: Any, weight: Any, window: Window, groups: int, builder: Any) -> Any:
    """Emit a convolution without bias as a product, or as a depthwise convolution."""
    batch, channels, *image = x.ty.shape
    of_each = groups == int(channels) and int(weight.ty.shape[1]) == 1 and len(image) < 3
    outputs = (_depthwise if of_each else _grouped)(x, weight, window, groups, builder)
    sizes = window.outputs(image)
    return builder.emit(relax.op.reshape(outputs, [batch, outputs.ty.shape[1], *sizes]))


def _grouped(x: Any, weight: Any, window: Window, groups: int, builder: Any) -> Any:
    """Compute outputs [batch, outputs, places] as patches times weights, for each group."""
    outputs, inputs, *_ = (int(size) for size in weight.ty.shape)
    rows = builder.emit_te(
        partial(patches, groups=groups, window=window), x, primfunc_name_hint="patches"
    )
    batch, _, places, _ = rows.ty.shape
    width = inputs * window.area
    if groups == 1:
        rows = builder.emit(relax.op.reshape(rows, [batch, places, width]))
        matrix = builder.emit(relax.op.reshape(weight, [outputs, width]))
        out = builder.emit_te(formulas.nt_matmul, rows, matrix, primfunc_name_hint="convolution")
        return builder.emit(relax.op.permute_dims(out, [0, 2, 1]))
    matrix = builder.emit(relax.op.reshape(weight, [1, groups, outputs // groups, width]))
    out = builder.emit_te(formulas.nt_batch_matmul, rows, matrix, primfunc_name_hint="convolution")
    out = builder.emit(relax.op.permute_dims(out, [0, 1, 3, 2]))
    return builder.emit(relax.op.reshape(out, [batch, outputs, places]))


def _depthwise(x: Any, weight: Any, window: Window, _groups: int, builder: Any) -> Any:
    """Compute outputs [batch, outputs, rows, columns] with a filter for each channel."""
    if len(window.kernel) == 1:
        window = window.flat()
        batch, channels, length = x.ty.shape
        x = builder.emit(relax.op.reshape(x, [batch, channels, 1, length]))
        weight = builder.emit(relax.op.reshape(weight, [weight.ty.shape[0], 1, *window.kernel]))
    return builder.emit_te(
        partial(depthwise, window=window), x, weight, primfunc_name_hint="depthwise"
    )


def _transposed(
    x: Any, weight: Any, window: Window, groups: int, sizes: Sequence[Any], builder: Any
) -> Any:
    """Compute outputs [batch, outputs, ...] of a transposed convolution, with given sizes."""
    batch, channels, *image = x.ty.shape
    inputs, outputs = int(channels) // groups, int(weight.ty.shape[1])
    places = math.prod(image[1:], start=image[0])
    rows = builder.emit(relax.op.reshape(x, [batch, groups, inputs, places]))
    rows = builder.emit(relax.op.permute_dims(rows, [0, 1, 3, 2]))
    matrix = builder.emit(relax.op.reshape(weight, [1, groups, inputs, outputs * window.area]))
    matrix = builder.emit(relax.op.permute_dims(matrix, [0, 1, 3, 2]))
    out = builder.emit_te(formulas.nt_batch_matmul, rows, matrix, primfunc_name_hint="convolution")
    fold = partial(folded, window=window, image=list(image), sizes=list(sizes))
    return builder.emit_te(fold, out, primfunc_name_hint="folded")


def patches(x: Any, groups: int, window: Window) -> Any:
    """Compute the inputs of each output of a convolution, as rows of a matrix for each group.

    Args:
        x: [batch, channels, ...].
        groups: of channels.
        window: of the convolution.

    Returns:
        [batch, groups, outputs, channels of a group * elements of the kernel].
    """
    batch, channels, *image = x.shape
    sizes = window.outputs(image)
    whole = _padded(x, window.padding)
    inputs = channels // groups

    def element(n: Any, group: Any, place: Any, k: Any) -> Any:
        taps = _places(k % window.area, window.kernel)
        axes = zip(_places(place, sizes), window.stride, taps, window.dilation, strict=True)
        channel = group * inputs + k // window.area
        return whole[(n, channel, *(at * s + tap * d for at, s, tap, d in axes))]

    shape = (batch, groups, math.prod(sizes[1:], start=sizes[0]), inputs * window.area)
    return te.compute(shape, element, name="patches")


def depthwise(x: Any, weight: Any, window: Window) -> Any:
    """Compute the depthwise convolution, with separate filters for each channel.

    Args:
        x: [batch, channels, height, width].
        weight: [outputs, 1, kernel height, kernel width]; outputs is a multiple of channels.
        window: of the convolution.

    Returns:
        [batch, outputs, rows, columns].
    """
    batch, channels, *image = x.shape
    outputs, _, *kernel = weight.shape
    whole, share = _padded(x, window.padding), int(outputs) // int(channels)
    a, b = (te.reduce_axis((0, size), name=name) for size, name in zip(kernel, "ab", strict=True))
    (up, right), (down, along) = window.stride, window.dilation

    def element(n: Any, c: Any, i: Any, j: Any) -> Any:
        value = whole[n, c if share == 1 else c // share, i * up + a * down, j * right + b * along]
        return te.sum(value * weight[c, 0, a, b], axis=[a, b])

    return te.compute((batch, outputs, *window.outputs(image)), element, name="depthwise")


def folded(products: Any, window: Window, image: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Compute a transposed convolution's outputs from products of each input with the kernel.

    Args:
        products: [batch, groups, places, outputs of a group * elements of the kernel].
        window: of the convolution.
        image: sizes of the inputs.
        sizes: sizes of the outputs.

    Returns:
        [batch, outputs, ...].
    """
    batch, groups, _, width = products.shape
    outputs = width // window.area
    tap = te.reduce_axis((0, window.area), name="tap")

    def element(*i: Any) -> Any:
        n, c, *at = i
        taps = _places(tap, window.kernel)
        axes = zip(at, window.padding, taps, window.dilation, strict=True)
        offsets = [coordinate + p - t * d for coordinate, p, t, d in axes]
        place: Any = 0
        inside = []
        for offset, step, size in zip(offsets, window.stride, image, strict=True):
            inside += [offset >= 0, offset % step == 0, offset // step < size]
            place = place * size + offset // step
        value = products[n, c // outputs, place, c % outputs * window.area + tap]
        return te.sum(tirx.if_then_else(tirx.all(*inside), value, _zero()), axis=tap)

    return te.compute((batch, groups * outputs, *sizes), element, name="folded")


def _places(number: Any, sizes: Sequence[Any]) -> list[Any]:
    """Return the indices of an element from its flat number."""
    indices: list[Any] = []
    for size in reversed(sizes[1:]):
        indices.append(number % size)
        number = number // size
    return [number, *reversed(indices)]


def _padded(x: Any, padding: Sequence[int]) -> Any:
    if not any(padding):
        return x
    image = x.shape[2:]

    def element(*i: Any) -> Any:
        n, c, *at = i
        inside = []
        for coordinate, before, size in zip(at, padding, image, strict=True):
            inside += [coordinate >= before, coordinate < size + before] if before else []
        source = [coordinate - before for coordinate, before in zip(at, padding, strict=True)]
        return tirx.if_then_else(tirx.all(*inside), x[(n, c, *source)], _zero())

    wide = [size + 2 * before for size, before in zip(image, padding, strict=True)]
    return te.compute((*x.shape[:2], *wide), element, name="padded")


def _zero() -> Any:
    return tirx.const(0, "float32")
