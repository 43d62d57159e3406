# SPDX-License-Identifier: Apache-2.0
"""Lowering of a linear layer with a mapping to a stream of instructions.

The stream computes the result tile by tile, and sums each tile over its inputs in the accumulators.
Every buffer has two halves: LOAD fills a half while the GEMM core reads the other half, and STORE
empties a half of the accumulators while the core sums the next tile in the other half.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import (
    AluOp,
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    MicroOp,
    Multiply,
    Opcode,
    Transfer,
)
from accelerator.isa.tokens import Operation, with_tokens
from accelerator.layer import LinearLayer
from accelerator.program import HALVES, Mapping, Program

PAGE = 4096
BYTE = 8


def lower(layer: LinearLayer, mapping: Mapping, device: Device) -> Program:
    """Return the program of a layer: its stream, micro-ops and addresses.

    Raises:
        AcceleratorError: the tile does not fit the buffers, or the layer does not fit DRAM.
    """
    mapping.check(device)
    down, across, deep = layer.blocks(device)
    micro_ops = _micro_ops(mapping, device)
    sizes = (
        len(micro_ops) * device.element(MemoryId.MICRO_OP),
        across * deep * device.element(MemoryId.WEIGHT),
        down * deep * device.element(MemoryId.INPUT),
        down * across * device.element(MemoryId.OUTPUT) * layer.requantisation.width,
    )
    grain = max(PAGE, *(device.element(m) for m in MemoryId))
    at = [grain]  # no part is at address 0, which drivers keep for "nothing"
    for size in sizes:
        at.append(-(-(at[-1] + size) // grain) * grain)
    if at[-1] > device.memory:
        raise AcceleratorError(
            f"{layer.name} takes {at[-1]} bytes, {device.name} has {device.memory}"
        )
    lowering = _Lowering(layer, mapping, device, at[1], at[2], at[3])
    load = Transfer(
        Opcode.LOAD,
        MemoryId.MICRO_OP,
        0,
        at[0] // device.element(MemoryId.MICRO_OP),
        1,
        len(micro_ops),
        len(micro_ops),
    )
    lowering.emit(load)
    lowering.run()
    instructions = with_tokens(lowering.operations)
    return Program(device, layer, mapping, instructions, micro_ops, *at)


def _micro_ops(mapping: Mapping, device: Device) -> tuple[MicroOp, ...]:
    """Return a micro-op for each choice of buffer halves and each block of a tile's outputs."""
    micro_ops = []
    for halves in product(range(mapping.halves), repeat=3):
        value, weight, total = (
            half * device.depth(memory) // HALVES
            for half, memory in zip(
                halves, (MemoryId.INPUT, MemoryId.WEIGHT, MemoryId.ACCUMULATOR), strict=True
            )
        )
        micro_ops += [MicroOp(total + n, value, weight + n) for n in range(mapping.outputs)]
    return tuple(micro_ops)


@dataclass
class _Half:
    """A half of a buffer: the operation that filled it, and the last operations that used it."""

    filled: int = -1
    used: tuple[int, ...] = ()


@dataclass
class _Buffer:
    """A buffer in halves that are filled in turn."""

    memory: MemoryId
    room: int
    halves: list[_Half]
    tile: tuple[int, int] | None = None
    current: int = 0

    @property
    def half(self) -> _Half:
        """The half that was filled last."""
        return self.halves[self.current]

    @property
    def base(self) -> int:
        """The first element of the current half."""
        return self.current * self.room


@dataclass(frozen=True)
class _Tile:
    """A step of a tile: first block and number of blocks along rows, outputs and inputs."""

    at: tuple[int, int, int]
    size: tuple[int, int, int]

    @property
    def sums(self) -> int:
        """The number of accumulator elements of the tile."""
        return self.size[0] * self.size[1]


