# SPDX-License-Identifier: Apache-2.0
"""Exact volumes of elements in closed form, for GEMMs of every size.

In digits the space-time map is linear, so two instances that touch the same element in
neighbouring PEs and consecutive stamps differ by a constant vector. A small integer system has a
handful of such vectors as solutions. The reused elements are a union of boxes, whose points are
counted on compressed coordinates. The time to count does not grow with the size of the GEMM. Maps
that do not fit raise :class:`NonSeparableMapError` and are enumerated instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from costmodel.counting.digits import DigitDomain, Ints, LinearForm, digit_domain, ranges
from costmodel.counting.lattice import solutions
from costmodel.counting.space import (
    Access,
    Box,
    Fabric,
    NonSeparableMapError,
    NotInjectiveError,
    Occupancy,
    OutsideArrayError,
    SpaceTime,
)
from costmodel.counting.stamps import Bools, Stamps, stamp_set

MAX_CELLS = 1 << 20
MAX_ROUNDS = 8


@dataclass(frozen=True)
class ClosedForm:
    """A dataflow on an array and an access, with its maps as linear forms on digits.

    Attributes:
        rows: the access's index.
    """

    domain: DigitDomain
    fabric: Fabric
    space: tuple[LinearForm, ...]
    time: tuple[LinearForm, ...]
    stamps: Stamps
    access: Access
    rows: tuple[LinearForm, ...]

    @cached_property
    def lane_digits(self) -> tuple[int, ...]:
        """The digits in neither map: their instances run side by side in a PE."""
        rows = (*self.space, *self.time)
        return tuple(
            n for n in range(len(self.domain.digits)) if not any(r.weights[n] for r in rows)
        )

    def occupancy(self) -> Occupancy:
        """Count the instances, time stamps, active PEs and lanes of the dataflow.

        Raises:
            NotInjectiveError: more instances share a PE and a stamp than the PE has lanes.
            OutsideArrayError: a PE coordinate leaves the array.
        """
        self._check_inside()
        lanes = self._check_injective()
        per_pe = self._load_of_pes()
        return Occupancy(
            instances=prod(self.domain.extents.values()),
            stamps=self.stamps.count(),
            active_pes=int((per_pe > 0).sum()),
            busiest=-(-int(per_pe.max()) // lanes),
            lanes=lanes,
        )

    def _check_inside(self) -> None:
        lows, highs = ranges(self.space, self.domain.low, self.domain.high - 1)
        for axis, extent in enumerate(self.fabric.shape):
            low, high = int(lows[:, axis].min()), int(highs[:, axis].max())
            if low < 0 or high >= extent:
                raise OutsideArrayError(axis, low, high, extent)

    def _check_injective(self) -> int:
        sizes = [d.size for d in self.domain.digits]
        lanes = prod(sizes[n] for n in self.lane_digits)
        if lanes > self.fabric.lanes:
            first = [0] * len(sizes)
            second = list(first)
            second[next(n for n in self.lane_digits if sizes[n] > 1)] = 1
            raise NotInjectiveError(self.domain.values(first), self.domain.values(second), lanes)
        free = [0 if n in self.lane_digits else s - 1 for n, s in enumerate(sizes)]
        matrix = [list(r.weights) for r in (*self.space, *self.time)]
        zero = [0] * len(matrix)
        for step in solutions(matrix, zero, [-s for s in free], free):
            if any(step):
                pair = self._clash(np.array(step))
                if pair is not None and self.fabric.lanes > 1:
                    raise NonSeparableMapError("instances of several digits share a PE and a stamp")
                if pair is not None:
                    raise NotInjectiveError(*pair)
        return lanes

    def _clash(self, step: Ints) -> tuple[dict[str, int], dict[str, int]] | None:
        """Return two instances of the domain that differ by ``step``, or None."""
        for low, high in zip(self.domain.low, self.domain.high, strict=True):
            for low2, high2 in zip(self.domain.low, self.domain.high, strict=True):
                corner = np.maximum(low, low2 - step)
                if (corner < np.minimum(high, high2 - step)).all():
                    return self.domain.values(corner), self.domain.values(corner + step)
        return None

    def _load_of_pes(self) -> Ints:
        """Return the number of instances of each PE, flattened."""
        used = [n for n in range(len(self.domain.digits)) if any(f.weights[n] for f in self.space)]
        load = np.zeros(self.fabric.pes, dtype=np.int64)
        for low, high in zip(self.domain.low, self.domain.high, strict=True):
            span = high - low
            points = int(np.prod(span[used]))
            if points > MAX_CELLS:
                raise NonSeparableMapError("too many digits choose the PE")
            axes = np.indices([int(s) for s in span[used]]).reshape(len(used), points)
            pe = np.zeros(points, dtype=np.int64)
            for form, extent in zip(self.space, self.fabric.shape, strict=True):
                weights = np.array([form.weights[n] for n in used], dtype=np.int64)
                pe = pe * extent + form.constant + weights @ (axes + low[used, None])
            unused = [n for n in range(len(span)) if n not in used]
            np.add.at(load, pe, int(np.prod(span[unused])))
        return load

    @cached_property
    def pins(self) -> dict[int, int]:
        """The digits held at a value: pinned dimensions, and lanes that share an element."""
        held: dict[int, int] = {}
        digits = self.domain.digits
        for name in self.access.pinned:
            rest = self.domain.extents[name] - 1
            for n in sorted(
                (n for n, d in enumerate(digits) if d.dimension == name),
                key=lambda n: -digits[n].stride,
            ):
                held[n], rest = divmod(rest, digits[n].stride)
        for n in self.lane_digits:
            if not any(r.weights[n] for r in self.rows):
                held.setdefault(n, 0)
        return held

    def _inside(self, points: Ints) -> Bools:
        mask = self.domain.contains(points)
        for digit, value in self.pins.items():
            mask &= points[..., digit] == value
        return mask

    def unique(self) -> int:
        """Count accesses whose element no PE can pass on: TENET's unique volume."""
        marks = self._first_marks()
        base = [list(m) for m in marks]
        seen: set[tuple[int, ...]] = set()
        for _ in range(MAX_ROUNDS):
            unique, steps = self._count_with(marks)
            if steps <= seen:
                return unique
            seen |= steps
            marks = self._marks_for(base, seen)
        raise NonSeparableMapError("no stable set of reuse vectors")

    def _first_marks(self) -> list[list[int]]:
        marks: list[list[int]] = []
        for n, digit in enumerate(self.domain.digits):
            starts = self.domain.low[:, n].tolist()
            held = [self.pins[n]] if n in self.pins else []
            values = {0, digit.size, *self.domain.high[:, n].tolist()}
            values |= {v for start in (*starts, *held) for v in (start, start + 1)}
            for component, form in enumerate(self.stamps.forms):
                values |= self._time_marks(n, form, component)
            marks.append(sorted(v for v in values if 0 <= v <= digit.size))
        return marks

    def _time_marks(self, digit: int, form: LinearForm, component: int) -> set[int]:
        """Return values of a digit at which a stamp component crosses the end of a stamp box."""
        weight = form.weights[digit]
        if weight == 0:
            return set()
        values: set[int] = set()
        if weight < 0:
            tops = self.domain.high[:, digit].tolist()
            values |= {v - 1 for v in tops}
        if sum(1 for w in form.weights if w) == 1:
            stamps = self.stamps
            ends = {*stamps.low[:, component].tolist(), *(stamps.high[:, component] + 1).tolist()}
            for end in ends:
                for value in (end, end + 1):
                    quotient, rest = divmod(value - form.constant, weight)
                    values |= {quotient, quotient + (1 if rest else 0), quotient + 1}
        return values

    def _marks_for(self, base: list[list[int]], steps: set[tuple[int, ...]]) -> list[list[int]]:
        digits = self.domain.digits
        return [
            sorted(
                {v for m in base[n] for v in (m, *(m - s[n] for s in steps)) if 0 <= v <= d.size}
            )
            for n, d in enumerate(digits)
        ]

    def _cells(self, marks: list[list[int]]) -> tuple[Ints, Ints]:
        """Return the lowest and the highest point of each grid cell inside the domain.

        A cell is inside if its lowest point is.

        Raises:
            NonSeparableMapError: the grid has too many cells.
        """
        if prod(len(values) - 1 for values in marks) > MAX_CELLS:
            raise NonSeparableMapError("too many cells")
        starts = [np.array(m[:-1], dtype=np.int64) for m in marks]
        ends = [np.array(m[1:], dtype=np.int64) - 1 for m in marks]
        low = np.stack([a.ravel() for a in np.meshgrid(*starts, indexing="ij")], axis=-1)
        high = np.stack([a.ravel() for a in np.meshgrid(*ends, indexing="ij")], axis=-1)
        keep = self._inside(low)
        return low[keep], high[keep]

    def _count_with(self, marks: list[list[int]]) -> tuple[int, set[tuple[int, ...]]]:
        low, high = self._cells(marks)
        moves, groups = self._moves(low, high)
        reused = np.zeros(len(low), dtype=bool)
        steps: set[tuple[int, ...]] = set()
        parts: list[tuple[list[int], Any]] = [([], np.arange(len(low)))]
        parts += [(m[:-1], groups == n) for n, m in enumerate(moves.tolist()) if m[-1] >= 0]
        for move, members in parts:
            for step in self._steps(move):
                steps.add(step)
                reused[members] |= self._inside(low[members] + np.array(step))
        fresh = ~reused
        sizes = (high[fresh] - low[fresh] + 1).astype(object)
        return (int(sizes.prod(axis=1).sum()) if len(sizes) else 0), steps

    def _moves(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """Return the distinct steps back in time, level last, and each cell's index of its step."""
        stamps = self.stamps
        first, last = ranges(stamps.forms, low, high)
        before, level = stamps.previous(first)
        self._check_cells(first, last, before, level)
        table = np.concatenate([before - first, level[:, None]], axis=1)
        moves, groups = np.unique(table, axis=0, return_inverse=True)
        return moves, np.asarray(groups).reshape(-1)

    def _check_cells(self, first: Ints, last: Ints, before: Ints, level: Ints) -> None:
        """Refuse cells whose points take different steps back in time."""
        stamps = self.stamps
        inner = first.shape[1] - 1
        wide = first != last
        jumps = np.take_along_axis(first - before, np.maximum(level, 0)[:, None], 1)[:, 0] != 1
        axes = np.arange(first.shape[1])
        wrapped = wide & (axes[None, :] > level[:, None])
        jumped = (level >= 0) & jumps & wide[np.arange(len(level)), np.maximum(level, 0)]
        if wrapped.any() or jumped.any():
            raise NonSeparableMapError("a cell wraps in part")
        for axis, edges in enumerate(stamps.edges[:inner]):
            for shift in (0, 1):
                ends = [np.searchsorted(edges, v[:, axis] - shift, "right") for v in (first, last)]
                if (ends[0] != ends[1])[wide[:, axis]].any():
                    raise NonSeparableMapError("a cell crosses the end of a box of stamps")
        self._check_contiguous(first, last)

    def _check_contiguous(self, first: Ints, last: Ints) -> None:
        """Refuse gaps between the innermost components of stamps with equal prefixes."""
        stamps = self.stamps
        inner = first.shape[1] - 1
        # Spans with one start have no gap between them.
        if not np.ptp(stamps.low[:, inner]) or not (first[:, inner] != last[:, inner]).any():
            return
        for mask in np.unique(stamps.matching(first, inner), axis=0):
            spans = sorted(zip(stamps.low[mask, inner], stamps.high[mask, inner], strict=True))
            reach = spans[0][1] if spans else 0
            for start, end in spans[1:]:
                if start > reach + 1:
                    raise NonSeparableMapError("time stamps with gaps")
                reach = max(reach, end)

    def _steps(self, move: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield the vectors to instances from whose PE the same element can be passed on.

        ``move`` is a step back in time; empty: within a stamp.
        """
        still = [0] * len(self.fabric.shape)
        feeds = [tuple(still), *self.fabric.feeds]
        forms = (*self.space, *self.stamps.forms, *self.rows)
        matrix = [list(f.weights) for f in forms]
        spans = [0 if n in self.pins else d.size - 1 for n, d in enumerate(self.domain.digits)]
        back = move or [0] * len(self.stamps.forms)
        for feed in feeds:
            right = [*feed, *back, *([0] * len(self.rows))]
            steps = solutions(matrix, right, [-s for s in spans], spans)
            if move or any(feed):
                yield from steps
            else:
                # The first of a PE's lanes that touch an element in a stamp fetches the element.
                yield from (step for step in steps if step < (0,) * len(step))


def lower(domain: Box, mapping: SpaceTime, fabric: Fabric, access: Access) -> ClosedForm:
    """Convert a dataflow's maps to linear forms on digits.

    Raises:
        NonSeparableMapError: the map has no closed form; the caller must enumerate it.
    """
    if len(access.indices) != 1:
        raise NonSeparableMapError("a tensor is read at several places at once")
    digits = digit_domain(domain, [*mapping.space, *mapping.time, *access.indices[0]])
    time = tuple(digits.lower(e) for e in mapping.time)
    return ClosedForm(
        domain=digits,
        fabric=fabric,
        space=tuple(digits.lower(e) for e in mapping.space),
        time=time,
        stamps=stamp_set(digits, list(time)),
        access=access,
        rows=tuple(digits.lower(e) for e in access.indices[0]),
    )
