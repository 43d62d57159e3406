# SPDX-License-Identifier: Apache-2.0
"""The time of a product whose tiles pass through a memory with double buffering, step by step.

In a step the array computes a tile while the memory fetches the next tile and stores the previous
tile; the longest of the three determines the step's time. Without double buffering the three follow
each other.

A tile's position along each of the three loops determines its kind of step: first, middle, last but
one (after which the memory may fetch a ragged tile), or last. So at most 64 kinds of steps describe
a product with any number of tiles. All arrays below are kinds x mappings, so that one call
evaluates many mappings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.tiling import DIMENSIONS, Holding
from costmodel.estimate.transfer import MovedBits

Count = Any  # a numpy array of int64, kinds x mappings
State = tuple[int, int, int, bool, bool]  # extents of a tile; it begins, it finishes its sums


@dataclass(frozen=True)
class Steps:
    """The kinds of steps of a product under several mappings.

    Attributes:
        times: number of steps of a kind, or 0.
        m, n, k: extents of the step's tile.
        new, done: the tile begins, finishes its sums.
        fetched: bits fetched for the step's tile; following: for the next step's tile, during the
            step; the next product of a batch follows the last step.
        activation, weight: the part of ``fetched`` for A, for B.
        stored: bits of the step's result; before: of the previous step's result.
        first, last: the kind is the first, the last step of a product.
    """

    times: Count
    m: Count
    n: Count
    k: Count
    new: Count
    done: Count
    fetched: Count
    activation: Count
    weight: Count
    following: Count
    stored: Count
    before: Count
    first: Count
    last: Count

    @property
    def read(self) -> Count:
        """The fetched bits of each mapping."""
        return (self.times * self.fetched).sum(axis=0)

    @property
    def write(self) -> Count:
        """The stored bits of each mapping."""
        return (self.times * self.stored).sum(axis=0)

    def moved(self) -> MovedBits:
        """Return the bits that a single mapping fetches and stores, by operand."""
        activation, weight = (
            int((self.times * bits)[:, 0].sum()) for bits in (self.activation, self.weight)
        )
        read, write = int(self.read[0]), int(self.write[0])
        return MovedBits(activation, weight, read - activation - weight, write)

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
    sides = [np.array([getattr(holding.tile, d)]) for d in DIMENSIONS]
    orders = np.array([[DIMENSIONS.index(d)] for d in holding.order])
    return many_steps(region, sides, orders, scheme, on_chip)


def many_steps(
    region: State, tiles: Sequence[Count], orders: Count, scheme: Scheme, on_chip: frozenset[str]
) -> Steps:
    """Return the steps of a region under many mappings.

    Args:
        region: extents, and whether the region begins and finishes its sums.
        tiles: extents of the tiles along M, N and K, three arrays over mappings.
        orders: 3 x mappings, the dimension of each loop, outermost first.
        scheme: widths.
        on_chip: operands that a fused neighbour produces or consumes.
    """
    extents = np.array(region[:3]).reshape(3, 1)
    size = np.minimum(np.stack(tiles), extents)
    trips = -(-extents // size)
    loops = np.take_along_axis(trips, orders, axis=0)
    place, times = _places(loops)
    inverse = np.argsort(orders, axis=0)[:, None, :]
    here, after, back = (
        np.take_along_axis(p, inverse, axis=0)
        for p in (place, _odometer(place, loops, 1), _odometer(place, loops, -1))
    )
    ends = trips[:, None, :] - 1
    first, last = (here == 0).all(axis=0), (here == ends).all(axis=0)
    (m, n, k), following, before = (
        np.minimum(size[:, None, :], extents[:, None, :] - p * size[:, None, :])
        for p in (here, after, back)
    )
    new, done = (here[2] == 0) & region[3], (here[2] == ends[2]) & region[4]
    # Products of a batch share no matrices: every operand moves at a boundary between products.
    enters, leaves = (here != back) | first, (here != after) | last

    def fetched(tile: Count, moves: Count, fresh: Count) -> tuple[Count, Count, Count]:
        activation = weight = partial = np.zeros_like(m)
        if "A" not in on_chip:
            activation = (moves[0] | moves[2]) * scheme.activation_bits(tile[0], tile[2])
        if "B" not in on_chip:
            weight = (moves[1] | moves[2]) * scheme.weight_bits(tile[2], tile[1])
        if "C" not in on_chip:
            back = (moves[0] | moves[1]) & ~fresh
            partial = back * (tile[0] * tile[1] * scheme.accumulator)
        return activation, weight, partial

    def stored(tile: Count, moves: Count, whole: Count) -> Count:
        if "C" in on_chip:
            return np.zeros_like(m)
        width = np.where(whole, scheme.output, scheme.accumulator)
        return (moves[0] | moves[1]) * (tile[0] * tile[1] * width)

    bits = fetched((m, n, k), enters, new)
    return Steps(
        times=times,
        m=m,
        n=n,
        k=k,
        new=new,
        done=done,
        fetched=sum(bits),
        activation=bits[0],
        weight=bits[1],
        following=sum(fetched(following, leaves, (after[2] == 0) & region[3])),
        stored=stored((m, n, k), leaves, done),
        before=stored(before, enters, (back[2] == ends[2]) & region[4]),
        first=first & (times > 0),
        last=last & (times > 0),
    )


def _places(loops: Count) -> tuple[Count, Count]:
    """Return the positions of the kinds of steps in the three loops, and the steps of each kind."""
    zero = np.zeros_like(loops)
    marks = np.stack([zero, zero + 1, loops - 2, loops - 1])
    number = np.stack([zero + 1, np.maximum(loops - 3, 0), loops >= 3, loops >= 2])
    which = np.indices((4, 4, 4)).reshape(3, -1)
    times = np.prod([number[which[d], d] for d in range(3)], axis=0)
    used = times.any(axis=1)
    positions = np.stack([marks[which[d][used], d] for d in range(3)])
    return np.clip(positions, 0, loops[:, None, :] - 1), times[used]


def _odometer(place: Count, loops: Count, step: int) -> Count:
    """Return the positions of the next (1) or previous (-1) steps; past the end, the first."""
    positions = place.copy()
    carry: Count = True
    for d in (2, 1, 0):
        positions[d] = (place[d] + step * carry) % loops[d]
        carry = carry & (place[d] == (loops[d] - 1 if step > 0 else 0))
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
    if not double:
        alone = cycles + level.cycles(listed.fetched, 0) + level.cycles(0, listed.stored)
        return batch * (listed.times * alone).sum(axis=0)
    within = np.maximum(cycles, level.cycles(listed.following, listed.before))
    begin = np.maximum(cycles, level.cycles(listed.following, 0))
    end = np.maximum(cycles, level.cycles(0, listed.before))
    # The first step of the first product stores nothing; the last step of the last fetches nothing.
    edges = listed.first * (begin - within) + listed.last * (end - within)
    if batch == 1:
        edges = np.where(listed.first & listed.last, cycles - within, edges)
    fill = listed.first * level.cycles(listed.fetched, 0)
    drain = listed.last * level.cycles(0, listed.stored)
    return (batch * listed.times * within + edges + fill + drain).sum(axis=0)
