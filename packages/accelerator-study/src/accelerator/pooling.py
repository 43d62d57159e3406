# SPDX-License-Identifier: Apache-2.0
"""Max pooling on the ALU: its stream of instructions, and its cost.

A tile's window is loaded into the accumulators, and the ALU takes the maximum over the kernel's
positions. The window is filled with the least value before, so that padding never wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import (
    AluOp,
    Arithmetic,
    Finish,
    Loop,
    MicroOp,
    Multiply,
    Opcode,
    Transfer,
)
from accelerator.layer import LEAST, Geometry, Pooling
from accelerator.lowering import Lowering, Tile, addresses
from accelerator.program import HALVES, Mapping, MappingCost, Program, room_of
from costmodel.estimate.tiling import sizes


def pool(layer: Pooling, device: Device, halves: int = HALVES) -> tuple[Program, MappingCost]:
    """Return the program of a pooling with the fewest predicted cycles, and its cost.

    Raises:
        AcceleratorError: no window fits the accumulators, or the layer does not fit DRAM.
    """
    shape = layer.geometry(device)
    costs = [
        _cost(layer, Mapping(rows, 1, 1, True, halves, columns), device)
        for rows, columns in product(sizes(shape.rows.outputs, 1), sizes(shape.columns.outputs, 1))
        if _taken(shape, rows, columns) <= room_of(MemoryId.ACCUMULATOR, device)
    ]
    if not costs or shape.kernel * halves > device.depth(MemoryId.MICRO_OP):
        raise AcceleratorError(f"{layer.name}: no window fits {device.name}")
    cost = min(costs, key=lambda each: (each.cycles, each.bytes))
    values, result = layer.rows.extent * layer.columns.extent, shape.sums
    at = addresses(
        layer.name,
        device,
        shape.kernel * halves * device.element(MemoryId.MICRO_OP),
        0,
        values * shape.bundles * device.element(MemoryId.OUTPUT),
        0,
        0,
        result * shape.bundles * device.element(MemoryId.OUTPUT),
    )
    micro_ops = _micro_ops(shape, cost.mapping, device.depth(MemoryId.ACCUMULATOR) // HALVES)
    return _Pooling(layer, shape, cost.mapping, device, at, micro_ops).program(), cost


def _micro_ops(shape: Geometry, mapping: Mapping, room: int) -> tuple[MicroOp, ...]:
    """Return a micro-op for each half of the accumulators and each position of the kernel."""
    sums, pitch = mapping.rows * mapping.columns, int(shape.columns.samples(mapping.columns))
    return tuple(
        MicroOp(base, base + sums + row * shape.rows.dilation * pitch + column)
        for base in range(0, mapping.halves * room, room)
        for row in range(shape.rows.kernel)
        for column in range(
            0, shape.columns.kernel * shape.columns.dilation, shape.columns.dilation
        )
    )


def _taken(shape: Geometry, rows: int, columns: int) -> int:
    window: int = shape.rows.samples(rows) * shape.columns.samples(columns)
    return rows * columns + window


def _cost(layer: Pooling, mapping: Mapping, device: Device) -> MappingCost:
    """Return the cost of a mapping: the ALU loads, compares and waits; the last tile is stored."""
    shape = layer.geometry(device)
    rows, columns = (
        [axis.span(at, min(side, axis.outputs - at)) for at in range(0, axis.outputs, side)]
        for axis, side in ((shape.rows, mapping.rows), (shape.columns, mapping.columns))
    )
    element, rate = device.element(MemoryId.OUTPUT), device.dram_bandwidth
    inside = sum(row.count * column.count for row in rows for column in columns)
    windows = sum(row.samples * column.samples for row in rows for column in columns)
    loads = sum(int(row.count) for row in rows) * len(columns) * device.dram_latency
    each = device.gemm_interval + device.alu_immediate
    work = (shape.sums + windows) * each + shape.sums * shape.kernel * device.alu_interval
    single = shape.bundles == 1 or mapping.columns == shape.columns.outputs
    stores = 1 if single else mapping.rows
    stored = mapping.rows * mapping.columns * element / rate + stores * device.dram_latency
    beside = 0.0 if mapping.halves > 1 else stored * (len(rows) * len(columns) * shape.bundles - 1)
    micro_ops = shape.kernel * mapping.halves * device.element(MemoryId.MICRO_OP)
    begin = device.dram_latency + micro_ops / rate
    cycles = shape.bundles * (work + loads + inside * element / rate) + stored + beside + begin
    moved = shape.bundles * (inside + shape.sums) * element
    return MappingCost(mapping, int(moved) + micro_ops, float(cycles))


@dataclass
class _Pooling(Lowering):
    @property
    def pitch(self) -> int:
        """The samples of a row of a window in the accumulators."""
        return int(self.shape.columns.samples(self.mapping.columns))

    def run(self) -> None:
        """Emit the operations of all tiles, and FINISH."""
        for (tile,) in self._tiles():
            self.sums.current = (self.sums.current + 1) % self.mapping.halves
            half, kernel, began = self.sums.half, self.shape.kernel, -1
            first = self.sums.current * kernel
            whole = _taken(self.shape, self.mapping.rows, self.mapping.columns)
            fill = Loop(first, first + 1, 1, whole, dst_inner=1)
            self.emit(Multiply(fill, reset=True), *half.used)
            self.emit(Arithmetic(fill, AluOp.ADD, LEAST))
            for load in self._loads(tile):
                self.emit(load)
            for tap in range(first, first + kernel):
                began = self.emit(Arithmetic(self._over_window(tile, tap), AluOp.MAX))
            half.used = (self._store(tile, 0, self.sums.current, began),)
        self.emit(Finish(), *self.sums.half.used)

    def _over_window(self, tile: Tile, tap: int) -> Loop:
        shape = self.shape
        return Loop(
            tap,
            tap + 1,
            tile.rows.size,
            tile.columns.size,
            dst_outer=tile.columns.size,
            dst_inner=1,
            src_outer=shape.rows.advance * self.pitch,
            src_inner=shape.columns.advance,
        )

    def _loads(self, tile: Tile) -> Iterator[Transfer]:
        """Yield the loads of a tile's window, row by row, without its padding."""
        shape, deep = self.shape, self.shape.bundles
        rows, columns = (
            axis.span(part.at, part.size)
            for axis, part in ((shape.rows, tile.rows), (shape.columns, tile.columns))
        )
        memory, step = MemoryId.ACCUMULATOR_8BIT, shape.columns.step * deep
        sram = self.sums.base + self.mapping.rows * self.mapping.columns + columns.before
        for row in range(rows.count):
            at = (rows.first + row * shape.rows.step) * shape.columns.extent + columns.first
            dram = self._address(2, memory) + at * deep + tile.bundle
            to = sram + (rows.before + row) * self.pitch
            yield Transfer(Opcode.LOAD, memory, to, dram, columns.count, 1, step)
