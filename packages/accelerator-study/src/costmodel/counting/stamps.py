# SPDX-License-Identifier: Apache-2.0
"""The set of time stamps, and their lexicographic order.

Each box of the domain maps to a box of stamps when the components of the time map share no
digit; the set of stamps is the union of these boxes. The stamp before ``t`` has the innermost
component that can decrease decreased, and the components after it at their largest values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from costmodel.counting.digits import DigitDomain, Ints, LinearForm, digit_domain, ranges
from costmodel.counting.space import Access, Box, NonSeparableMapError, SpaceTime

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Stamps:
    """The union of boxes of time stamps.

    Attributes:
        forms: time components as linear forms on digits that share no digit.
        low, high: boxes of stamps, inclusive; a row for each box of the domain.
    """

    forms: tuple[LinearForm, ...]
    low: Ints
    high: Ints

    @cached_property
    def edges(self) -> list[Ints]:
        """The distinct starts and ends of the boxes along each component."""
        ends = zip(self.low.T, self.high.T + 1, strict=True)
        return [np.unique(np.concatenate(pair)) for pair in ends]

    def count(self) -> int:
        """Return the number of distinct stamps, TENET's ``|T|``, on compressed coordinates."""
        covered = np.zeros([max(len(edges) - 1, 1) for edges in self.edges], dtype=bool)
        for lower, upper in zip(self.low, self.high + 1, strict=True):
            where = tuple(
                slice(int(np.searchsorted(edges, first)), int(np.searchsorted(edges, end)))
                for edges, first, end in zip(self.edges, lower, upper, strict=True)
            )
            covered[where] = True
        volume = covered.astype(object)
        for dimension, edges in enumerate(self.edges):
            shape = [-1 if d == dimension else 1 for d in range(volume.ndim)]
            volume = volume * np.diff(edges).astype(object).reshape(shape)
        return int(volume.sum())

    def matching(self, stamps: Ints, depth: int) -> Bools:
        """Return ``[stamp, box]``: true if the box contains the first ``depth`` components."""
        part = stamps[:, None, :depth]
        inside = (part >= self.low[None, :, :depth]) & (part <= self.high[None, :, :depth])
        return np.asarray(inside.all(axis=2))

    def previous(self, stamps: Ints) -> tuple[Ints, Ints]:
        """Return the stamps before ``stamps``, and the decreased components (-1 without one)."""
        count, depth = stamps.shape
        result = stamps.copy()
        level = np.full(count, -1, dtype=np.int64)
        for component in reversed(range(depth)):
            left = level < 0
            if not left.any():
                break
            match = self.matching(stamps, component)
            goal = np.minimum(self.high[None, :, component], stamps[:, None, component] - 1)
            goal = np.where(match & (goal >= self.low[None, :, component]), goal, _NO_STAMP)
            best = goal.max(axis=1) if goal.size else np.full(count, _NO_STAMP)
            lowered = left & (best > _NO_STAMP)
            result[lowered, component] = best[lowered]
            self._raise_rest(result, match, lowered, component)
            level[lowered] = component
        return result, level

    def _raise_rest(self, result: Ints, match: Bools, lowered: Bools, component: int) -> None:
        alive = match.copy()
        for place in range(component, result.shape[1]):
            if place > component:
                top = np.where(alive, self.high[None, :, place], _NO_STAMP).max(axis=1)
                result[lowered, place] = top[lowered]
            value = result[:, None, place]
            alive &= (value >= self.low[None, :, place]) & (value <= self.high[None, :, place])


_NO_STAMP = np.iinfo(np.int64).min


def stamp_set(domain: DigitDomain, forms: list[LinearForm]) -> Stamps:
    """Return the time stamps of a domain.

    Raises:
        NonSeparableMapError: components share digits, or leave gaps between their values.
    """
    separate = _separated(forms)
    for spans in (domain.high - domain.low - 1).tolist():
        for form in separate:
            _refuse_gaps(form, spans)
    return Stamps(tuple(separate), *ranges(separate, domain.low, domain.high - 1))


def _separated(forms: list[LinearForm]) -> list[LinearForm]:
    """Subtract multiples of earlier components from later components that share digits.

    This keeps the order of the stamps and their number, so no count changes.
    """
    separate: list[LinearForm] = []
    for original in forms:
        form = original
        for earlier in separate:
            form = _without(form, earlier)
        separate.append(form)
    return [f for f in separate if any(f.weights)] or separate[:1]


def _without(form: LinearForm, earlier: LinearForm) -> LinearForm:
    shared = [n for n, w in enumerate(earlier.weights) if w and form.weights[n]]
    if not shared:
        return form
    factor, rest = divmod(form.weights[shared[0]], earlier.weights[shared[0]])
    weights = tuple(a - factor * b for a, b in zip(form.weights, earlier.weights, strict=True))
    if rest or any(w and weights[n] for n, w in enumerate(earlier.weights)):
        raise NonSeparableMapError("time components share a dimension")
    return LinearForm(weights, form.constant - factor * earlier.constant)


def _refuse_gaps(form: LinearForm, spans: list[int]) -> None:
    """Refuse a form with gaps between its values over a box of these spans."""
    reach = 0
    parts = ((abs(w), span) for w, span in zip(form.weights, spans, strict=True))
    for weight, span in sorted(p for p in parts if min(p) > 0):
        if weight > reach + 1:
            raise NonSeparableMapError("time stamps with gaps")
        reach += weight * span


def folds(domain: Box, mapping: SpaceTime, operands: Sequence[Access]) -> int:
    """Return how many times the array loads an operand that its PEs keep; 0 without such.

    PEs keep an operand if its index has no digit that only the last component of the time stamp
    uses. Without a kept operand, or without a closed form of the map, the result is 0.
    """
    listed = [e for a in operands for e in a.indices[0]]
    try:
        digits = digit_domain(domain, [*mapping.space, *mapping.time, *listed])
        time = [digits.lower(e) for e in mapping.time]
        outer = [*(digits.lower(e) for e in mapping.space), *time[:-1]]
        streaming = [
            n
            for n, weight in enumerate(time[-1].weights)
            if weight and not any(form.weights[n] for form in outer)
        ]
        kept = [
            access
            for access in operands
            if not any(digits.lower(e).weights[n] for e in access.indices[0] for n in streaming)
        ]
        if not kept or not streaming:
            return 0
        return stamp_set(digits, time[:-1]).count() if len(time) > 1 else 1
    except NonSeparableMapError:
        return 0
