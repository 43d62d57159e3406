# SPDX-License-Identifier: Apache-2.0
"""The time of a product whose tiles pass through a memory with double buffering, step by step.

In a step the array computes a tile while the memory fetches the next tile and stores the previous
tile; the longest of the three determines the step's time. Without double buffering the three follow
each other.

A tile's position along each loop determines its kind of step: first, middle, last but one (after
which the memory may fetch a ragged tile), or last. So at most 64 kinds of steps describe a product
with any number of tiles. A convolution is a product whose rows are the rows and the columns of a
picture, with up to 256 kinds. All arrays below are kinds x mappings, so that one call evaluates
many mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.tiling import Holding
from costmodel.estimate.transfer import MovedBits

Count = Any  # a numpy array of int64, kinds x mappings
State = tuple[int, int, int, bool, bool]  # extents of a tile; it begins, it finishes its sums
# Bits of a picture's window for a tile: the tile's first row and column, its extents along rows,
# columns and channels.
Window = Callable[[Count, Count, Count, Count, Count], Count]
_ROWS, _COLUMNS, _N, _K = range(4)


@dataclass(frozen=True)
class Steps:
    """The kinds of steps of a product under several mappings.

    Attributes:
        times: number of steps of a kind, or 0.
        m, n, k: extents of the step's tile.
        new, done: the tile begins, finishes its sums.
        fetched: bits fetched for the step's tile; following: for the next step's tile, during the
            step; the next product of a batch follows the last step.
        stored: bits of the step's result; before: of the previous step's result.
        first, last: the kind is the first, the last step of a product.
    """

    times: Count
    m: Count
    n: Count
    k: Count
    new: Count
    done: Count
    fetched: MovedBits
    following: MovedBits
    stored: Count
    before: Count
    first: Count
    last: Count

    def moved(self) -> MovedBits:
        """Return the bits that the first mapping fetches and stores in all steps, by operand."""
        bits = {**vars(self.fetched), "stored": self.stored}
        return MovedBits(**{name: int((self.times * b)[:, 0].sum()) for name, b in bits.items()})

    def states(self) -> dict[State, list[int]]:
        """Return the distinct tiles of a single mapping, with their kinds of steps."""
        states: dict[State, list[int]] = {}
        for at in np.flatnonzero(self.times[:, 0]):
            m, n, k = (int(side[at, 0]) for side in (self.m, self.n, self.k))
            state = (m, n, k, bool(self.new[at, 0]), bool(self.done[at, 0]))
            states.setdefault(state, []).append(int(at))
        return states


def steps(region: State, holding: Holding, scheme: Scheme, on_chip: frozenset[str]) -> Steps:
    """Return the steps of a region, which is a product or a tile of an outer memory."""
    return many_steps(region, *holding.arrays(), scheme, on_chip)


def many_steps(
    region: State,
    tiles: Sequence[Count],
    orders: Count,
    scheme: Scheme,
    on_chip: frozenset[str],
    picture: tuple[int, Count, Window] | None = None,
) -> Steps:
    """Return the steps of a region under many mappings.

    Args:
        region: extents, and whether the region begins and finishes its sums.
        tiles: extents of the tiles along M, N and K, three arrays over mappings.
        orders: 3 x mappings, the dimension of each loop, outermost first.
        scheme: widths.
        on_chip: operands that a fused neighbour produces or consumes.
        picture: for a convolution: the columns of the result, whose rows are the region's M; the
            columns of the tiles; the bits of A for a tile.
    """
    across, wide, window = picture or (1, np.ones_like(tiles[0]), None)
    extents = np.array([region[0], across, *region[1:3]]).reshape(4, 1)
    size = np.minimum(np.stack([tiles[0], wide, *tiles[1:]]), extents)
    trips = -(-extents // size)
    order = _with_columns(orders)
    loops = np.take_along_axis(trips, order, axis=0)
    place, times = _places(loops)
    inverse = np.argsort(order, axis=0)[:, None, :]
    here, after, back = (
        np.take_along_axis(p, inverse, axis=0)
        for p in (place, _odometer(place, loops, 1), _odometer(place, loops, -1))
    )
    ends = trips[:, None, :] - 1
    first, last = (here == 0).all(axis=0), (here == ends).all(axis=0)
    tile, following, before = (
        np.minimum(size[:, None, :], extents[:, None, :] - p * size[:, None, :])
        for p in (here, after, back)
    )
    new, done = (here[_K] == 0) & region[3], (here[_K] == ends[_K]) & region[4]
    # Products of a batch share no matrices: every operand moves at a boundary between products.
    enters, leaves = (here != back) | first, (here != after) | last
    nothing = np.zeros_like(tile[_N])

    def rows(tile: Count) -> Count:
        return tile[_ROWS] * tile[_COLUMNS]

    def fetched(at: Count, tile: Count, moves: Count, fresh: Count) -> MovedBits:
        activation = weight = partial = nothing
        moved = moves[_ROWS] | moves[_COLUMNS]
        if "A" not in on_chip:
            bits = (
                scheme.activation_bits(rows(tile), tile[_K])
                if window is None
                else window(
                    at[_ROWS] * size[_ROWS], at[_COLUMNS] * size[_COLUMNS], *tile[[0, 1, 3]]
                )
            )
            activation = (moved | moves[_K]) * bits
        if "B" not in on_chip:
            weight = (moves[_N] | moves[_K]) * scheme.weight_bits(tile[_K], tile[_N])
        if "C" not in on_chip:
            again = (moved | moves[_N]) & ~fresh
            partial = again * (rows(tile) * tile[_N] * scheme.accumulator)
        return MovedBits(activation, weight, partial)

    def stored(tile: Count, moves: Count, whole: Count) -> Count:
        if "C" in on_chip:
            return nothing
        width = np.where(whole, scheme.output, scheme.accumulator)
        leaving = moves[_ROWS] | moves[_COLUMNS] | moves[_N]
        return leaving * (rows(tile) * tile[_N] * width)

    return Steps(
        times=times,
        m=rows(tile),
        n=tile[_N],
        k=tile[_K],
        new=new,
        done=done,
        fetched=fetched(here, tile, enters, new),
        following=fetched(after, following, leaves, (after[_K] == 0) & region[3]),
        stored=stored(tile, leaves, done),
        before=stored(before, enters, (back[_K] == ends[_K]) & region[4]),
        first=first & (times > 0),
        last=last & (times > 0),
    )


def _with_columns(orders: Count) -> Count:
    """Return orders of M, N and K as orders of rows, columns, N and K; columns are inside rows."""
    rows = (orders == 0).argmax(axis=0)
    shifted = np.where(orders > 0, orders + 1, orders)
    places = np.arange(4)[:, None]
    source = np.clip(places - (places > rows), 0, 2)
    return np.where(places == rows + 1, _COLUMNS, np.take_along_axis(shifted, source, axis=0))


def _places(loops: Count) -> tuple[Count, Count]:
    """Return the positions of the kinds of steps in the loops, and the steps of each kind."""
    zero = np.zeros_like(loops)
    # Windows in the middle of a picture have no padding; those beside the first may have some.
    marks = np.stack([zero, np.maximum((loops - 2) // 2, 1), loops - 2, loops - 1])
    number = np.stack([zero + 1, np.maximum(loops - 3, 0), loops >= 3, loops >= 2])
    kinds = [1 if (loop == 1).all() else 4 for loop in loops]
    which = np.indices(kinds).reshape(len(loops), -1)
    times: Count = prod(number[each, d] for d, each in enumerate(which))
    used = times.any(axis=1)
    positions = np.stack([marks[each[used], d] for d, each in enumerate(which)])
    return np.clip(positions, 0, loops[:, None, :] - 1), times[used]


def _odometer(place: Count, loops: Count, step: int) -> Count:
    """Return the positions of the next (1) or previous (-1) steps; past the end, the first."""
    positions = np.empty_like(place)
    carry: Count = np.True_
    for d in reversed(range(len(loops))):
        last = loops[d] - 1
        turns = carry & (place[d] == (last if step > 0 else 0))
        positions[d] = np.where(turns, 0 if step > 0 else last, place[d] + step * carry)
        carry = turns
    return positions


def duration(listed: Steps, cycles: Count, level: Level, double: bool, batch: int) -> Count:
    """Return the cycles of all steps, ``batch`` times, for each mapping.

    Args:
        listed: the steps of a product.
        cycles: of the array, for the tile of each kind.
        level: the memory from which tiles are fetched and in which they are stored.
        double: fetches and stores overlap the array's work.
        batch: number of products, one after the other.
    """
    fetched, following = listed.fetched.read, listed.following.read
    if not double:
        alone = cycles + level.cycles(fetched, 0) + level.cycles(0, listed.stored)
        return batch * (listed.times * alone).sum(axis=0)
    within = np.maximum(cycles, level.cycles(following, listed.before))
    begin = np.maximum(cycles, level.cycles(following, 0))
    end = np.maximum(cycles, level.cycles(0, listed.before))
    # The first step of the first product stores nothing; the last step of the last fetches nothing.
    edges = listed.first * (begin - within) + listed.last * (end - within)
    if batch == 1:
        edges = np.where(listed.first & listed.last, cycles - within, edges)
    fill = listed.first * level.cycles(fetched, 0)
    drain = listed.last * level.cycles(0, listed.stored)
    return (batch * listed.times * within + edges + fill + drain).sum(axis=0)
