# SPDX-License-Identifier: Apache-2.0
"""The time of a product whose tiles pass through a memory: double buffering, step by step.

In one step a tile is computed on while the next one is fetched and the last one is stored; the
step is as long as the longest of these. A memory that is not double buffered does the three one
after the other.

A step is known by its tile's place along each of the three loops: the first, one in the middle, the
one before the last (after which a ragged tile may be fetched), or the last. So at most 64 kinds of
steps say all of a product, whatever the number of its tiles, and many mappings are looked at in one
go: everything below is an array of kinds x mappings.
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
State = tuple[int, int, int, bool, bool]  # extents of a tile; are its sums new, does it finish them


@dataclass(frozen=True)
class Steps:
    """Kinds of steps of a product under some mappings.

    Attributes:
        times: steps of a kind, or 0.
        m, n, k: extents of the tile that a step works on.
        new, done: its sums begin, end here.
        fetched: bits of the step's own tile; following: of the next step's, that are fetched
            meanwhile, the last step's being the first one's of the next product of a batch.
        activation, weight: of those of the step's own tile, A's and B's.
        stored: bits that this step leaves; before: of the step before, likewise.
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
        """Bits fetched, of each mapping."""
        return (self.times * self.fetched).sum(axis=0)

    @property
    def write(self) -> Count:
        """Bits stored, of each mapping."""
        return (self.times * self.stored).sum(axis=0)

    def moved(self) -> MovedBits:
        """Bits that a single mapping fetches and stores, by operand."""
        activation, weight = (
            int((self.times * bits)[:, 0].sum()) for bits in (self.activation, self.weight)
        )
        read, write = int(self.read[0]), int(self.write[0])
        return MovedBits(activation, weight, read - activation - weight, write)

    def states(self) -> dict[State, list[int]]:
        """Tiles of a single mapping that differ, and the kinds of steps that work on them."""
        found: dict[State, list[int]] = {}
        for at in np.flatnonzero(self.times[:, 0]):
            m, n, k = (int(side[at, 0]) for side in (self.m, self.n, self.k))
            state = (m, n, k, bool(self.new[at, 0]), bool(self.done[at, 0]))
            found.setdefault(state, []).append(int(at))
        return found


def steps(region: State, holding: Holding, scheme: Scheme, on_chip: frozenset[str]) -> Steps:
    """List the steps of a region: a product, or a tile of an outer memory."""
    sides = [np.array([getattr(holding.tile, d)]) for d in DIMENSIONS]
    orders = np.array([[DIMENSIONS.index(d)] for d in holding.order])
    return many_steps(region, sides, orders, scheme, on_chip)


def many_steps(
    region: State, tiles: Sequence[Count], orders: Count, scheme: Scheme, on_chip: frozenset[str]
) -> Steps:
    """List the steps of a region under many mappings.

    Args:
        region: extents, and whether its sums begin and end here.
        tiles: extents of the tiles along M, N and K, each of one length.
        orders: 3 x mappings, the dimension of each loop, outermost first.
        scheme: widths.
        on_chip: operands that a fused neighbour makes or takes.
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
    # Neighbours in a batch are other matrices: all is fetched and stored at their boundary.
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

    own = fetched((m, n, k), enters, new)
    return Steps(
        times=times,
        m=m,
        n=n,
        k=k,
        new=new,
        done=done,
        fetched=sum(own),
        activation=own[0],
        weight=own[1],
        following=sum(fetched(following, leaves, (after[2] == 0) & region[3])),
        stored=stored((m, n, k), leaves, done),
        before=stored(before, enters, (back[2] == ends[2]) & region[4]),
        first=first & (times > 0),
        last=last & (times > 0),
    )


def _places(loops: Count) -> tuple[Count, Count]:
    """Places of the kinds of steps in the three loops, and the steps of each kind."""
    zero = np.zeros_like(loops)
    marks = np.stack([zero, zero + 1, loops - 2, loops - 1])
    number = np.stack([zero + 1, np.maximum(loops - 3, 0), loops >= 3, loops >= 2])
    which = np.indices((4, 4, 4)).reshape(3, -1)
    times = np.prod([number[which[d], d] for d in range(3)], axis=0)
    used = times.any(axis=1)
    place = np.stack([marks[which[d][used], d] for d in range(3)])
    return np.clip(place, 0, loops[:, None, :] - 1), times[used]


def _odometer(place: Count, loops: Count, step: int) -> Count:
    """Places of the steps after (1) or before (-1); past the end it begins again."""
    found = place.copy()
    carry: Count = True
    for d in (2, 1, 0):
        found[d] = (place[d] + step * carry) % loops[d]
        carry = carry & (place[d] == (loops[d] - 1 if step > 0 else 0))
    return found


def duration(listed: Steps, cycles: Count, level: Level, double: bool, batch: int) -> Count:
    """Cycles of all steps, ``batch`` times, of each mapping.

    Args:
        listed: the steps of one product.
        cycles: of the work on the tile of each kind.
        level: the memory that tiles come from and go to.
        double: the next tile is fetched while one is worked on.
        batch: products, one after the other.
    """
    if not double:
        alone = cycles + level.cycles(listed.fetched, 0) + level.cycles(0, listed.stored)
        return batch * (listed.times * alone).sum(axis=0)
    within = np.maximum(cycles, level.cycles(listed.following, listed.before))
    begin = np.maximum(cycles, level.cycles(listed.following, 0))
    end = np.maximum(cycles, level.cycles(0, listed.before))
    # The first product's first step has nothing to store yet, the last one's last nothing to fetch.
    edges = listed.first * (begin - within) + listed.last * (end - within)
    if batch == 1:
        edges = np.where(listed.first & listed.last, cycles - within, edges)
    fill = listed.first * level.cycles(listed.fetched, 0)
    drain = listed.last * level.cycles(0, listed.stored)
    return (batch * listed.times * within + edges + fill + drain).sum(axis=0)
