# SPDX-License-Identifier: Apache-2.0
"""A linear layer of int8 values by int8 weights, its result in numpy, and its layout in DRAM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accelerator.device import Device
from accelerator.errors import AcceleratorError

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
OPERAND = 128  # largest magnitude of an int8 value
FLOAT_EXACT = 1024  # int8 products whose sum is at most 1 << 24, exact in float32
MOST_ROUNDED = 15  # half of 1 << 15 is the largest rounding constant that fits an immediate


@dataclass(frozen=True)
class Requantisation:
    """The form in which sums leave the device: shifted right, rounded, in ``width`` bytes.

    ``width`` 4 with ``shift`` 0 is the exact sum, which the CPU multiplies by the scales of token
    and channel in float. Narrower results saturate. The device has no fixed-point multiplication:
    a token's scale is known only at run time, and an integer scale of a channel cannot include it.
    """

    width: int = 4
    shift: int = 0

    def __post_init__(self) -> None:
        if self.width not in (1, 2, 4) or not 0 <= self.shift <= MOST_ROUNDED:
            reason = f"requantisation to {self.width} bytes with a shift of {self.shift}"
            remedy = f"bytes: 1, 2 or 4; shift: 0 to {MOST_ROUNDED}"
            raise AcceleratorError(reason, remedy=remedy)

    @property
    def half(self) -> int:
        """The addend that makes the right shift round to nearest, halves upwards."""
        return 1 << self.shift >> 1

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest result."""
        most = 1 << (8 * self.width - 1)
        return -most, most - 1

    def saturates(self, inputs: int) -> bool:
        """Return True if a sum over ``inputs`` products can be outside the limits."""
        return self.width < 4 and (inputs * OPERAND**2 + self.half) >> self.shift > self.limits[1]

    def apply(self, sums: Int32) -> Int32:
        """Return the sums shifted, rounded and saturated, as int32."""
        low, high = self.limits
        results: Int32 = np.clip((sums + np.int32(self.half)) >> self.shift, low, high)
        return results


EXACT = Requantisation()


@dataclass(frozen=True)
class LinearLayer:
    """A product of ``rows x inputs`` values by the transpose of ``outputs x inputs`` weights."""

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
        """Return the numbers of the device's blocks along rows, outputs and inputs."""
        return (
            -(-self.rows // device.batch),
            -(-self.outputs // device.outputs),
            -(-self.inputs // device.inputs),
        )

    def operands(self, seed: int) -> tuple[Int8, Int8]:
        """Return random int8 values and weights of the layer."""
        random = np.random.default_rng(seed)
        values = random.integers(-128, 128, (self.rows, self.inputs), dtype=np.int8)
        return values, random.integers(-128, 128, (self.outputs, self.inputs), dtype=np.int8)

    def reference(self, values: Int8, weights: Int8) -> Int32:
        """Return the layer's exact result in numpy: ``rows x outputs``."""
        sums = np.zeros((self.rows, self.outputs), dtype=np.int32)
        for at in range(0, self.inputs, FLOAT_EXACT):
            part = slice(at, at + FLOAT_EXACT)
            product = values[:, part].astype(np.float32) @ weights[:, part].astype(np.float32).T
            sums += product.astype(np.int32)
        return self.requantisation.apply(sums)


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


def unpack(planes: npt.NDArray[np.uint8], rows: int, columns: int) -> Int32:
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
