# SPDX-License-Identifier: Apache-2.0
"""The integer solutions of a small linear system inside a box."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from operator import mul

Row = tuple[tuple[int, ...], int]  # weights and right side
Ranges = list[tuple[int, int]]


def solutions(
    matrix: list[list[int]], right: list[int], low: list[int], high: list[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the integer vectors ``x``, ``low <= x <= high``, with ``matrix @ x == right``.

    The rows are reduced first, so that a triangular system needs no search; the search branches
    on the variable with the fewest values.
    """
    reduced = _reduced(tuple(map(tuple, matrix)))
    rows = [(w, sum(map(mul, made, right))) for w, made in reduced]
    if any(not any(w) and r for w, r in rows):
        return
    rows = [row for row in rows if any(row[0])]
    yield from _search(rows, list(zip(low, high, strict=True)))


@lru_cache(maxsize=1 << 12)
def _reduced(matrix: tuple[tuple[int, ...], ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the rows after Gauss-Jordan elimination in integers, without common factors.

    Beside each row are the factors of the matrix's rows that it is the sum of.
    """
    size, columns = len(matrix), len(matrix[0]) if matrix else 0
    rows = [[*row, *(int(n == at) for n in range(size))] for at, row in enumerate(matrix)]
    done = 0
    for column in range(columns):
        pivot = next((n for n in range(done, len(rows)) if rows[n][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        pivot_row = rows[done]
        for n, row in enumerate(rows):
            if n != done and row[column]:
                scale, factor = pivot_row[column], row[column]
                mixed = [scale * v - factor * p for v, p in zip(row, pivot_row, strict=True)]
                common = gcd(*mixed) or 1
                rows[n] = [v // common for v in mixed]
        done += 1
    return [(tuple(r[:columns]), tuple(r[columns:])) for r in rows]


def _search(rows: list[Row], ranges: Ranges) -> Iterator[tuple[int, ...]]:
    narrowed = _propagate(rows, ranges)
    if narrowed is None:
        return
    open_ = [n for n, (low, high) in enumerate(narrowed) if low < high]
    if not open_:
        yield tuple(low for low, _ in narrowed)
        return
    branch = min(open_, key=lambda n: narrowed[n][1] - narrowed[n][0])
    low, high = narrowed[branch]
    for value in range(low, high + 1):
        yield from _search(rows, [*narrowed[:branch], (value, value), *narrowed[branch + 1 :]])


def _propagate(rows: list[Row], ranges: Ranges) -> Ranges | None:
    """Tighten the ranges by every row up to a fixed point; None if a range is empty."""
    ranges = list(ranges)
    changed = True
    while changed:
        changed = False
        for weights, right in rows:
            for n, weight in enumerate(weights):
                if not weight:
                    continue
                bounds = _bound(weights, right, ranges, n)
                if bounds is None:
                    return None
                if bounds != ranges[n]:
                    ranges[n], changed = bounds, True
    return ranges


def _bound(
    weights: tuple[int, ...], right: int, ranges: Ranges, target: int
) -> tuple[int, int] | None:
    """Return the range of a variable that a row allows for the others' ranges; None if empty."""
    least = most = right
    for n, weight in enumerate(weights):
        if weight and n != target:
            ends = (weight * ranges[n][0], weight * ranges[n][1])
            least, most = least - max(ends), most - min(ends)
    weight = weights[target]
    if weight < 0:
        weight, least, most = -weight, -most, -least
    low = max(ranges[target][0], -(-least // weight))
    high = min(ranges[target][1], most // weight)
    return (low, high) if low <= high else None
