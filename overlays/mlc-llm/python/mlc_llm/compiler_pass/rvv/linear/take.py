# SPDX-License-Identifier: Apache-2.0
"""Rows of a matrix by their numbers, as the embedding of tokens takes them.

A model whose embedding is its last linear layer as well keeps one matrix for both. Where that is
in tiles, rows are taken from it by a kernel. The embedding is a block
``out[i, j] = B[rows[i], j]``, over float32; B may be dequantized in the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from ..kernel_library import Packing
from ..stages import Stage, same_extents, stages_of
from ..tir import PatternMismatch, block_of, whole, with_root
from .match import match_unpacked


@dataclass(frozen=True)
class TakenRows:
    """A gather of rows: out[count, k] = weight[rows[count], k].

    Attributes:
        out: [count, k].
        rows: [count], int32.
        weight: [n, k], or its packed values (uint32).
        packing: layout of packed values, else None.
        scale: the scales of packed values, else None.
    """

    out: Any
    rows: Any
    weight: Any
    packing: Packing | None = None
    scale: Any = None


def match_take(func: tirx.PrimFunc) -> TakenRows | None:
    """Read a function that only gathers rows; None for other functions."""
    stages = stages_of(func) or []
    if not 1 <= len(stages) <= 2 or len(stages[-1].block.iter_vars) != 2:
        return None
    try:
        return _match(stages[-1], stages)
    except PatternMismatch:
        return None


def _match(stage: Stage, stages: list[Stage]) -> TakenRows:
    store, (line, column) = stage.block.body, (axis.var for axis in stage.block.iter_vars)
    regions = [region.buffer for region in stage.block.reads]
    rows = [b for b in regions if len(b.shape) == 1 and str(b.dtype) == "int32"]
    matrices = [b for b in regions if len(b.shape) == 2]
    if len(rows) != 1 or len(matrices) + 1 != len(regions) or len(matrices) != len(stages):
        raise PatternMismatch("it does not take rows")
    if str(stage.written.dtype) != "float32":
        # Such as halves: what the block must store could not even be written down.
        raise PatternMismatch(f"{stage.written.name} is {stage.written.dtype}")
    row = tirx.BufferLoad(rows[0], [line])
    taken = TakenRows(stage.written, rows[0], matrices[0])
    if len(stages) == 2:
        # What is in the block is one of the two stages of a dequantization, by the row's number.
        packing, packed, scale, value = match_unpacked(stage, stages[0], [row, column])
        taken = TakenRows(stage.written, rows[0], packed, packing, scale)
    else:
        value = tirx.BufferLoad(matrices[0], [row, column])
    if not structural_equal(store, tirx.BufferStore(stage.written, value, [line, column])):
        raise PatternMismatch("it does not take rows")
    extents = [axis.dom.extent for axis in stage.block.iter_vars]
    k = taken.out.shape[1]
    width = taken.packing.words(int(k)) if taken.packing else k
    if (
        not same_extents(extents, taken.out.shape)
        or not same_extents([rows[0].shape[0], taken.weight.shape[1]], [extents[0], width])
        or any(b is not None and str(b.dtype) != "float32" for b in (taken.out, taken.scale))
        or str(taken.weight.dtype) != ("uint32" if taken.packing else "float32")
    ):
        raise PatternMismatch("its loops do not cover the buffers")
    return taken


def take_rows(func: tirx.PrimFunc, taken: TakenRows, call: Any) -> tirx.PrimFunc:
    """Replace the loops of a function that gathers rows by a statement, ``call``."""
    buffers = [taken.rows, taken.weight, taken.scale]
    reads = [whole(buffer) for buffer in buffers if buffer is not None]
    new = with_root(func, [block_of(call, "take", reads, [whole(taken.out)])], [])
    return new.with_attr("tirx.is_scheduled", True)
