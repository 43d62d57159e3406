# SPDX-License-Identifier: Apache-2.0
"""Exact volumes by enumeration of every instance: slow, for every map that can be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.counting.affine import Affine
from costmodel.counting.digits import Ints
from costmodel.counting.space import (
    Access,
    Box,
    Fabric,
    NoInstanceError,
    NotInjectiveError,
    Occupancy,
    OutsideArrayError,
    SpaceTime,
)

MAX_POINTS = 1 << 24


class TooLargeError(Exception):
    """The error for more instances than can be enumerated."""


@dataclass(frozen=True)
class Enumerated:
    """All instances of a dataflow, and an access.

    Attributes:
        values: each dimension's value for every instance.
        place: flattened PE; order: rank of the time stamp among the used stamps.
    """

    fabric: Fabric
    access: Access
    values: dict[str, Ints]
    place: Ints
    order: Ints
    stamps: int

    def occupancy(self) -> Occupancy:
        """Count stamps, PEs and lanes; raise NotInjectiveError if lanes are too few."""
        slots = self.place * self.stamps + self.order
        ranked = np.sort(slots)
        starts = np.nonzero(np.diff(ranked, prepend=ranked[:1] - 1))[0]
        lanes = int(np.diff(starts, append=len(ranked)).max())
        if lanes > self.fabric.lanes:
            raise NotInjectiveError(*self._clash(slots, ranked), lanes)
        per_pe = np.bincount(self.place)
        return Occupancy(
            instances=len(slots),
            stamps=self.stamps,
            active_pes=int((per_pe > 0).sum()),
            busiest=-(-int(per_pe.max()) // lanes),
            lanes=lanes,
        )

    def _clash(self, slots: Ints, ranked: Ints) -> tuple[dict[str, int], dict[str, int]]:
        twice = ranked[1:][ranked[1:] == ranked[:-1]][0]
        first, second = np.nonzero(slots == twice)[0][:2]
        pick = {n: (int(v[first]), int(v[second])) for n, v in self.values.items()}
        return {n: p[0] for n, p in pick.items()}, {n: p[1] for n, p in pick.items()}

    def unique(self) -> int:
        """Count the accesses whose element no PE can pass on."""
        keep = self._kept()
        elements = self._elements(keep)
        count = int(elements.max()) + 1
        place, order = (
            np.tile(each[keep], len(self.access.indices)) for each in (self.place, self.order)
        )
        keys = np.unique((place * self.stamps + order) * count + elements)
        element, slot = keys % count, keys // count
        order, place = slot % self.stamps, slot // self.stamps
        reused = np.zeros(len(keys), dtype=bool)
        for feed in ((0,) * len(self.fabric.shape), *self.fabric.feeds):
            other, valid = self._moved(place, feed)
            for back in (0, 1):
                if back == 0 and not any(feed):
                    continue
                wanted = (other * self.stamps + order - back) * count + element
                reused |= valid & (order >= back) & _isin_sorted(wanted, keys)
        return int((~reused).sum())

    def _kept(self) -> Ints:
        keep = np.ones(len(self.place), dtype=bool)
        for name in self.access.pinned:
            keep &= self.values[name] == self.values[name].max()
        return np.nonzero(keep)[0]

    def _elements(self, keep: Ints) -> Ints:
        values = {n: v[keep] for n, v in self.values.items()}
        tuples = [_columns(index, values, len(keep)) for index in self.access.indices]
        return np.asarray(_rank(np.concatenate(tuples, axis=0)))

    def _moved(self, place: Ints, feed: tuple[int, ...]) -> tuple[Ints, Ints]:
        other, stride = place.copy(), 1
        valid = np.ones(len(place), dtype=bool)
        rest = place.copy()
        for extent, step in zip(reversed(self.fabric.shape), reversed(feed), strict=True):
            coordinate = rest % extent + step
            valid &= (coordinate >= 0) & (coordinate < extent)
            other += step * stride
            rest, stride = rest // extent, stride * extent
        return other, valid


def enumerate_all(domain: Box, mapping: SpaceTime, fabric: Fabric, access: Access) -> Enumerated:
    """Return all instances of a dataflow with their PEs and stamps.

    Raises:
        TooLargeError: there are more than ``MAX_POINTS`` instances.
        NoInstanceError: the constraints leave no instance.
        OutsideArrayError: a PE coordinate leaves the array.
    """
    if domain.size > MAX_POINTS:
        raise TooLargeError(f"{domain.size} instances, at most {MAX_POINTS} can be visited")
    grid = np.indices([high - low for low, high in domain.bounds]).reshape(len(domain.names), -1)
    values = {n: grid[d] + domain.bounds[d][0] for d, n in enumerate(domain.names)}
    for constraint in domain.constraints:
        keep = np.asarray(constraint.evaluate(values) >= 0)
        values = {n: v[keep] for n, v in values.items()}
    count = len(next(iter(values.values())))
    if not count:
        raise NoInstanceError("the constraints leave no instance")
    place = np.zeros(count, dtype=np.int64)
    for axis, (extent, form) in enumerate(zip(fabric.shape, mapping.space, strict=True)):
        coordinate = np.broadcast_to(form.evaluate(values), (count,))
        low, high = int(coordinate.min()), int(coordinate.max())
        if low < 0 or high >= extent:
            raise OutsideArrayError(axis, low, high, extent)
        place = place * extent + coordinate
    order = _rank(_columns(mapping.time, values, count))
    stamps = int(order.max()) + 1
    return Enumerated(fabric, access, values, place, order, stamps)


def _columns(forms: Sequence[Affine], values: dict[str, Ints], count: int) -> Ints:
    columns = [np.broadcast_to(np.asarray(f.evaluate(values)), (count,)) for f in forms]
    return np.stack(columns, axis=-1) if columns else np.zeros((count, 1), dtype=np.int64)


def _rank(rows: Ints) -> Ints:
    """Return the rank of each row among the distinct rows, in lexicographic order."""
    packed = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        low, high = int(column.min()), int(column.max())
        packed = packed * (high - low + 1) + (column - low)
    _, ranks = np.unique(packed, return_inverse=True)
    return np.asarray(ranks, dtype=np.int64).reshape(-1)


def _isin_sorted(wanted: Ints, keys: Ints) -> Ints:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)
