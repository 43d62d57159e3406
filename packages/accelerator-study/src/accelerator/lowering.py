# SPDX-License-Identifier: Apache-2.0
"""Lowering of a layer with a mapping to a stream of instructions.

The stream computes the result tile by tile, and sums each tile over its inputs in the accumulators.
Every buffer has two halves: LOAD fills a half while the GEMM core reads the other half, and STORE
empties a half of the accumulators while the core sums the next tile in the other half.

A convolution's tile is a rectangle of the picture. LOAD brings the window of the picture that the
tile's kernel reads, with its padding; a block of weights stays in place for all positions of the
tile. A linear layer is the case of a kernel of one position on a picture of one column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from accelerator.boxes import Box, Range, results_of, transfers, window_of
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
from accelerator.layer import Geometry, Layer
from accelerator.program import HALVES, Mapping, Program, fits

PAGE = 4096
BYTE = 8


def lower(layer: Layer, mapping: Mapping, device: Device) -> Program:
    """Return the program of a layer: its stream, micro-ops and addresses.

    Raises:
        AcceleratorError: the tile does not fit the buffers, or the layer does not fit DRAM.
    """
    shape, form = layer.geometry(device), layer.requantisation
    if not fits(shape, form, mapping.sides, mapping.halves, device):
        tile = " x ".join(map(str, mapping.sides))
        raise AcceleratorError(f"{layer.name}: a tile of {tile} blocks does not fit {device.name}")
    micro_ops = _micro_ops(layer, shape, mapping, device)
    results = shape.bundles * shape.sums * device.element(MemoryId.OUTPUT)
    pixels = shape.rows.extent * shape.columns.extent
    weights = shape.bundles * shape.outputs * shape.inputs * shape.kernel
    channels = 2 * form.channels * shape.bundles * shape.outputs
    at = addresses(
        layer.name,
        device,
        len(micro_ops) * device.element(MemoryId.MICRO_OP),
        weights * device.element(MemoryId.WEIGHT),
        pixels * shape.bundles * shape.inputs * device.element(MemoryId.INPUT),
        channels * device.element(MemoryId.ACCUMULATOR),
        results * (form.residual is not None),
        results * form.width,
    )
    return Lowering(layer, shape, mapping, device, at, micro_ops).program()


def addresses(name: str, device: Device, *sizes: int) -> list[int]:
    """Return the byte addresses in DRAM of a program's parts of ``sizes`` bytes, and their end.

    Raises:
        AcceleratorError: the parts do not fit the device's memory.
    """
    grain = max(PAGE, *(device.element(m) for m in MemoryId))
    at = [grain]  # no part is at address 0, which drivers keep for "nothing"
    for size in sizes:
        at.append(-(-(at[-1] + size) // grain) * grain)
    if at[-1] > device.memory:
        raise AcceleratorError(f"{name} takes {at[-1]} bytes, {device.name} has {device.memory}")
    return at


def _micro_ops(
    layer: Layer, shape: Geometry, mapping: Mapping, device: Device
) -> tuple[MicroOp, ...]:
    """Return the micro-ops of products, then those of the ALU's additions of operands.

    Products have a micro-op for each choice of buffer halves, block of inputs, position of the
    kernel and block of outputs. A kernel of one position leaves blocks of inputs to a loop.
    """
    micro_ops = []
    for halves in product(range(mapping.halves), repeat=3):
        value, weight, total = (
            half * device.depth(memory) // HALVES
            for half, memory in zip(
                halves, (MemoryId.INPUT, MemoryId.WEIGHT, MemoryId.ACCUMULATOR), strict=True
            )
        )
        for place, tap in enumerate(_taps(shape, mapping)):
            micro_ops += [
                MicroOp(total + n, value + tap, weight + place * mapping.outputs + n)
                for n in range(mapping.outputs)
            ]
    for half in range(mapping.halves):
        total = half * device.depth(MemoryId.ACCUMULATOR) // HALVES
        places = _Places.of(layer, mapping, total)
        if layer.requantisation.channels:
            for part in range(2):
                micro_ops += [
                    MicroOp(total + n, places.channels + 2 * n + part)
                    for n in range(mapping.outputs)
                ]
        if layer.requantisation.residual is not None:
            micro_ops += [MicroOp(places.residual), MicroOp(total, places.residual)]
    return tuple(micro_ops)


def _taps(shape: Geometry, mapping: Mapping) -> list[int]:
    """Return the distance in the input buffer of each block of inputs and kernel position."""
    if shape.kernel == 1:
        return [0]
    pitch = shape.columns.samples(mapping.columns)
    return [
        (row * shape.rows.dilation * pitch + column * shape.columns.dilation) * mapping.inputs + k
        for k in range(mapping.inputs)
        for row in range(shape.rows.kernel)
        for column in range(shape.columns.kernel)
    ]


@dataclass(frozen=True)
class _Places:
    """The first accumulators of a half's operands of the ALU, behind the sums."""

    residual: int
    channels: int

    @classmethod
    def of(cls, layer: Layer, mapping: Mapping, base: int) -> _Places:
        behind = base + mapping.rows * mapping.columns * mapping.outputs
        added = layer.requantisation.residual is not None
        return cls(behind, 2 * behind - base if added else behind)


