# SPDX-License-Identifier: Apache-2.0
"""Fit a board's parameters to published rows, and judge rows that were left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

from crosslab.boards.board import Board
from crosslab.boards.published import Row, read_rows

# Factors by which a search changes a parameter; each is tried until none is better.
STEPS = (1.3, 1.1, 1.02, 1.005)
# A parameter whose first step changes an error by less has no effect on it.
LEAST_EFFECT = 1e-3


def loss(board: Board, rows: Sequence[Row]) -> float:
    """Return the mean of abs(ln(predicted / measured)); rows with an assumption count half."""
    weights = [0.5 if row.assumed else 1.0 for row in rows]
    errors = (abs(math.log1p(row.error(board))) for row in rows)
    return sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)


def fit(board: Board, rows: Sequence[Row]) -> Board:
    """Return the board with the fitted parameters that have the least loss near its own."""
    best, least = board, loss(board, rows)
    for step in STEPS:
        better = True
        while better:
            better = False
            for name, factor in product(board.fitted, (step, 1 / step)):
                tried = best.with_parameter(name, best.parameter(name) * factor)
                if (found := loss(tried, rows)) < least - 1e-9:
                    best, least, better = tried, found, True
    return best


@cache
def left_out(board: Board, rows: tuple[Row, ...]) -> Mapping[Row, float]:
    """Return each row's relative error with parameters fitted to the rows of other sources.

    If those do not determine a parameter that the row depends on, the row alone is left out; NaN:
    the other rows do not determine it either.
    """
    errors = {}
    fits: dict[tuple[Row, ...], Board] = {}
    for row in rows:
        errors[row] = math.nan
        of_sources = tuple(one for one in rows if one.source != row.source)
        for others in (of_sources, tuple(one for one in rows if one is not row)):
            if others and _determine(board, others, row):
                if others not in fits:
                    fits[others] = fit(board, others)
                errors[row] = row.error(fits[others])
                break
    return errors


def _determine(board: Board, others: Sequence[Row], row: Row) -> bool:
    """True if every parameter that a row depends on also has an effect on other rows' loss."""
    for name in board.fitted:
        tried = board.with_parameter(name, board.parameter(name) * STEPS[0])
        of_others = abs(loss(tried, others) - loss(board, others))
        if of_others < LEAST_EFFECT <= abs(row.error(tried) - row.error(board)):
            return False
    return True


def error_of(board: Board, phase: str) -> float | None:
    """Return the median size of :func:`left_out`'s errors of a phase; None if no row has one."""
    rows = tuple(row for row in read_rows() if row.board == board.key)
    errors = (abs(error) for row, error in left_out(board, rows).items() if row.phase == phase)
    known = [error for error in errors if not math.isnan(error)]
    return statistics.median(known) if known else None
