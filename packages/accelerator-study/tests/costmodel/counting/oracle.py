# SPDX-License-Identifier: Apache-2.0
"""TENET's definitions over Python sets, and a walk over tiles access by access: the slow truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

from costmodel.counting.space import Access, Box, Fabric, SpaceTime


def instances(domain: Box) -> Iterator[dict[str, int]]:
    for point in product(*(range(low, high) for low, high in domain.bounds)):
        values = dict(zip(domain.names, point, strict=True))
        if all(c.evaluate(values) >= 0 for c in domain.constraints):
            yield values


def place_and_time(mapping: SpaceTime, values: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    place = tuple(int(e.evaluate(values)) for e in mapping.space)
    return place, tuple(int(e.evaluate(values)) for e in mapping.time)


def stamps(domain: Box, mapping: SpaceTime) -> list[tuple[int, ...]]:
    return sorted({place_and_time(mapping, v)[1] for v in instances(domain)})


def multiplicity(domain: Box, mapping: SpaceTime) -> int:
    return max(Counter(place_and_time(mapping, v) for v in instances(domain)).values())


def busiest(domain: Box, mapping: SpaceTime) -> Counter[tuple[int, ...]]:
    return Counter(place_and_time(mapping, v)[0] for v in instances(domain))


def unique(domain: Box, mapping: SpaceTime, fabric: Fabric, access: Access) -> int:
    ordered = stamps(domain, mapping)
    before = dict(zip(ordered[1:], ordered, strict=False))
    held: set[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = set()
    last = {n: high - 1 for n, (_, high) in zip(domain.names, domain.bounds, strict=True)}
    for values in instances(domain):
        if any(values[name] != last[name] for name in access.pinned):
            continue
        place, time = place_and_time(mapping, values)
        for index in access.indices:
            held.add((place, time, tuple(int(e.evaluate(values)) for e in index)))
    still = (0,) * len(fabric.shape)
    count = 0
    for place, time, element in held:
        sources = [(p, t) for p in (still, *fabric.feeds) for t in (time, before.get(time))]
        count += not any(
            (tuple(a + b for a, b in zip(place, p, strict=True)), t, element) in held
            for p, t in sources
            if t is not None and (any(p) or t != time)
        )
    return count


Part = tuple[range, range, range]  # along M, N and K
SIDES = {"A": (0, 2), "B": (2, 1), "C": (0, 1)}


@dataclass
class Walk:
    """Every access to every memory of a product whose tiles pass through some of them.

    Attributes:
        extents: M, N, K.
        plan: tile and loop order of each memory, from the array outwards; one more holds all.
        widths: bits of an element of A, of B, of an unfinished sum, of a result.
        array: elements of A, B and C that cross the array's boundary for a tile.
        kept: operands that stay in the first memory.
        counts: bits by memory, and in it by "read", "write", "filled" and "drained".
    """

    extents: tuple[int, int, int]
    plan: list[tuple[tuple[int, int, int], tuple[str, ...]]]
    widths: tuple[int, int, int, int]
    array: Callable[[int, int, int], tuple[int, int, int]]
    kept: frozenset[str] = frozenset()
    counts: list[Counter[str]] = field(default_factory=list)
    done: Counter[tuple[int, int]] = field(default_factory=Counter)  # products in each sum

    def run(self) -> list[Counter[str]]:
        self.counts = [Counter() for _ in range(len(self.plan) + 1)]
        self.region(len(self.plan), (*(range(e) for e in self.extents),))
        return self.counts

    def width(self, at: tuple[int, int]) -> int:
        return self.widths[3 if self.done[at] == self.extents[2] else 2]

    def region(self, depth: int, part: Part) -> None:
        """Work on a part that memory ``depth`` holds by the tiles of the one inside it."""
        if not depth:
            self.compute(part)
            return
        tile, order = self.plan[depth - 1]
        sides = dict(zip("mnk", zip(part, tile, strict=True), strict=True))
        held: dict[str, tuple[range, range]] = {}
        starts = [range(sides[d][0].start, sides[d][0].stop, sides[d][1]) for d in order]
        for at in product(*starts):
            first = dict(zip(order, at, strict=True))
            own = tuple(range(first[d], min(first[d] + t, p.stop)) for d, (p, t) in sides.items())
            for name, (one, other) in SIDES.items():
                wanted = own[one], own[other]
                if held.get(name) == wanted or name in self.kept:
                    continue
                if name == "C" and "C" in held:
                    self.drain(depth, held["C"])
                held[name] = wanted
                self.fill(depth, name, wanted)
            self.region(depth - 1, (own[0], own[1], own[2]))
        if "C" in held:
            self.drain(depth, held["C"])

    def fill(self, depth: int, name: str, part: tuple[range, range]) -> None:
        """Each element is read from the outer memory and written to the inner one."""
        for at in product(*part):
            if name == "C" and not self.done[at]:
                continue  # a new sum begins at nought
            bits = self.width(at) if name == "C" else self.widths["AB".index(name)]
            self.counts[depth]["read"] += bits
            self.counts[depth - 1]["write"] += bits
            self.counts[depth - 1]["filled"] += bits

    def drain(self, depth: int, part: tuple[range, range]) -> None:
        """Each sum is read from the inner memory and written to the outer one."""
        for at in product(*part):
            bits = self.width(at)
            self.counts[depth - 1]["read"] += bits
            self.counts[depth - 1]["drained"] += bits
            self.counts[depth]["write"] += bits

    def compute(self, part: Part) -> None:
        """A tile on the array: operands and unfinished sums are read, sums are written."""
        a, b, visits = self.array(*(len(side) for side in part))
        sums = list(product(*part[:2]))
        begun = sum(self.done[at] > 0 for at in sums)
        self.done.update({at: len(part[2]) for at in sums})
        finished = sum(self.done[at] == self.extents[2] for at in sums)
        first, unfinished = self.counts[0], self.widths[2]
        first["read"] += a * self.widths[0] + b * self.widths[1]
        first["read"] += (visits - len(sums) + begun) * unfinished
        first["write"] += finished * self.widths[3] + (visits - finished) * unfinished
