# SPDX-License-Identifier: Apache-2.0
"""Division of a loop into vectors of few widths."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import arith, tirx

from ..tir import uses

# Shorter vectors are not worth their setting up.
FEWEST_LANES = 4


@dataclass(frozen=True)
class Piece:
    """Iterations of a loop that use vectors of one width (1: scalars)."""

    start: int
    lanes: int
    runs: int


def pieces_of(extent: int, most: int) -> list[Piece]:
    """Split a loop into pieces of vectors, at most ``most`` lanes (a power of 2); [] if too few.

    One width for all of them if that is half of the most, at least; otherwise the widest vectors
    that there are enough iterations for, then narrower ones, and the last few one by one.
    """
    lanes = math.gcd(extent, most)
    if 2 * lanes >= most and lanes >= FEWEST_LANES:
        return [Piece(0, lanes, extent // lanes)]
    pieces, start, lanes = [], 0, most
    while lanes >= FEWEST_LANES:
        if runs := (extent - start) // lanes:
            pieces.append(Piece(start, lanes, runs))
            start += runs * lanes
        lanes //= 2
    if pieces and start < extent:
        pieces.append(Piece(start, 1, extent - start))
    return pieces


def loop_over(piece: Piece, name: str, dtype: Any, body: Callable[[Any, Any], Any]) -> Any:
    """Return the loop of a piece; ``body`` takes the lane and the index."""
    run, lane = tirx.Var(name, dtype), tirx.Var("lane", dtype)
    start = tirx.const(piece.start, dtype)
    if piece.lanes == 1:
        # Not a loop that threads would share: it is shorter than any vector.
        return tirx.For(run, 0, piece.runs, tirx.ForKind.UNROLLED, body(run, start + run))
    inner = body(lane, run * piece.lanes + lane + start)
    inner = tirx.For(lane, 0, piece.lanes, tirx.ForKind.VECTORIZED, inner)
    return tirx.For(run, 0, piece.runs, tirx.ForKind.SERIAL, inner)


def steps_by_one(access: Any, bindings: dict[Any, Any], var: Any) -> bool:
    """Return True if an access reaches the next element as a variable grows, or loads the same.

    Args:
        access: load or store of a buffer.
        bindings: values of other variables in its indices.
        var: the variable.
    """
    if not access.indices:  # one number, which every element may read
        return isinstance(access, tirx.BufferLoad)
    *outer, last = (tirx.stmt_functor.substitute(i, bindings) for i in access.indices)
    if any(uses(i, var) for i in outer):
        return False
    if not uses(last, var):
        return isinstance(access, tirx.BufferLoad)
    linear = arith.detect_linear_equation(last, [var])
    return len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) == 1