@dataclass
class _Lowering:
    layer: LinearLayer
    mapping: Mapping
    device: Device
    weights_at: int
    values_at: int
    results_at: int
    operations: list[Operation] = field(default_factory=list)
    later: list[_Byte] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = self._buffer(MemoryId.INPUT)
        self.weights = self._buffer(MemoryId.WEIGHT)
        self.sums = self._buffer(MemoryId.ACCUMULATOR)

    def _buffer(self, memory: MemoryId) -> _Buffer:
        halves = [_Half() for _ in range(self.mapping.halves)]
        return _Buffer(memory, self.device.depth(memory) // HALVES, halves)

    def emit(self, instruction: Instruction, *after: int) -> int:
        """Append an operation that waits for the operations ``after``; return its number."""
        self.operations.append(Operation(instruction, tuple(n for n in after if n >= 0)))
        return len(self.operations) - 1

    def run(self) -> None:
        """Emit the operations of all tiles, and FINISH."""
        for tiles in self._tiles():
            self.sums.current = (self.sums.current + 1) % self.mapping.halves
            begun = self._reset(tiles[0])
            width, left = self.layer.requantisation.width, len(self.later)
            for number, tile in enumerate(tiles, 1):
                begun = self._step(tile, begun)
                # Spread the previous tile's stores evenly between this tile's steps.
                due = min(left, -(-number * width // len(tiles)))
                self._bytes(due - (left - len(self.later)))
            self._finish_tile(tiles[0], begun)
            if self.mapping.halves == 1:
                self._bytes(len(self.later))
        self._bytes(len(self.later))
        self.emit(Finish(), *self.sums.half.used)

    def _tiles(self) -> Iterator[list[_Tile]]:
        """Yield the tiles of the result in order, each as a list of steps along the inputs."""
        blocks = self.layer.blocks(self.device)
        sides = (self.mapping.rows, self.mapping.outputs, self.mapping.inputs)
        down, across, deep = (
            [(at, min(size, extent - at)) for at in range(0, extent, size)]
            for extent, size in zip(blocks, sides, strict=True)
        )
        outer, inner = (down, across) if self.mapping.rows_outermost else (across, down)
        for pair in product(outer, inner):
            row, column = pair if self.mapping.rows_outermost else pair[::-1]
            yield [_Tile((row[0], column[0], k[0]), (row[1], column[1], k[1])) for k in deep]

    def _set(self) -> int:
        """Return the number of the first micro-op for the halves in use."""
        number = 0
        for buffer in (self.values, self.weights, self.sums):
            number = number * self.mapping.halves + buffer.current
        return number * self.mapping.outputs

    def _over_sums(self, tile: _Tile) -> Loop:
        begin = self.sums.current * self.mapping.outputs
        return Loop(begin, begin + 1, 1, tile.sums, dst_inner=1)

    def _reset(self, tile: _Tile) -> int:
        return self.emit(Multiply(self._over_sums(tile), reset=True), *self.sums.half.used)

    def _step(self, tile: _Tile, begun: int) -> int:
        """Emit the missing loads and the multiplication of a step; return its number."""
        rows, columns, depth = tile.size
        deep = self.layer.blocks(self.device)[2]
        element = self.device.element
        self._load(
            self.values,
            (tile.at[0], tile.at[2]),
            self.values_at // element(MemoryId.INPUT) + tile.at[0] * deep + tile.at[2],
            (rows, depth, deep),
        )
        before = tile.at[1] * deep + tile.at[2] * columns
        count = columns * depth
        self._load(
            self.weights,
            (tile.at[1], tile.at[2]),
            self.weights_at // element(MemoryId.WEIGHT) + before,
            (1, count, count),
        )
        begin = self._set()
        loop = Loop(
            begin, begin + columns, depth, rows, dst_inner=columns, src_outer=1, src_inner=depth
        )
        multiply = Multiply(loop, wgt_outer=columns)
        multiplied = self.emit(multiply, self.values.half.filled, self.weights.half.filled, begun)
        for buffer in (self.values, self.weights):
            buffer.half.used = (multiplied,)
        return multiplied

    def _load(
        self, buffer: _Buffer, tile: tuple[int, int], dram: int, extent: tuple[int, int, int]
    ) -> None:
        if buffer.tile == tile:
            return
        buffer.tile = tile
        buffer.current = (buffer.current + 1) % self.mapping.halves
        load = Transfer(Opcode.LOAD, buffer.memory, buffer.base, dram, *extent)
        buffer.half.filled = self.emit(load, *buffer.half.used)

    def _finish_tile(self, tile: _Tile, begun: int) -> None:
        """Emit a tile's requantisation and its store of low bytes; queue the other bytes."""
        form = self.layer.requantisation
        low, high = form.limits
        steps = []
        if form.shift:
            steps += [(AluOp.ADD, form.half), (AluOp.SHR, form.shift)]
        if form.saturates(self.layer.inputs):
            steps += [(AluOp.MIN, high), (AluOp.MAX, low)]
        for op, immediate in steps:
            begun = self.emit(Arithmetic(self._over_sums(tile), op, immediate))
        half = self.sums.half
        half.used = (self.emit(self._store(tile, 0), begun),)
        self.later = [_Byte(tile, n, self.sums.current) for n in range(1, form.width)]

    def _bytes(self, count: int) -> None:
        """Emit the stores of the next ``count`` queued bytes of the finished tile."""
        for byte in self.later[:count]:
            half = self.sums.halves[byte.half]
            begin = byte.half * self.mapping.outputs
            loop = Loop(begin, begin + 1, 1, byte.tile.sums, dst_inner=1)
            shifted = self.emit(Arithmetic(loop, AluOp.SHR, BYTE), *half.used)
            store = self._store(byte.tile, byte.number, byte.half)
            half.used = (self.emit(store, shifted),)
        self.later = self.later[count:]

    def _store(self, tile: _Tile, byte: int, half: int | None = None) -> Transfer:
        down, across, _ = self.layer.blocks(self.device)
        rows, columns, _ = tile.size
        at = self.results_at // self.device.element(MemoryId.OUTPUT)
        at += (byte * down + tile.at[0]) * across + tile.at[1]
        sram = (self.sums.current if half is None else half) * self.sums.room
        return Transfer(Opcode.STORE, MemoryId.OUTPUT, sram, at, rows, columns, across)


@dataclass(frozen=True)
class _Byte:
    """A byte of a finished tile's sums that is not stored yet."""

    tile: _Tile
    number: int
    half: int
