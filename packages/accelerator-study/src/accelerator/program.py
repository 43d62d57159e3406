# SPDX-License-Identifier: Apache-2.0
"""A lowered layer: the tiles that it is cut into, its instructions, and its parts in DRAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.isa.encoding import encode, encode_micro_ops
from accelerator.isa.instructions import MOST_COLUMNS, Instruction, MicroOp
from accelerator.layer import Int8, Int32, LinearLayer, pack, unpack

Count = TypeVar("Count", int, npt.NDArray[np.int64])
HALVES = 2


@dataclass(frozen=True)
class Mapping:
    """Tiles in blocks of the device, and the order in which they are visited.

    Attributes:
        rows, outputs, inputs: extents of a tile.
        rows_outermost: all outputs of some rows come before the next rows; else all rows of some
            outputs before the next outputs.
        halves: 2 for double buffering, 1 without.
    """

    rows: int
    outputs: int
    inputs: int
    rows_outermost: bool = False
    halves: int = HALVES

    def check(self, device: Device) -> None:
        """Refuse tiles that do not fit half a buffer.

        Raises:
            AcceleratorError: names the buffer.
        """
        for memory, count in taken(self.rows, self.outputs, self.inputs, self.halves).items():
            room = room_of(memory, device)
            if not 0 < count <= room:
                what = f"{device.name}: a tile of {self.rows} by {self.outputs} by {self.inputs}"
                raise AcceleratorError(f"{what} blocks takes {count} of {room} of {memory.name}")


def taken(rows: Count, outputs: Count, inputs: Count, halves: int) -> dict[MemoryId, Count]:
    """Elements of each buffer that a tile of so many blocks takes; arrays are of many tiles."""
    return {
        MemoryId.INPUT: rows * inputs,
        MemoryId.WEIGHT: outputs * inputs,
        MemoryId.ACCUMULATOR: rows * outputs,
        MemoryId.MICRO_OP: outputs * halves**3,
    }


def room_of(memory: MemoryId, device: Device) -> int:
    """Elements of a buffer that one tile may take: half, and what one LOAD can bring.

    Micro-ops have the whole buffer, as they are loaded once.
    """
    part = 1 if memory is MemoryId.MICRO_OP else HALVES
    return min(device.depth(memory) // part, MOST_COLUMNS)


@dataclass(frozen=True)
class Program:
    """A lowered layer: instructions, micro-ops, and the addresses of its parts in DRAM.

    Attributes:
        micro_ops_at, weights_at, values_at, results_at: byte addresses.
        end: first byte behind them.
    """

    device: Device
    layer: LinearLayer
    mapping: Mapping
    instructions: tuple[Instruction, ...]
    micro_ops: tuple[MicroOp, ...]
    micro_ops_at: int
    weights_at: int
    values_at: int
    results_at: int
    end: int

    @property
    def stream(self) -> bytes:
        """The encoded instructions."""
        return encode(self.instructions, self.device)

    def image(self, values: Int8 | None = None, weights: Int8 | None = None) -> bytearray:
        """DRAM from address 0 before the run; operands that are left out are zeros.

        Args:
            values: ``rows x inputs``.
            weights: ``outputs x inputs``.
        """
        found = bytearray(self.end)
        parts = [(self.micro_ops_at, encode_micro_ops(self.micro_ops, self.device))]
        if values is not None:
            blocks = pack(values, self.device.batch, self.device.inputs)
            parts.append((self.values_at, blocks.tobytes()))
        if weights is not None:
            parts.append((self.weights_at, self.weight_tiles(weights)))
        for at, data in parts:
            found[at : at + len(data)] = data
        return found

    def weight_tiles(self, weights: Int8) -> bytes:
        """Weights as LOAD wants them: each tile in one piece, its blocks by input, then output."""
        blocks = pack(weights, self.device.outputs, self.device.inputs)
        tiles = []
        for column in range(0, blocks.shape[0], self.mapping.outputs):
            for depth in range(0, blocks.shape[1], self.mapping.inputs):
                tile = blocks[
                    column : column + self.mapping.outputs, depth : depth + self.mapping.inputs
                ]
                tiles.append(tile.swapaxes(0, 1).tobytes())
        return b"".join(tiles)

    def result(self, memory: bytearray | bytes) -> Int32:
        """The layer's result from DRAM after the run: ``rows x outputs``."""
        down, across, _ = self.layer.blocks(self.device)
        shape = (
            self.layer.requantisation.width,
            down,
            across,
            self.device.batch,
            self.device.outputs,
        )
        count = int(np.prod(shape))
        planes = np.frombuffer(memory, dtype=np.uint8, count=count, offset=self.results_at)
        return unpack(planes.reshape(shape), self.layer.rows, self.layer.outputs)
