# SPDX-License-Identifier: Apache-2.0
"""Linear layers, convolutions and poolings in int8: results in numpy, layouts in DRAM.

A device sees both alike: pictures of positions by blocks of channels. A linear layer is a picture
of one column under a kernel of one position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, lcm
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from accelerator.device import Device
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import AluOp
from costmodel.estimate.window import Axis

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Number = npt.NDArray[Any]
OPERAND = 128  # largest magnitude of an int8 value
FLOAT_EXACT = 1024  # int8 products whose sum is at most 1 << 24, exact in float32
LEAST = -128  # int8 value
MOST_PADDING = 15  # of a LOAD, on each side
MOST_ROUNDED = 15  # half of 1 << 15 is the largest rounding constant that fits an immediate


@dataclass(frozen=True)
class Requantisation:
    """The form in which sums leave the device: shifted right, rounded, in ``width`` bytes.

    ``width`` 4 with ``shift`` 0 is the exact sum, which the CPU multiplies by the scales of token
    and channel in float. Narrower results saturate. The device has no fixed-point multiplication:
    a token's scale is known only at run time, and an integer scale of a channel cannot include it.

    Attributes:
        width: bytes of a result.
        shift: to the right, of all channels.
        channels: each output channel has an addend and a shift of its own, which are operands.
        residual: left shift of an int8 operand that is added to the shifted sums; a negative shift
            is a rounded one to the right; None: no operand.
        least, most: limits of the activation function, None for those of the width.
    """

    width: int = 4
    shift: int = 0
    channels: bool = False
    residual: int | None = None
    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.width not in (1, 2, 4) or not 0 <= self.shift <= MOST_ROUNDED:
            reason = f"requantisation to {self.width} bytes with a shift of {self.shift}"
            remedy = f"bytes: 1, 2 or 4; shift: 0 to {MOST_ROUNDED}"
            raise AcceleratorError(reason, remedy=remedy)
        if self.residual is not None and self.residual < -MOST_ROUNDED:
            reason = f"requantisation with a residual shifted by {self.residual}"
            raise AcceleratorError(reason, remedy=f"residual: -{MOST_ROUNDED} or more")
        if self.shift and self.channels:
            raise AcceleratorError("requantisation with a common shift and with channels' shifts")

    @property
    def half(self) -> int:
        """The addend that makes the right shift round to nearest, halves upwards."""
        return 1 << self.shift >> 1

    @property
    def limits(self) -> tuple[int, int]:
        """Return the least and largest result that the width and the activation allow."""
        most = 1 << (8 * self.width - 1)
        low = -most if self.least is None else max(self.least, -most)
        return low, most - 1 if self.most is None else min(self.most, most - 1)

    def clips(self, inputs: int) -> list[tuple[AluOp, int]]:
        """Return the ALU's operations that keep a sum over ``inputs`` products in the limits."""
        low, high = self.limits
        operands = self.channels or self.residual is not None
        active = self.least is not None or self.most is not None
        large = (inputs * OPERAND**2 + self.half) >> self.shift > high
        narrow = self.width < 4 and (operands or active or large)
        listed = [(AluOp.MIN, high, self.most), (AluOp.MAX, low, self.least)]
        # An immediate has 16 bits: limits of 32-bit sums are only those of the activation.
        return [(op, limit) for op, limit, given in listed if narrow or given is not None]

    def apply(
        self,
        sums: Int32,
        addends: Int32 | None = None,
        shifts: Int32 | None = None,
        residual: Int8 | None = None,
    ) -> Int32:
        """Return the sums shifted, rounded, added and saturated, as int32.

        Args:
            sums: exact.
            addends: broadcast over the sums; include the half of a rounding shift.
            shifts: broadcast over the sums.
            residual: of the sums' shape.
        """
        addend = np.int32(self.half) if addends is None else addends
        results = (sums + addend) >> (self.shift if shifts is None else shifts)
        if self.residual is not None and residual is not None:
            left, right = max(self.residual, 0), max(-self.residual, 0)
            results = results + (((residual.astype(np.int32) << left) + (1 << right >> 1)) >> right)
        low, high = self.limits
        clipped: Int32 = np.clip(results, low, high).astype(np.int32)
        return clipped


EXACT = Requantisation()
BYTE = Requantisation(1)


