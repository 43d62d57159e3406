# SPDX-License-Identifier: Apache-2.0
"""Rows of buffers, a vector at a time: what the attention kernels for CPUs move and add up.

The functions are called while a kernel in TVMScript is parsed, and emit loops where that is.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target

# Most elements of a vector: register groups of eight at a VLEN of 256 bits.
MOST_LANES = 64


def register_bits(target: Target | None) -> int:
    """Return a target's "vector-width", the bits of a vector register; 0 if it is not set."""
    return int(target.attrs.get("vector-width", None) or 0) if target else 0


def lanes_of(width: int, most: int = MOST_LANES // 2) -> int:
    """Return the lanes of a vector loop: the greatest common divisor of `width` and `most`."""
    return math.gcd(width, most)


@contextmanager
def columns(width: int, lanes: int | None = None, blocks: Any = T.serial) -> Iterator[tuple]:
    """Open a vectorized loop over the columns of a row; yield the index of a column.

    Args:
        width: number of columns.
        lanes: elements of a vector, a divisor of the width; None for `lanes_of` it.
        blocks: the kind of the loop over vectors.

    Yields:
        The first column of a vector and the number of one behind it: their sum is a column.

    Raises:
        ValueError: the lanes do not divide the width.
    """
    lanes = lanes or lanes_of(width)
    if width % lanes:
        raise ValueError(f"{width} columns are no whole vectors of {lanes}")
    with blocks(width // lanes) as block, T.vectorized(lanes) as lane:
        IRBuilder.name("block", block)
        IRBuilder.name("lane", lane)
        yield block * lanes, lane


def fill_row(to: Any, at: tuple, width: int, value: Callable[[Any], Any], **loop: Any) -> None:
    """Write value(c) to column c of the row `at` of a buffer; `loop` is as for columns."""
    with columns(width, **loop) as (first, lane):
        T.buffer_store(to, value(first + lane), [*at, first + lane])


def zero_row(to: Any, at: tuple, width: int, **loop: Any) -> None:
    """Write zeros to a row."""
    fill_row(to, at, width, lambda _: T.float32(0), **loop)


def copy_row(
    to: Any, at: tuple, width: int, source: Any, row: tuple, factor: Any = None, **loop: Any
) -> None:
    """Write the row `row` of `source`, in float32 times a factor, to the row `at` of `to`."""

    def value(column: Any) -> Any:
        element = T.cast(source[(*row, column)], "float32")
        if factor is not None:
            element = element * factor
        return T.cast(element, to.dtype)

    fill_row(to, at, width, value, **loop)
