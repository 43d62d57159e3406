# SPDX-License-Identifier: Apache-2.0
"""Lowering of a linear layer to a program for a matrix unit, and the layout of its operands.

A tile of sums stays in registers over all inputs. Values and weights lie in memory in the order in
which the loop over inputs loads their blocks, so every load reads the next register's bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np

from accelerator.errors import AcceleratorError
from accelerator.extension import encoding
from accelerator.extension.encoding import VectorType
from accelerator.extension.unit import SUM_REGISTERS, MatrixUnit
from accelerator.layer import EXACT, Int8, Int32, LinearLayer, pack

# Registers of the program: cursors, counters, and the start of the values of a tile.
_VALUES, _WEIGHTS, _RESULTS, _START = 5, 6, 7, 28
_DEEP, _ACROSS, _DOWN, _LENGTH = 29, 30, 31, 10
_MOST = 1 << 30  # bytes of operands and results: addresses are one lui and one addi

Segment = tuple[int, int, int]
"""A run of equal tiles: first block, number of tiles, blocks of a tile."""


@dataclass(frozen=True)
class ExtensionProgram:
    """A layer's program for a matrix unit, and the addresses of its operands in memory.

    Attributes:
        words: instructions.
        down: segments of equal tiles of values; across: of weights.
        deep: blocks along the inputs.
    """

    layer: LinearLayer
    unit: MatrixUnit
    words: tuple[int, ...]
    down: tuple[Segment, ...]
    across: tuple[Segment, ...]
    deep: int

    @property
    def stream(self) -> bytes:
        """The instructions as little-endian bytes."""
        return struct.pack(f"<{len(self.words)}I", *self.words)

    @property
    def values_at(self) -> int:
        """The address of the values; the weights begin at 0."""
        return _blocks(self.across) * self.deep * self.unit.register

    @property
    def results_at(self) -> int:
        """The address of the sums."""
        return self.values_at + _blocks(self.down) * self.deep * self.unit.register

    @property
    def tile(self) -> tuple[int, int]:
        """The blocks of values and of weights in a whole tile."""
        return self.down[0][2], self.across[0][2]

    @property
    def size(self) -> int:
        """The size of the memory in bytes: operands and sums."""
        sums = _blocks(self.down) * _blocks(self.across)
        return self.results_at + sums * SUM_REGISTERS * self.unit.register

    def image(self, values: Int8, weights: Int8) -> bytearray:
        """Return the memory with ``rows x inputs`` values and ``outputs x inputs`` weights."""
        block = (self.unit.rows, self.unit.inputs)
        parts = [
            _in_tiles(pack(matrix, *block), segments)
            for matrix, segments in ((weights, self.across), (values, self.down))
        ]
        return bytearray(b"".join(parts).ljust(self.size, b"\0"))

    def result(self, memory: bytearray) -> Int32:
        """Return the sums, ``rows x outputs``, from the memory after the run."""
        side = self.unit.rows
        flat = np.frombuffer(memory, dtype="<i4", offset=self.results_at)
        sums = np.zeros((_blocks(self.down), _blocks(self.across), side, side), dtype=np.int32)
        at = 0
        for top, rows, high in self.down:
            for row in range(top, top + rows * high, high):
                for left, columns, wide in self.across:
                    size = columns * wide * high * side * side
                    tiles = flat[at : at + size].reshape(columns, high, wide, side, side)
                    target = sums[row : row + high, left : left + columns * wide]
                    target[:] = tiles.swapaxes(0, 1).reshape(target.shape)
                    at += size
        whole = sums.swapaxes(1, 2).reshape(len(sums) * side, -1)
        return np.ascontiguousarray(whole[: self.layer.rows, : self.layer.outputs])


def _blocks(segments: tuple[Segment, ...]) -> int:
    return sum(tiles * size for _, tiles, size in segments)


def _segments(blocks: int, size: int) -> tuple[Segment, ...]:
    """Cut ``blocks`` blocks into a segment of whole tiles, and one of a tile for the rest."""
    whole, rest = divmod(blocks, size)
    segments = ((0, whole, size), (whole * size, 1, rest))
    return tuple(each for each in segments if each[1] and each[2])


def _in_tiles(blocks: Int8, segments: tuple[Segment, ...]) -> bytes:
    """Return the bytes of a grid of blocks in the order: tile, grid column, grid row."""
    parts = []
    for first, tiles, size in segments:
        part = blocks[first : first + tiles * size]
        parts.append(part.reshape(tiles, size, *blocks.shape[1:]).swapaxes(1, 2).tobytes())
    return b"".join(parts)


def lower_extension(
    layer: LinearLayer, unit: MatrixUnit, wide: int | None = None
) -> ExtensionProgram:
    """Return the program of a layer for a matrix unit.

    Args:
        layer: the layer to lower.
        unit: the matrix unit that multiplies.
        wide: blocks of weights in a tile, so that programs for several numbers of rows read the
            same order of weights; None: the best for the layer's rows.

    Raises:
        AcceleratorError: operands and sums exceed a GiB, or the layer requantises its sums, which
            only the CPU can do.
    """
    if layer.requantisation != EXACT:
        raise AcceleratorError(
            f"{unit.name} leaves its sums in vector registers: the CPU narrows them",
            remedy="leave out --requantise",
        )
    blocks = [-(-extent // unit.rows) for extent in (layer.rows, layer.outputs)]
    down, across = map(_segments, blocks, unit.tile(blocks[0], wide))
    deep = -(-layer.inputs // unit.inputs)
    program = ExtensionProgram(layer, unit, (), down, across, deep)
    if program.size > _MOST:
        raise AcceleratorError(f"{layer.name}: its operands and sums pass {_MOST} bytes")
    words = [
        *encoding.load_immediate(_START, program.values_at),
        *encoding.load_immediate(_RESULTS, program.results_at),
    ]
    for _, rows, high in down:
        words += _rows(program, rows, high)
    return replace(program, words=(*words, encoding.ret()))


def _rows(program: ExtensionProgram, count: int, high: int) -> list[int]:
    """Return the code for ``count`` tiles of equal height, each by all weights."""
    body = encoding.load_immediate(_WEIGHTS, 0)
    for _, columns, wide in program.across:
        body += _loop(_ACROSS, columns, _tile(program, high, wide))
    body.append(encoding.addi(_START, _VALUES, 0))
    return _loop(_DOWN, count, body)


def _tile(program: ExtensionProgram, high: int, wide: int) -> list[int]:
    """Return the code that clears a tile's sums, adds the products of all inputs, and stores."""
    values = range(high)
    weights = range(high, high + wide)
    # Sums begin at an even register.
    first = high + wide + (high + wide) % 2
    sums = {
        (row, column): first + SUM_REGISTERS * ((row - values[0]) * wide + column - weights[0])
        for row in values
        for column in weights
    }
    step = program.unit.register
    loads = [(each, _VALUES) for each in values] + [(each, _WEIGHTS) for each in weights]
    body = []
    for register, cursor in loads:
        body += [encoding.load_bytes(register, cursor), encoding.addi(cursor, cursor, step)]
    body += [encoding.multiply(into, *operands) for operands, into in sums.items()]
    wide_type = encoding.set_vector_type(_LENGTH, VectorType.E32_M2)
    stores = []
    for into in sums.values():
        stores.append(encoding.store_words(into, _RESULTS))
        stores.append(encoding.addi(_RESULTS, _RESULTS, SUM_REGISTERS * step))
    return [
        encoding.addi(_VALUES, _START, 0),
        wide_type,
        *(encoding.clear(into) for into in sums.values()),
        encoding.set_vector_type(_LENGTH, VectorType.E8_M1),
        *_loop(_DEEP, program.deep, body),
        wide_type,
        *stores,
    ]


def _loop(counter: int, count: int, body: list[int]) -> list[int]:
    """Return code that runs ``body`` ``count`` times."""
    step = [*body, encoding.addi(counter, counter, -1)]
    back = encoding.branch_unless_zero(counter, -4 * len(step))
    return [*encoding.load_immediate(counter, count), *step, back]
