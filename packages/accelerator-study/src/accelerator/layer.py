# SPDX-License-Identifier: Apache-2.0
"""A linear layer of int8 values by int8 weights, its result, and its layout in DRAM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accelerator.device import Device
from accelerator.errors import AcceleratorError

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
OPERAND = 128  # largest magnitude of an int8
FLOAT_EXACT = 1024  # products of int8 of which every sum is at most 1 << 24, exact in float32
MOST_ROUNDED = 15  # half of 1 << 15 is the largest rounding constant that fits an immediate


@dataclass(frozen=True)
class Requantisation:
    """Form in which sums leave the device: shifted right, to nearest, in ``width`` bytes.

    ``width`` 4 with no shift is the sum itself: nothing is lost, and the CPU multiplies by the
    scales of token and channel in float. Narrower results saturate. There is no fixed-point
    multiplication: a scale for each token is known only when the token is, and no integer scale
    of a channel can hold it.
    """

    width: int = 4
    shift: int = 0

    def __post_init__(self) -> None:
        if self.width not in (1, 2, 4) or not 0 <= self.shift <= MOST_ROUNDED:
            what = f"requantisation to {self.width} bytes with a shift of {self.shift}"
            remedy = f"bytes: 1, 2 or 4; shift: 0 to {MOST_ROUNDED}"
            raise AcceleratorError(what, remedy=remedy)

    @property
    def half(self) -> int:
        """Addend before the shift that makes it round to nearest, halves upwards."""
        return 1 << self.shift >> 1

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest result."""
        most = 1 << (8 * self.width - 1)
        return -most, most - 1

    def saturates(self, inputs: int) -> bool:
        """A sum over so many inputs may be outside the limits."""
        return self.width < 4 and (inputs * OPERAND**2 + self.half) >> self.shift > self.limits[1]

    def apply(self, sums: Int32) -> Int32:
        """The result as integers."""
        low, high = self.limits
        found: Int32 = np.clip((sums + np.int32(self.half)) >> self.shift, low, high)
        return found


EXACT = Requantisation()


@dataclass(frozen=True)
class LinearLayer:
    """``rows`` of ``inputs`` values by ``outputs x inputs`` weights."""

    name: str
    rows: int
    outputs: int
    inputs: int
    requantisation: Requantisation = EXACT

    def __post_init__(self) -> None:
        if min(self.rows, self.outputs, self.inputs) < 1:
            raise AcceleratorError(f"{self.name}: no extent may be below 1")
        if self.inputs * OPERAND**2 + self.requantisation.half >= 1 << 31:
            raise AcceleratorError(f"{self.name}: a sum of {self.inputs} products passes 32 bits")

    def blocks(self, device: Device) -> tuple[int, int, int]:
        """Blocks of the device that rows, outputs and inputs take."""
        return (
            -(-self.rows // device.batch),
            -(-self.outputs // device.outputs),
            -(-self.inputs // device.inputs),
        )

    def operands(self, seed: int) -> tuple[Int8, Int8]:
        """Values and weights at random."""
        random = np.random.default_rng(seed)
        values = random.integers(-128, 128, (self.rows, self.inputs), dtype=np.int8)
        return values, random.integers(-128, 128, (self.outputs, self.inputs), dtype=np.int8)

    def reference(self, values: Int8, weights: Int8) -> Int32:
        """The result in numpy: ``rows x outputs``."""
        sums = np.zeros((self.rows, self.outputs), dtype=np.int32)
        for at in range(0, self.inputs, FLOAT_EXACT):
            part = slice(at, at + FLOAT_EXACT)
            product = values[:, part].astype(np.float32) @ weights[:, part].astype(np.float32).T
            sums += product.astype(np.int32)
        return self.requantisation.apply(sums)


def pack(matrix: Int8, height: int, width: int) -> Int8:
    """Blocks of ``height x width``, row by row of blocks, zeros where the matrix ends.

    Returns:
        ``ceil(rows / height) x ceil(columns / width) x height x width``.
    """
    rows, columns = matrix.shape
    grid = -(-rows // height), -(-columns // width)
    padded = np.zeros((grid[0] * height, grid[1] * width), dtype=np.int8)
    padded[:rows, :columns] = matrix
    blocks = padded.reshape(grid[0], height, grid[1], width).swapaxes(1, 2)
    return np.ascontiguousarray(blocks)


def unpack(planes: npt.NDArray[np.uint8], rows: int, columns: int) -> Int32:
    """Integers from planes of bytes, low byte first, each in blocks.

    Args:
        planes: ``width x row blocks x column blocks x height x width of a block``.
        rows: of the result.
        columns: of the result.
    """
    width, down, across, high, wide = planes.shape
    flat = planes.swapaxes(2, 3).reshape(width, down * high, across * wide)[:, :rows, :columns]
    found = np.zeros((rows, columns), dtype=np.int32)
    for byte in range(width):
        signed = flat[byte].view(np.int8) if byte == width - 1 else flat[byte]
        found += signed.astype(np.int32) << (8 * byte)
    return found