@dataclass(frozen=True)
class Geometry:
    """A layer in blocks of a device.

    Attributes:
        rows, columns: of the picture, with the kernel's windows.
        outputs, inputs: blocks of channels of a bundle, which shares no channels with others.
        bundles: their number; more than 1 if a convolution has groups.
    """

    rows: Axis
    columns: Axis
    outputs: int
    inputs: int
    bundles: int = 1

    @property
    def kernel(self) -> int:
        """The number of positions of the kernel."""
        return self.rows.kernel * self.columns.kernel

    @property
    def sums(self) -> int:
        """The number of accumulator elements of a bundle."""
        return self.rows.outputs * self.columns.outputs * self.outputs


@dataclass(frozen=True)
class LinearLayer:
    """A product of ``rows x inputs`` values by the transpose of ``outputs x inputs`` weights.

    In attention both operands are values: ``weighted`` is False.
    """

    name: str
    rows: int
    outputs: int
    inputs: int
    requantisation: Requantisation = EXACT
    weighted: bool = True

    def __post_init__(self) -> None:
        if min(self.rows, self.outputs, self.inputs) < 1:
            raise AcceleratorError(f"{self.name}: no extent may be below 1")
        _check_sums(self)

    @property
    def summands(self) -> int:
        """The number of products in a sum."""
        return self.inputs

    @property
    def macs(self) -> int:
        """The multiply-accumulates, without padding."""
        return self.rows * self.outputs * self.inputs

    @property
    def extents(self) -> list[int]:
        """Rows, outputs and inputs."""
        return [self.rows, self.outputs, self.inputs]

    def geometry(self, device: Device) -> Geometry:
        """Return the layer in blocks of a device."""
        sides = (device.batch, device.outputs, device.inputs)
        down, across, deep = (-(-e // s) for e, s in zip(self.extents, sides, strict=True))
        return Geometry(Axis(down), Axis(1), across, deep)

    def operands(self, seed: int) -> tuple[Int8, Int8]:
        """Return random int8 values and weights of the layer."""
        random = np.random.default_rng(seed)
        values = random.integers(-128, 128, (self.rows, self.inputs), dtype=np.int8)
        return values, random.integers(-128, 128, (self.outputs, self.inputs), dtype=np.int8)

    def reference(self, values: Int8, weights: Int8) -> Int32:
        """Return the layer's requantised result in numpy: ``rows x outputs``."""
        sums = np.zeros((self.rows, self.outputs), dtype=np.int32)
        for at in range(0, self.inputs, FLOAT_EXACT):
            part = slice(at, at + FLOAT_EXACT)
            product = values[:, part].astype(np.float32) @ weights[:, part].astype(np.float32).T
            sums += product.astype(np.int32)
        return self.requantisation.apply(sums)

    def packed_values(self, values: Int8, device: Device) -> Int8:
        """Return values as in DRAM: block rows x block columns, each block batch x inputs.

        Zeros fill the blocks at the edges.
        """
        return pack(values, device.batch, device.inputs)

    def packed_weights(self, weights: Int8, device: Device) -> Int8:
        """Return blocks of weights: 1 x outputs x inputs x 1, each block outputs x inputs."""
        return pack(weights, device.outputs, device.inputs)[None, :, :, None]

    def unpacked(self, planes: Bytes) -> Int32:
        """Return the result from byte planes x rows x columns x outputs of blocks."""
        return unpack(planes[:, :, 0], self.rows, self.outputs)


@dataclass(frozen=True)
class Convolution:
    """A convolution of a picture, ``1 x inputs x height x width``.

    Attributes:
        inputs, outputs: channels.
        rows, columns: the picture's height and width, with the kernel's windows.
        groups: bundles of channels that are convolved apart; as many as channels: depthwise.
    """

    name: str
    inputs: int
    outputs: int
    rows: Axis
    columns: Axis
    groups: int = 1
    requantisation: Requantisation = EXACT

    def __post_init__(self) -> None:
        if min(self.inputs, self.outputs, self.groups) < 1:
            raise AcceleratorError(f"{self.name}: no extent may be below 1")
        if self.inputs % self.groups or self.outputs % self.groups:
            reason = f"{self.groups} groups do not divide {self.inputs} and {self.outputs} channels"
            raise AcceleratorError(f"{self.name}: {reason}")
        check_axes(self.name, self.rows, self.columns)
        _check_sums(self)

    @property
    def summands(self) -> int:
        """The number of products in a sum."""
        return self.inputs // self.groups * self.rows.kernel * self.columns.kernel

    @property
    def macs(self) -> int:
        """The multiply-accumulates, without padding of channels."""
        return self.outputs * self.rows.outputs * self.columns.outputs * self.summands

    @property
    def extents(self) -> list[int]:
        """Rows and columns of the result, outputs, inputs, positions of the kernel."""
        kernel = self.rows.kernel * self.columns.kernel
        return [self.rows.outputs, self.columns.outputs, self.outputs, self.inputs, kernel]

    def _bundle(self, device: Device) -> int:
        """Return how many groups a bundle has: the fewest that fill whole blocks, or else all."""
        inputs, outputs = self.inputs // self.groups, self.outputs // self.groups
        whole = lcm(
            device.inputs // gcd(device.inputs, inputs),
            device.outputs // gcd(device.outputs, outputs),
        )
        return min(whole, self.groups)

    def geometry(self, device: Device) -> Geometry:
        """Return the layer in blocks of a device."""
        bundle = self._bundle(device)
        outputs, inputs = (
            -(-channels // self.groups * bundle // block)
            for channels, block in ((self.outputs, device.outputs), (self.inputs, device.inputs))
        )
        return Geometry(self.rows, self.columns, outputs, inputs, -(-self.groups // bundle))

    def operands(self, seed: int) -> tuple[Int8, Int8, Int32 | None, Int8 | None]:
        """Return random arguments of :meth:`reference`; None for those that the layer lacks."""
        random = np.random.default_rng(seed)
        shape = 1, self.inputs, self.rows.extent, self.columns.extent
        values = random.integers(-128, 128, shape, dtype=np.int8)
        kernel = self.rows.kernel, self.columns.kernel
        shape = self.outputs, self.inputs // self.groups, *kernel
        weights = random.integers(-128, 128, shape, dtype=np.int8)
        channels = residual = None
        if self.requantisation.channels:
            addends = random.integers(-(1 << 16), 1 << 16, self.outputs)
            channels = np.stack([addends, random.integers(0, 13, self.outputs)]).astype(np.int32)
        if self.requantisation.residual is not None:
            shape = 1, self.outputs, self.rows.outputs, self.columns.outputs
            residual = random.integers(-128, 128, shape, dtype=np.int8)
        return values, weights, channels, residual

    def reference(
        self,
        values: Int8,
        weights: Int8,
        channels: Int32 | None = None,
        residual: Int8 | None = None,
    ) -> Int32:
        """Return the requantised result in numpy: ``1 x outputs x rows x columns``.

        Args:
            values: ``1 x inputs x height x width``.
            weights: ``outputs x (inputs / groups) x kernel rows x kernel columns``.
            channels: addends and shifts, ``2 x outputs``.
            residual: of the result's shape.
        """
        windows = windows_of(values.astype(np.float64), self.rows, self.columns)
        split = weights.reshape(self.groups, self.outputs // self.groups, -1, len(windows))
        down, across = self.rows.outputs, self.columns.outputs
        sums = np.zeros((self.groups, split.shape[1], down * across))
        for position, window in enumerate(windows):
            # Sums of less than 2**53 are exact in float64.
            part = window.reshape(self.groups, -1, down * across)
            sums += split[..., position].astype(np.float64) @ part
        exact = sums.astype(np.int32).reshape(1, self.outputs, down, across)
        addends, shifts = (None, None) if channels is None else channels[:, :, None, None]
        return self.requantisation.apply(exact, addends, shifts, residual)

    def packed_values(self, values: Int8, device: Device) -> Int8:
        """Return blocks of values: rows x columns x channel blocks, each batch x inputs."""
        shape = self.geometry(device)
        return pack_picture(values, shape.bundles * shape.inputs, device.inputs, device.batch)

    def packed_residual(self, residual: Int8, device: Device) -> Int8:
        """Return blocks of the result's shape: rows x columns x blocks, each batch x outputs."""
        shape = self.geometry(device)
        blocks = shape.bundles * shape.outputs
        return pack_picture(residual, blocks, device.outputs, device.batch)

    def packed_channels(self, channels: Int32, device: Device) -> Int32:
        """Return addend and shift of each block of outputs: blocks x 2 x batch x outputs."""
        shape = self.geometry(device)
        padded = np.zeros((2, shape.bundles * shape.outputs * device.outputs), dtype=np.int32)
        padded[:, : self.outputs] = channels
        blocks = padded.reshape(2, -1, 1, device.outputs).swapaxes(0, 1)
        return np.ascontiguousarray(np.repeat(blocks, device.batch, axis=2))

    def packed_weights(self, weights: Int8, device: Device) -> Int8:
        """Return blocks of weights: bundle x outputs x inputs x position of the kernel.

        Groups that share a block are one product, whose weights between groups are zero.
        """
        shape, bundle = self.geometry(device), self._bundle(device)
        of, by, kernel = self.outputs // self.groups, self.inputs // self.groups, shape.kernel
        dense = np.zeros(
            (
                shape.bundles,
                shape.outputs * device.outputs,
                shape.inputs * device.inputs,
                kernel,
            ),
            dtype=np.int8,
        )
        for group in range(self.groups):
            at, place = divmod(group, bundle)
            part = weights[group * of : (group + 1) * of].reshape(of, by, kernel)
            dense[at, place * of : (place + 1) * of, place * by : (place + 1) * by] = part
        blocks = dense.reshape(
            shape.bundles, shape.outputs, device.outputs, shape.inputs, device.inputs, kernel
        )
        return np.ascontiguousarray(blocks.transpose(0, 1, 3, 5, 2, 4))

    def unpacked(self, planes: Bytes) -> Int32:
        """Return the result from byte planes x rows x columns x outputs of blocks."""
        return unpack_picture(planes, self.outputs)


@dataclass(frozen=True)
class Pooling:
    """The maximum of each window of a picture, ``1 x channels x height x width``."""

    name: str
    channels: int
    rows: Axis
    columns: Axis
    requantisation: Requantisation = BYTE

    def __post_init__(self) -> None:
        check_axes(self.name, self.rows, self.columns)
        for axis in (self.rows, self.columns):
            if max(axis.padding, axis.trailing or 0) >= axis.dilation * (axis.kernel - 1) + 1:
                raise AcceleratorError(f"{self.name}: a window holds nothing but padding: {axis}")

    @property
    def summands(self) -> int:
        """The number of values in a window."""
        return self.rows.kernel * self.columns.kernel

    @property
    def macs(self) -> int:
        """The multiply-accumulates: none."""
        return 0

    @property
    def extents(self) -> list[int]:
        """Rows and columns of the result, channels, positions of the kernel."""
        return [self.rows.outputs, self.columns.outputs, self.channels, self.summands]

    def geometry(self, device: Device) -> Geometry:
        """Return the layer in blocks of a device; each block of channels is a bundle."""
        return Geometry(self.rows, self.columns, 1, 1, -(-self.channels // device.outputs))

    def operands(self, seed: int) -> tuple[Int8]:
        """Return random int8 values of the layer."""
        random = np.random.default_rng(seed)
        shape = 1, self.channels, self.rows.extent, self.columns.extent
        return (random.integers(-128, 128, shape, dtype=np.int8),)

    def reference(self, values: Int8) -> Int32:
        """Return the result in numpy: ``1 x channels x rows x columns``."""
        windows = windows_of(values.astype(np.int32), self.rows, self.columns, LEAST)
        return np.asarray(np.max(windows, axis=0), dtype=np.int32)

    def packed_values(self, values: Int8, device: Device) -> Int8:
        """Return the picture as blocks: rows x columns x channel blocks, each batch x channels."""
        blocks = self.geometry(device).bundles
        return pack_picture(values, blocks, device.outputs, device.batch)

    def unpacked(self, planes: Bytes) -> Int32:
        """Return the result from byte planes x rows x columns x blocks."""
        return unpack_picture(planes, self.channels)


Layer = LinearLayer | Convolution | Pooling
AnyLayer = TypeVar("AnyLayer", bound=Layer)


def named_apart(counts: Mapping[AnyLayer, int]) -> list[tuple[AnyLayer, int]]:
    """Return layers with their counts; the second layer of a name is ``NAME 2``."""
    names: set[str] = set()
    return [
        (replace(layer, name=new_name(layer.name, names)), count) for layer, count in counts.items()
    ]


def new_name(name: str, names: set[str], between: str = " ") -> str:
    """Return the name, with a number behind it if it is in ``names``, and add it to ``names``."""
    number, new = 1, name
    while new in names:
        number += 1
        new = f"{name}{between}{number}"
    names.add(new)
    return new


def _check_sums(layer: Layer) -> None:
    if layer.summands * OPERAND**2 + layer.requantisation.half >= 1 << 31:
        raise AcceleratorError(f"{layer.name}: a sum of {layer.summands} products passes 32 bits")


def check_axes(name: str, rows: Axis, columns: Axis) -> None:
    """Refuse a picture without windows, and padding that a LOAD cannot add.

    Raises:
        AcceleratorError: the message names the layer and the dimension.
    """
    for axis in (rows, columns):
        if min(axis.extent, axis.kernel, axis.stride, axis.dilation, axis.outputs) < 1:
            raise AcceleratorError(f"{name}: the kernel does not fit the picture: {axis}")
        pads = axis.padding, axis.trailing or 0
        if min(pads) < 0 or max(pads) > MOST_PADDING:
            reason = f"padding of {pads}; a LOAD adds 0 to {MOST_PADDING}"
            raise AcceleratorError(f"{name}: {reason}")


def windows_of(picture: Number, rows: Axis, columns: Axis, value: int = 0) -> list[Number]:
    """Return for each position of the kernel the values that meet it, with ``value`` as padding."""
    pads = [(0, 0)] * (picture.ndim - 2)
    for axis in (rows, columns):
        end = (axis.outputs - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        pads.append((axis.padding, max(0, end - axis.padding - axis.extent)))
    padded: Number = np.pad(picture, pads, constant_values=value)
    places = product(range(rows.kernel), range(columns.kernel))
    return [padded[..., _taps(rows, row), _taps(columns, column)] for row, column in places]


def unpack_picture(planes: Bytes, channels: int) -> Int32:
    """Join byte planes x rows x columns x blocks: 1 x channels x rows x columns."""
    width, down, across, blocks, _, lanes = planes.shape
    pixels = planes[..., :1, :].reshape(width, down * across, blocks, 1, lanes)
    flat = unpack(pixels, down * across, channels)
    return np.ascontiguousarray(flat.T.reshape(1, channels, down, across))


def _taps(axis: Axis, position: int) -> slice:
    """Return the padded positions that meet a position of the kernel."""
    begin = position * axis.dilation
    return slice(begin, begin + (axis.outputs - 1) * axis.stride + 1, axis.stride)


def pack_picture(picture: Int8, blocks: int, lanes: int, batch: int) -> Int8:
    """Cut a picture, ``1 x channels x rows x columns``, into blocks of ``batch x lanes``.

    Returns:
        rows x columns x blocks x batch x lanes; a batch's other pictures and missing channels are
        zeros.
    """
    _, channels, down, across = picture.shape
    padded = np.zeros((batch, blocks * lanes, down, across), dtype=np.int8)
    padded[:1, :channels] = picture
    cut = padded.reshape(batch, blocks, lanes, down, across)
    return np.ascontiguousarray(cut.transpose(3, 4, 1, 0, 2))


def pack(matrix: Int8, height: int, width: int) -> Int8:
    """Cut a matrix into blocks of ``height x width``, with zeros beyond its edges.

    Returns:
        ``ceil(rows / height) x ceil(columns / width) x height x width``.
    """
    rows, columns = matrix.shape
    grid = -(-rows // height), -(-columns // width)
    padded = np.zeros((grid[0] * height, grid[1] * width), dtype=np.int8)
    padded[:rows, :columns] = matrix
    blocks = padded.reshape(grid[0], height, grid[1], width).swapaxes(1, 2)
    return np.ascontiguousarray(blocks)


def unpack(planes: Bytes, rows: int, columns: int) -> Int32:
    """Join byte planes of blocks, low byte first, into a matrix of integers.

    Args:
        planes: bytes of an integer x block rows x block columns x height x width of a block.
        rows: of the result.
        columns: of the result.
    """
    width, down, across, high, wide = planes.shape
    flat = planes.swapaxes(2, 3).reshape(width, down * high, across * wide)[:, :rows, :columns]
    integers = np.zeros((rows, columns), dtype=np.int32)
    for byte in range(width):
        signed = flat[byte].view(np.int8) if byte == width - 1 else flat[byte]
        integers += signed.astype(np.int32) << (8 * byte)
    return integers
