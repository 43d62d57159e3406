# SPDX-License-Identifier: Apache-2.0
"""A lowered layer: its tiles, its instructions, and the addresses of its parts in DRAM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from accelerator.checker import check
from accelerator.device import Device, MemoryId
from accelerator.isa.encoding import encode, encode_micro_ops
from accelerator.isa.instructions import MOST_COLUMNS, Instruction, MicroOp
from accelerator.layer import (
    MOST_PADDING,
    Convolution,
    Geometry,
    Int8,
    Int32,
    Layer,
    Pooling,
    Requantisation,
)

Count = Any  # an integer or a numpy array of int64
HALVES = 2


@dataclass(frozen=True)
class Mapping:
    """The tiles of a layer in blocks of the device, and their order.

    Attributes:
        rows, columns, outputs, inputs: extents of a tile of the result, and of its sums.
        rows_outermost: the outer loops are over rows and columns, the inner loop over outputs;
            else the reverse.
        halves: 2 for double buffering, 1 without.
    """

    rows: int
    outputs: int
    inputs: int
    rows_outermost: bool = False
    halves: int = HALVES
    columns: int = 1

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """The extents of a tile: rows, columns, outputs and inputs."""
        return self.rows, self.columns, self.outputs, self.inputs


@dataclass(frozen=True)
class MappingCost:
    """The cost model's bytes of DRAM and cycles for a layer under a mapping."""

    mapping: Mapping
    bytes: int
    cycles: float


def micro_op_counts(
    shape: Geometry, form: Requantisation, outputs: Count, inputs: Count, halves: int
) -> tuple[Count, Count]:
    """Return the micro-ops of products, and those of the ALU's additions of operands.

    A kernel of one position needs a micro-op for each block of outputs, as loops go over the rest.
    Larger kernels also need a micro-op for each block of inputs and each position.
    """
    within = 1 if shape.kernel == 1 else shape.kernel * inputs
    added = form.channels * 2 * outputs + (form.residual is not None) * 2
    return halves**3 * within * outputs, halves * added


def taken(
    shape: Geometry, form: Requantisation, sides: tuple[Count, ...], halves: int
) -> dict[MemoryId, Count]:
    """Return the elements of each buffer for a tile of rows x columns x outputs x inputs."""
    rows, columns, outputs, inputs = sides
    window = shape.rows.samples(rows) * shape.columns.samples(columns)
    sums = rows * columns * outputs
    added = sums * (form.residual is not None) + form.channels * 2 * outputs
    return {
        MemoryId.INPUT: window * inputs,
        MemoryId.WEIGHT: outputs * inputs * shape.kernel,
        MemoryId.ACCUMULATOR: sums + added,
        MemoryId.MICRO_OP: sum(micro_op_counts(shape, form, outputs, inputs, halves)),
    }


def fits(
    shape: Geometry, form: Requantisation, sides: tuple[Count, ...], halves: int, device: Device
) -> Count:
    """Return True if a tile of rows x columns x outputs x inputs fits the device.

    The tile fits half of each buffer, and the last tile of channels can be padded to the length of
    the others: micro-ops of a large kernel contain the length of a tile.
    """
    needs = taken(shape, form, sides, halves).items()
    within = [count <= room_of(memory, device) for memory, count in needs]
    ends = zip((shape.outputs, shape.inputs), sides[2:], strict=True)
    padded = [(shape.kernel == 1) | (-extent % side <= MOST_PADDING) for extent, side in ends]
    return np.all([*within, *padded], axis=0)


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
        micro_ops_at, weights_at, values_at, channels_at, residual_at, results_at: byte addresses.
        end: first byte behind the results.
    """

    device: Device
    layer: Layer
    mapping: Mapping
    instructions: tuple[Instruction, ...]
    micro_ops: tuple[MicroOp, ...]
    micro_ops_at: int
    weights_at: int
    values_at: int
    channels_at: int
    residual_at: int
    results_at: int
    end: int

    @cached_property
    def stream(self) -> bytes:
        """The encoded instructions."""
        return encode(self.instructions, self.device)

    @cached_property
    def proved(self) -> tuple[Instruction, ...]:
        """The checked instructions; reading them raises StreamError for a stream with a fault."""
        return check(self.stream, self.device, self.image())

    def image(
        self,
        values: Int8 | None = None,
        weights: Int8 | None = None,
        channels: Int32 | None = None,
        residual: Int8 | None = None,
    ) -> bytearray:
        """Return DRAM from address 0 before the run; operands that are None are zeros.

        Args:
            values: in the shape of the layer's ``operands``, as all that follow.
            weights: in the layer's own order.
            channels: addends and shifts of outputs.
            residual: values that are added to the result.
        """
        dram, layer, device = bytearray(self.end), self.layer, self.device
        parts = [(self.micro_ops_at, encode_micro_ops(self.micro_ops, device))]
        if values is not None:
            parts.append((self.values_at, layer.packed_values(values, device).tobytes()))
        if weights is not None and not isinstance(layer, Pooling):
            parts.append((self.weights_at, self._tiles(layer.packed_weights(weights, device))))
        if channels is not None and isinstance(layer, Convolution):
            parts.append((self.channels_at, layer.packed_channels(channels, device).tobytes()))
        if residual is not None and isinstance(layer, Convolution):
            parts.append((self.residual_at, layer.packed_residual(residual, device).tobytes()))
        for at, data in parts:
            dram[at : at + len(data)] = data
        return dram

    def _tiles(self, weights: Int8) -> bytes:
        """Return weights in LOAD's order: tile by tile, in a tile by input, position and output."""
        tiles = []
        for bundle in weights:
            for column in range(0, bundle.shape[0], self.mapping.outputs):
                for depth in range(0, bundle.shape[1], self.mapping.inputs):
                    tile = bundle[
                        column : column + self.mapping.outputs, depth : depth + self.mapping.inputs
                    ]
                    tiles.append(tile.transpose(1, 2, 0, 3, 4).tobytes())
        return b"".join(tiles)

    def result(self, memory: bytearray | bytes) -> Int32:
        """Return the layer's result from DRAM after the run, in the shape of its reference."""
        shape, width = self.layer.geometry(self.device), self.layer.requantisation.width
        blocks = shape.rows.outputs, shape.columns.outputs, shape.bundles * shape.outputs
        sizes = (width, *blocks, self.device.batch, self.device.outputs)
        planes = np.frombuffer(memory, dtype=np.uint8, count=prod(sizes), offset=self.results_at)
        return self.layer.unpacked(planes.reshape(sizes))
