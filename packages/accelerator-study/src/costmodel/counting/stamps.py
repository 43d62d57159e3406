# SPDX-License-Identifier: Apache-2.0
"""The set of time stamps, and their order.

Each box of the domain maps to a box of stamps when the components of the time map share no
digit; the set of stamps is the union of these boxes. The stamp before ``t`` is found by
lowering the innermost component that can still be lowered and raising those after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.counting.digits import DigitDomain, Ints, LinearForm
from costmodel.counting.space import NonSeparableMapError

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Stamps:
    """The union of boxes of time stamps.

    Attributes:
        forms: time components as linear forms on digits that share no digit.
        low, high: one row a domain box, inclusive.
    """

    forms: tuple[LinearForm, ...]
    low: Ints
    high: Ints

    def count(self) -> int:
        """Distinct stamps, TENET's ``|T|``."""
        return count_union(self.low, self.high + 1)

    def matching(self, stamps: Ints, depth: int) -> Bools:
        """``[stamp, box]``: true if the first ``depth`` components lie in the box."""
        part = stamps[:, None, :depth]
        inside = (part >= self.low[None, :, :depth]) & (part <= self.high[None, :, :depth])
        return np.asarray(inside.all(axis=2))

    def previous(self, stamps: Ints) -> tuple[Ints, Ints]:
        """The stamps before ``stamps``, and the component lowered (-1 without one)."""
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
            found = left & (best > _NO_STAMP)
            result[found, component] = best[found]
            self._raise_rest(result, match, found, component)
            level[found] = component
        return result, level

    def _raise_rest(self, result: Ints, match: Bools, found: Bools, component: int) -> None:
        alive = match.copy()
        for place in range(component, result.shape[1]):
            if place > component:
                top = np.where(alive, self.high[None, :, place], _NO_STAMP).max(axis=1)
                result[found, place] = top[found]
            value = result[:, None, place]
            alive &= (value >= self.low[None, :, place]) & (value <= self.high[None, :, place])


_NO_STAMP = np.iinfo(np.int64).min


def stamp_set(domain: DigitDomain, forms: list[LinearForm]) -> Stamps:
    """The stamps of a domain.

    Raises:
        NonSeparableMapError: components share digits, or leave gaps between their values.
    """
    separate = _separated(forms)
    low = np.zeros((len(domain.low), len(separate)), dtype=np.int64)
    high = np.zeros_like(low)
    for box in range(len(domain.low)):
        lower, upper = domain.low[box].tolist(), domain.high[box].tolist()
        for place, form in enumerate(separate):
            low[box, place], high[box, place] = _interval(form, lower, upper)
    return Stamps(tuple(separate), low, high)


def _separated(forms: list[LinearForm]) -> list[LinearForm]:
    """Take earlier components out of later ones.

    Subtracting a function of the earlier components from a later one keeps the order of the
    stamps and their number, so nothing that is counted changes.
    """
    done: list[LinearForm] = []
    for original in forms:
        form = original
        for earlier in done:
            form = _without(form, earlier)
        done.append(form)
    return [f for f in done if any(f.weights)] or done[:1]


def _without(form: LinearForm, earlier: LinearForm) -> LinearForm:
    shared = [n for n, w in enumerate(earlier.weights) if w and form.weights[n]]
    if not shared:
        return form
    factor, rest = divmod(form.weights[shared[0]], earlier.weights[shared[0]])
    weights = tuple(a - factor * b for a, b in zip(form.weights, earlier.weights, strict=True))
    if rest or any(w and weights[n] for n, w in enumerate(earlier.weights)):
        raise NonSeparableMapError("time components share a dimension")
    return LinearForm(weights, form.constant - factor * earlier.constant)


def _interval(form: LinearForm, low: list[int], high: list[int]) -> tuple[int, int]:
    """Smallest and largest value over a box, all between being taken."""
    least = most = form.constant
    reach = 0
    parts = [(abs(w), high[n] - low[n] - 1) for n, w in enumerate(form.weights) if w]
    for weight, span in sorted(p for p in parts if p[1] > 0):
        if weight > reach + 1:
            raise NonSeparableMapError("time stamps with gaps")
        reach += weight * span
    for n, weight in enumerate(form.weights):
        ends = (weight * low[n], weight * (high[n] - 1))
        least, most = least + min(ends), most + max(ends)
    return least, most


def count_union(low: Ints, high: Ints) -> int:
    """Points in a union of half-open boxes (rows), by compressing the coordinates."""
    axes = [np.unique(np.concatenate([low[:, d], high[:, d]])) for d in range(low.shape[1])]
    covered = np.zeros([max(len(a) - 1, 1) for a in axes], dtype=bool)
    for lower, upper in zip(low, high, strict=True):
        where = tuple(
            slice(int(np.searchsorted(a, lo)), int(np.searchsorted(a, hi)))
            for a, lo, hi in zip(axes, lower, upper, strict=True)
        )
        covered[where] = True
    volume = covered.astype(object)
    for place, axis in enumerate(axes):
        sizes = np.diff(axis).astype(object)
        volume = volume * sizes.reshape([-1 if d == place else 1 for d in range(len(axes))])
    return int(volume.sum())
