# SPDX-License-Identifier: Apache-2.0
"""TENET's definitions, spelled out over Python sets: the slow truth the engines must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
