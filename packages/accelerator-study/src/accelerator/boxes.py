# SPDX-License-Identifier: Apache-2.0
"""Boxes of a picture, rows x columns x channel blocks, as few 2D transfers as possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accelerator.device import MemoryId
from accelerator.isa.instructions import Opcode, Transfer
from accelerator.layer import MOST_PADDING, Geometry
from costmodel.estimate.window import Span


@dataclass(frozen=True)
class Range:
    """Neighbouring blocks or positions: the first, and their number."""

    at: Any
    size: Any


@dataclass(frozen=True)
class Box:
    """A part of a picture in DRAM, and its place in a buffer.

    For the count of transfers, spans and sizes may be numpy arrays.

    Attributes:
        rows, columns: samples of the picture, with padding.
        channels: blocks of the picture.
        picture: the picture's columns and blocks of channels.
        pitch: samples of a row, and blocks of a sample, in the buffer.
        steps: rows and columns of the picture from sample to sample.
    """

    rows: Span
    columns: Span
    channels: Range
    picture: tuple[int, int]
    pitch: tuple[Any, Any]
    steps: tuple[int, int] = (1, 1)

    @property
    def row_is_dense(self) -> Any:
        """True if a row of the picture is contiguous: a transfer may take rows of it."""
        width, deep = self.pitch
        behind = (width - self.columns.before - self.columns.count) * deep
        dense = (self.channels.size == self.picture[1]) & (deep == self.channels.size)
        padded = (self.columns.before * deep <= MOST_PADDING) & (behind <= MOST_PADDING)
        high = (self.rows.before <= MOST_PADDING) & (self.rows.after <= MOST_PADDING)
        inside = (self.rows.count > 0) & (self.columns.count > 0)
        return dense & padded & high & inside & (self.steps[1] == 1)

    @property
    def rows_are_adjacent(self) -> Any:
        """True if samples are equally far apart, also across rows: a transfer may take samples."""
        whole = (self.columns.count == self.picture[0]) & (self.pitch[0] == self.picture[0])
        unpadded = (self.rows.before + self.rows.after == 0) & (self.rows.count > 0)
        return whole & unpadded & (self.steps == (1, 1))

    @property
    def transfers(self) -> Any:
        """The number of transfers that move data."""
        single = self.row_is_dense | self.rows_are_adjacent
        return single + (1 - 1 * single) * self.rows.count * (self.columns.count > 0)


def window_of(
    shape: Geometry, rows: Range, columns: Range, channels: Range, whole: tuple[Any, Any]
) -> Box:
    """Return the part of a layer's picture that a step of a tile of the result reads.

    ``whole``: columns of the result and blocks of inputs in a whole tile. Micro-ops of a large
    kernel contain the pitches of whole tiles in the buffer.
    """
    across, deep = whole if shape.kernel > 1 else (columns.size, channels.size)
    return Box(
        rows=shape.rows.span(rows.at, rows.size),
        columns=shape.columns.span(columns.at, columns.size),
        channels=channels,
        picture=(shape.columns.extent, shape.bundles * shape.inputs),
        pitch=(shape.columns.samples(across), deep),
        steps=(shape.rows.step, shape.columns.step),
    )


def results_of(shape: Geometry, rows: Range, columns: Range, channels: Range) -> Box:
    """Return the part of a layer's result that a tile computes."""
    down, across = (Span(each.at, each.size) for each in (rows, columns))
    picture = (shape.columns.outputs, shape.bundles * shape.outputs)
    return Box(down, across, channels, picture, pitch=(columns.size, channels.size))


def transfers(
    opcode: Opcode, memory: MemoryId, sram: int, dram: int, box: Box
) -> Iterator[Transfer]:
    """Yield the transfers of a box: one if possible, else one for each row, and those of padding.

    An element is a block of channels. Elements are in the order rows x columns x channel blocks.

    Args:
        opcode: LOAD, or STORE of a box without padding.
        memory: the buffer.
        sram: the box's first element in the buffer, padding included.
        dram: the whole picture's first element in DRAM.
        box: the part of the picture to move.
    """
    rows, columns, (width, deep) = box.rows, box.columns, box.pitch
    across, every = box.picture
    row_step, column_step = box.steps[0] * across * every, box.steps[1] * every
    begin = dram + (rows.first * across + columns.first) * every + box.channels.at
    channels, right = box.channels.size, deep - box.channels.size
    if box.row_is_dense:
        left = columns.before * deep
        size = columns.count * deep
        pads = (rows.before, rows.after, left, width * deep - left - size)
        yield Transfer(opcode, memory, sram, begin, rows.count, size, row_step, *pads)
        return
    if box.rows_are_adjacent:
        count = rows.count * across
        yield Transfer(opcode, memory, sram, begin, count, channels, every, pad_right=right)
        return
    inside = columns.count > 0
    yield from _zeros(memory, sram, dram, rows.before, width * deep)
    for row in range(rows.count if inside else 0):
        yield Transfer(
            opcode,
            memory,
            sram + (rows.before + row) * width * deep,
            begin + row * row_step,
            columns.count,
            channels,
            column_step,
            columns.before,
            columns.after,
            0,
            right,
        )
    rest = rows.after if inside else rows.count + rows.after
    yield from _zeros(memory, sram + (rows.samples - rest) * width * deep, dram, rest, width * deep)


def _zeros(memory: MemoryId, sram: int, dram: int, rows: int, size: int) -> Iterator[Transfer]:
    """Yield LOADs that move no data; their padding is ``rows`` rows of ``size`` zeros each."""
    for row in range(0, rows, MOST_PADDING):
        count = min(MOST_PADDING, rows - row)
        yield Transfer(Opcode.LOAD, memory, sram + row * size, dram, 0, size, size, pad_above=count)