@dataclass
class _Half:
    """A half of a buffer: the operation that filled it, and the last operations that used it."""

    filled: int = -1
    used: tuple[int, ...] = ()


@dataclass
class _Buffer:
    """A buffer in halves that are filled in turn."""

    room: int
    halves: list[_Half]
    tile: tuple[int, ...] | None = None
    current: int = 0

    @property
    def half(self) -> _Half:
        """The half that was filled last."""
        return self.halves[self.current]

    @property
    def base(self) -> int:
        """The first element of the current half."""
        return self.current * self.room

    @property
    def next(self) -> int:
        """The first element of the half that is filled next."""
        return (self.current + 1) % len(self.halves) * self.room


@dataclass(frozen=True)
class Tile:
    """A step of a tile: rows and columns of the result, a bundle's outputs and inputs."""

    bundle: int
    rows: Range
    columns: Range
    outputs: Range
    inputs: Range

    @property
    def pixels(self) -> int:
        """The positions of the tile in the picture."""
        return int(self.rows.size * self.columns.size)

    @property
    def sums(self) -> int:
        """The number of accumulator elements of the tile."""
        return int(self.pixels * self.outputs.size)


@dataclass
class Lowering:
    """The operations of a layer so far, and the state of the buffers."""

    layer: Layer
    shape: Geometry
    mapping: Mapping
    device: Device
    at: list[int]
    micro_ops: tuple[MicroOp, ...]
    operations: list[Operation] = field(default_factory=list)
    later: list[_Byte] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = self._buffer(MemoryId.INPUT)
        self.weights = self._buffer(MemoryId.WEIGHT)
        self.sums = self._buffer(MemoryId.ACCUMULATOR)
        self.taps = len(_taps(self.shape, self.mapping))

    def _buffer(self, memory: MemoryId) -> _Buffer:
        halves = [_Half() for _ in range(self.mapping.halves)]
        return _Buffer(self.device.depth(memory) // HALVES, halves)

    def _address(self, part: int, memory: MemoryId) -> int:
        """Return the address of a part of the program in elements of a buffer."""
        return self.at[part] // self.device.element(memory)

    def emit(self, instruction: Instruction, *after: int) -> int:
        """Append an operation that waits for the operations ``after``; return its number."""
        self.operations.append(Operation(instruction, tuple(n for n in after if n >= 0)))
        return len(self.operations) - 1

    def program(self) -> Program:
        """Return the layer's program."""
        at, count = self._address(0, MemoryId.MICRO_OP), len(self.micro_ops)
        self.emit(Transfer(Opcode.LOAD, MemoryId.MICRO_OP, 0, at, 1, count, count))
        self.run()
        instructions = with_tokens(self.operations)
        parts = (self.device, self.layer, self.mapping, instructions, self.micro_ops)
        return Program(*parts, *self.at)

    def run(self) -> None:
        """Emit the operations of all tiles, and FINISH."""
        for tiles in self._tiles():
            self.sums.current = (self.sums.current + 1) % self.mapping.halves
            self._operands(tiles[0])
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

    def _tiles(self) -> Iterator[list[Tile]]:
        """Yield the tiles of the result in order, each as a list of steps along the inputs."""
        shape, mapping = self.shape, self.mapping
        rows, columns, outputs, inputs = (
            [Range(at, min(size, extent - at)) for at in range(0, extent, size)]
            for extent, size in (
                (shape.rows.outputs, mapping.rows),
                (shape.columns.outputs, mapping.columns),
                (shape.outputs, mapping.outputs),
                (shape.inputs, mapping.inputs),
            )
        )
        pixels = list(product(rows, columns))
        for bundle in range(shape.bundles):
            order = (
                product(pixels, outputs)
                if mapping.rows_outermost
                else ((pixel, output) for output in outputs for pixel in pixels)
            )
            for pixel, output in order:
                yield [Tile(bundle, *pixel, output, each) for each in inputs]

    def _set(self) -> int:
        """Return the number of the first micro-op for the halves in use."""
        number = 0
        for buffer in (self.values, self.weights, self.sums):
            number = number * self.mapping.halves + buffer.current
        return number * self.taps * self.mapping.outputs

    def _over_sums(self, tile: Tile, half: int) -> Loop:
        begin = half * self.taps * self.mapping.outputs
        return Loop(begin, begin + 1, 1, tile.sums, dst_inner=1)

    def _operands(self, tile: Tile) -> None:
        """Emit the loads of the ALU's operands of a tile: addends and shifts, residual values."""
        form, output = self.layer.requantisation, tile.outputs
        places = _Places.of(self.layer, self.mapping, self.sums.base)
        if form.channels:
            at, count = tile.bundle * self.shape.outputs + output.at, 2 * output.size
            dram = self._address(3, MemoryId.ACCUMULATOR) + 2 * at
            load = Transfer(
                Opcode.LOAD, MemoryId.ACCUMULATOR, places.channels, dram, 1, count, count
            )
            self.emit(load)
        if form.residual is not None:
            memory = MemoryId.ACCUMULATOR_8BIT
            for load in self._results(tile, 4, Opcode.LOAD, memory, places.residual):
                self.emit(load)

    def _reset(self, tile: Tile) -> int:
        reset = Multiply(self._over_sums(tile, self.sums.current), reset=True)
        return self.emit(reset, *self.sums.half.used)

    def _step(self, tile: Tile, begun: int) -> int:
        """Emit a step's missing loads, and products after ``begun``; return the last's number."""
        shape, inputs, outputs = self.shape, tile.inputs, tile.outputs
        channels = Range(tile.bundle * shape.inputs + inputs.at, inputs.size)
        whole = (self.mapping.columns, self.mapping.inputs)
        window = window_of(shape, tile.rows, tile.columns, channels, whole)
        place = (tile.bundle, tile.rows.at, tile.columns.at, inputs.at)
        base = self._address(2, MemoryId.INPUT)
        self._load(
            self.values,
            place,
            transfers(Opcode.LOAD, MemoryId.INPUT, self.values.next, base, window),
        )
        matrix = shape.outputs * shape.inputs * shape.kernel
        dram = self._address(1, MemoryId.WEIGHT) + tile.bundle * matrix
        dram += shape.kernel * (outputs.at * shape.inputs + inputs.at * outputs.size)
        self._load(self.weights, (tile.bundle, outputs.at, inputs.at), [self._weights(tile, dram)])
        waits = (self.values.half.filled, self.weights.half.filled, begun)
        for multiply in self._products(tile, window):
            begun = self.emit(multiply, *waits)
        for buffer in (self.values, self.weights):
            buffer.half.used = (begun,)
        return begun

    def _weights(self, tile: Tile, dram: int) -> Transfer:
        outputs, rows = tile.outputs.size, tile.inputs.size * self.shape.kernel
        pad = self.mapping.outputs - outputs if self.shape.kernel > 1 else 0
        rows, columns = (rows, outputs) if pad else (1, rows * outputs)
        place = (self.weights.next, dram)
        return Transfer(Opcode.LOAD, MemoryId.WEIGHT, *place, rows, columns, columns, pad_right=pad)

    def _products(self, tile: Tile, window: Box) -> Iterator[Multiply]:
        """Yield the multiplications of a step.

        A kernel of one position takes one instruction, whose loops are over blocks of inputs and
        positions of the picture. A larger kernel takes one for each position of the kernel and
        block of inputs, whose loops are over the rows and columns of the picture.
        """
        begin, outputs, (across, deep) = self._set(), tile.outputs.size, window.pitch
        if self.shape.kernel == 1:
            loop = Loop(
                begin,
                begin + outputs,
                tile.inputs.size,
                tile.pixels,
                dst_inner=outputs,
                src_outer=1,
                src_inner=deep,
            )
            yield Multiply(loop, wgt_outer=outputs)
            return
        for tap in range(tile.inputs.size * self.shape.kernel):
            first = begin + tap * self.mapping.outputs
            yield Multiply(
                Loop(
                    first,
                    first + outputs,
                    tile.rows.size,
                    tile.columns.size,
                    dst_outer=tile.columns.size * outputs,
                    dst_inner=outputs,
                    src_outer=self.shape.rows.advance * across * deep,
                    src_inner=self.shape.columns.advance * deep,
                )
            )

    def _load(self, buffer: _Buffer, tile: tuple[int, ...], loads: Iterable[Transfer]) -> None:
        if buffer.tile == tile:
            return
        listed = list(loads)
        buffer.tile = tile
        buffer.current = (buffer.current + 1) % self.mapping.halves
        used = buffer.half.used
        for load in listed:
            buffer.half.filled = self.emit(load, *used)

    def _finish_tile(self, tile: Tile, begun: int) -> None:
        """Emit a tile's requantisation and its store of low bytes; queue the other bytes."""
        form = self.layer.requantisation
        for operation in self._requantise(tile):
            begun = self.emit(operation)
        half = self.sums.half
        half.used = (self._store(tile, 0, self.sums.current, begun),)
        self.later = [_Byte(tile, n, self.sums.current) for n in range(1, form.width)]

    def _requantise(self, tile: Tile) -> Iterator[Arithmetic]:
        form, half, outputs = self.layer.requantisation, self.sums.current, tile.outputs.size
        over, sides = self._over_sums(tile, half), self.mapping.outputs
        begin = self.mapping.halves**3 * self.taps * sides
        begin += half * (form.channels * 2 * sides + 2 * (form.residual is not None))
        if form.channels:
            for op in (AluOp.ADD, AluOp.SHR):
                yield Arithmetic(
                    Loop(begin, begin + outputs, 1, tile.pixels, dst_inner=outputs), op
                )
                begin += sides
        elif form.shift:
            yield Arithmetic(over, AluOp.ADD, form.half)
            yield Arithmetic(over, AluOp.SHR, form.shift)
        if form.residual is not None:
            residual = Loop(begin, begin + 1, 1, tile.sums, dst_inner=1)
            if form.residual < 0:
                yield Arithmetic(residual, AluOp.ADD, 1 << -form.residual >> 1)
            if form.residual:
                yield Arithmetic(residual, AluOp.SHR, -form.residual)
            yield Arithmetic(
                Loop(begin + 1, begin + 2, 1, tile.sums, dst_inner=1, src_inner=1), AluOp.ADD
            )
        for op, immediate in form.clips(self.layer.summands):
            yield Arithmetic(over, op, immediate)

    def _bytes(self, count: int) -> None:
        """Emit the stores of the next ``count`` queued bytes of the finished tile."""
        for byte in self.later[:count]:
            half = self.sums.halves[byte.half]
            loop = self._over_sums(byte.tile, byte.half)
            shifted = self.emit(Arithmetic(loop, AluOp.SHR, BYTE), *half.used)
            half.used = (self._store(byte.tile, byte.number, byte.half, shifted),)
        self.later = self.later[count:]

    def _store(self, tile: Tile, byte: int, half: int, after: int) -> int:
        """Emit the stores of a byte of a tile's sums; return the number of the last."""
        plane = byte * self.shape.bundles * self.shape.sums
        sram, stored = half * self.sums.room, after
        for store in self._results(tile, 5, Opcode.STORE, MemoryId.OUTPUT, sram, plane):
            stored = self.emit(store, after)
        return stored

    def _results(
        self,
        tile: Tile,
        part: int,
        opcode: Opcode,
        memory: MemoryId,
        sram: int,
        plane: int = 0,
    ) -> Iterator[Transfer]:
        """Yield the transfers of a tile of DRAM's ``part``, which has the result's shape.

        ``plane`` is the part's elements before the tile's plane of bytes.
        """
        channel = tile.bundle * self.shape.outputs + tile.outputs.at
        channels = Range(channel, tile.outputs.size)
        box = results_of(self.shape, tile.rows, tile.columns, channels)
        return transfers(opcode, memory, sram, self._address(part, memory) + plane, box)


@dataclass(frozen=True)
class _Byte:
    """A byte of a finished tile's sums that is not stored yet."""

    tile: Tile
    number: int
    half: int
