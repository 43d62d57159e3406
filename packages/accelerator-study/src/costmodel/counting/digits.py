# SPDX-License-Identifier: Apache-2.0
"""Mixed-radix digits, in which tiled maps such as ``i%8`` and ``floor(i/8)`` are linear.

A dimension which the maps cut at 8 and 64 becomes three digits with strides 1, 8 and 64. If a
size is not a multiple of the cuts, the domain in digits is a few disjoint boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from costmodel.counting.affine import Affine, Atom, Floor, Mod
from costmodel.counting.space import Box, NonSeparableMapError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digit:
    """A digit of a dimension: ``dimension = sum(stride * digit)``."""

    dimension: str
    stride: int
    size: int


@dataclass(frozen=True)
class LinearForm:
    """A linear form on the digits: weights and a constant."""

    weights: tuple[int, ...]
    constant: int = 0


def ranges(forms: Sequence[LinearForm], low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return least and largest values of forms over boxes (rows, ends included): boxes x forms."""
    weights = np.array([form.weights for form in forms], dtype=np.int64).T
    constants = np.array([form.constant for form in forms], dtype=np.int64)
    up, down = np.maximum(weights, 0), np.minimum(weights, 0)
    return constants + low @ up + high @ down, constants + high @ up + low @ down


@dataclass(frozen=True)
class DigitDomain:
    """An iteration domain in digits.

    Attributes:
        digits: all digits, dimension by dimension, smallest stride first.
        extents: size of each dimension.
        low, high: disjoint boxes (rows), half-open, whose union is the domain.
    """

    digits: tuple[Digit, ...]
    extents: Mapping[str, int]
    low: Ints
    high: Ints

    def lower(self, expression: Affine) -> LinearForm:
        """Return a quasi-affine expression as a linear form on the digits.

        Raises:
            NonSeparableMapError: a floor or remainder cuts across digits.
        """
        weights, offset = self._linear(expression)
        return LinearForm(tuple(weights.get(n, 0) for n in range(len(self.digits))), offset)

    def _linear(self, expression: Affine) -> tuple[dict[int, int], int]:
        total: dict[int, int] = {}
        offset = expression.constant
        for atom, coefficient in expression.terms:
            weights, shift = self._atom(atom)
            offset += coefficient * shift
            for digit, weight in weights.items():
                total[digit] = total.get(digit, 0) + coefficient * weight
        return {d: w for d, w in total.items() if w}, offset

    def _atom(self, atom: Atom) -> tuple[dict[int, int], int]:
        if isinstance(atom, str):
            weights = {n: d.stride for n, d in enumerate(self.digits) if d.dimension == atom}
            if not weights:
                raise KeyError(atom)
            return weights, 0
        return self._cut(atom)

    def _cut(self, atom: Floor | Mod) -> tuple[dict[int, int], int]:
        weights, offset = self._linear(atom.inner)
        whole = {d: w // atom.divisor for d, w in weights.items() if w % atom.divisor == 0}
        part = {d: w for d, w in weights.items() if d not in whole}
        shift, rest = divmod(offset, atom.divisor)
        low = rest + sum(min(0, w * (self.digits[d].size - 1)) for d, w in part.items())
        high = rest + sum(max(0, w * (self.digits[d].size - 1)) for d, w in part.items())
        if low < 0 or high >= atom.divisor:
            raise NonSeparableMapError(str(atom.inner))
        return (whole, shift) if isinstance(atom, Floor) else (part, rest)

    @cached_property
    def _ends(self) -> tuple[Ints, Ints, Ints]:
        """Sizes of digits, strides by digit and dimension, and extents of dimensions."""
        strides = [[d.stride * (d.dimension == name) for name in self.extents] for d in self.digits]
        sizes = [d.size for d in self.digits]
        return np.array(sizes), np.array(strides), np.array([*self.extents.values()])

    def contains(self, points: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask of the digit vectors (last axis) that lie in the domain."""
        sizes, strides, extents = self._ends
        inside = ((points >= 0) & (points < sizes)).all(axis=-1)
        return np.asarray(inside & (points @ strides < extents).all(axis=-1))

    def values(self, point: Iterable[int]) -> dict[str, int]:
        """Return the values of the dimensions at a digit vector."""
        values = dict.fromkeys(self.extents, 0)
        for digit, value in zip(self.digits, point, strict=True):
            values[digit.dimension] += digit.stride * int(value)
        return values


def digit_domain(domain: Box, expressions: Iterable[Affine]) -> DigitDomain:
    """Split a domain into the digits at which ``expressions`` cut its dimensions.

    Raises:
        NonSeparableMapError: the cuts of a dimension do not divide each other, the domain does not
            begin at zero, or it has constraints beside its bounds.
    """
    if domain.constraints or any(low != 0 for low, _ in domain.bounds):
        raise NonSeparableMapError("the domain is not a box from zero")
    cuts: dict[str, set[int]] = {name: set() for name in domain.names}
    for expression in expressions:
        _collect(expression, 1, cuts)
    digits: list[Digit] = []
    pieces: list[list[tuple[list[int], list[int]]]] = []
    for name, (_, extent) in zip(domain.names, domain.bounds, strict=True):
        parts = _split(name, extent, cuts[name])
        digits.extend(parts)
        pieces.append(_stairs(parts, extent))
    rows = [([n for p in c for n in p[0]], [n for p in c for n in p[1]]) for c in product(*pieces)]
    low = np.array([r[0] for r in rows], dtype=np.int64)
    high = np.array([r[1] for r in rows], dtype=np.int64)
    extents = {n: h for n, (_, h) in zip(domain.names, domain.bounds, strict=True)}
    return DigitDomain(tuple(digits), extents, low, high)


def _collect(expression: Affine, divisor: int, cuts: dict[str, set[int]]) -> None:
    """Add to ``cuts`` where floors and remainders by ``divisor`` cut a dimension."""
    for atom, coefficient in expression.terms:
        if isinstance(atom, str):
            step = divisor // coefficient if coefficient > 0 and divisor % coefficient == 0 else 1
            if step > 1:
                cuts[atom].add(step)
        else:
            _collect(atom.inner, atom.divisor, cuts)
            if divisor > 1:
                inner = atom.divisor * divisor if isinstance(atom, Floor) else divisor
                _collect(atom.inner, inner, cuts)


def _split(name: str, extent: int, cuts: set[int]) -> list[Digit]:
    marks = [1, *sorted(c for c in cuts if c < extent)]
    for small, large in pairwise(marks):
        if large % small:
            raise NonSeparableMapError(f"{name} is cut at {small} and at {large}")
    ends = [*marks[1:], extent]
    return [Digit(name, stride, -(-end // stride)) for stride, end in zip(marks, ends, strict=True)]


def _stairs(digits: list[Digit], extent: int) -> list[tuple[list[int], list[int]]]:
    """Return disjoint boxes that cover the digit vectors below ``extent``."""
    boxes = []
    rest, low, high = extent, [0] * len(digits), [d.size for d in digits]
    for position in reversed(range(len(digits))):
        whole, rest = divmod(rest, digits[position].stride)
        if whole:
            top = list(high)
            top[position] = whole
            boxes.append((list(low), top))
        low[position], high[position] = whole, whole + 1
        if rest == 0:
            break
    return boxes
