# SPDX-License-Identifier: Apache-2.0
"""A lowered layer: its tiles, its instructions, and the addresses of its parts in DRAM."""

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
    """The tiles of a layer in blocks of the device, and their order.

    Attributes:
        rows, outputs, inputs: extents of a tile.
        rows_outermost: the outer loop is over rows, the inner loop over outputs; else the reverse.
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
            AcceleratorError: a tile does not fit; the message names the buffer.
        """
        for memory, count in taken(self.rows, self.outputs, self.inputs, self.halves).items():
            room = room_of(memory, device)
            if not 0 < count <= room:
                tile = f"{device.name}: a tile of {self.rows} by {self.outputs} by {self.inputs}"
                raise AcceleratorError(f"{tile} blocks takes {count} of {room} of {memory.name}")


def taken(rows: Count, outputs: Count, inputs: Count, halves: int) -> dict[MemoryId, Count]:
    """Return the elements of each buffer for a tile of rows x outputs x inputs, in blocks."""
    return {
        MemoryId.INPUT: rows * inputs,
        MemoryId.WEIGHT: outputs * inputs,
        MemoryId.ACCUMULATOR: rows * outputs,
        MemoryId.MICRO_OP: outputs * halves**3,
    }


def room_of(memory: MemoryId, device: Device) -> int:
    """Return the most elements of a buffer for a tile: half the buffer, at most a LOAD's row.

    Micro-ops may take their whole buffer, as a program loads them once.
    """
    part = 1 if memory is MemoryId.MICRO_OP else HALVES
    return min(device.depth(memory) // part, MOST_COLUMNS)


@dataclass(frozen=True)
class Program:
    """A lowered layer: instructions, micro-ops, and the addresses of its parts in DRAM.

    Attributes:
        micro_ops_at, weights_at, values_at, results_at: byte addresses.
        end: first byte behind the results.
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
        """Return DRAM from address 0 before the run; operands that are None are zeros.

        Args:
            values: ``rows x inputs``.
            weights: ``outputs x inputs``.
        """
        dram = bytearray(self.end)
        parts = [(self.micro_ops_at, encode_micro_ops(self.micro_ops, self.device))]
        if values is not None:
            blocks = pack(values, self.device.batch, self.device.inputs)
            parts.append((self.values_at, blocks.tobytes()))
        if weights is not None:
            parts.append((self.weights_at, self.weight_tiles(weights)))
        for at, data in parts:
            dram[at : at + len(data)] = data
        return dram

    def weight_tiles(self, weights: Int8) -> bytes:
        """Return weights in LOAD's order: tile by tile, in a tile blocks by input, then output."""
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
        """Return the layer's result, ``rows x outputs``, from DRAM after the run."""
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
