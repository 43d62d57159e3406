# SPDX-License-Identifier: Apache-2.0
"""Quasi-affine integer expressions: sums of variables, floor divisions and remainders.

An example is ``i%8 + 8*floor(j/4) - 1``. Expressions have a normal form, a linear combination of
atoms, so that two spellings of an expression compare equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Value = Any  # an int, or a numpy array of int64


@dataclass(frozen=True)
class Floor:
    """The atom ``floor(inner / divisor)`` with a positive divisor."""

    inner: Affine
    divisor: int


@dataclass(frozen=True)
class Mod:
    """The atom ``inner mod divisor``, between 0 and ``divisor - 1``."""

    inner: Affine
    divisor: int


Atom = str | Floor | Mod


@dataclass(frozen=True)
class Affine:
    """An expression: ``constant`` plus the sum of ``coefficient * atom``."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Affine) -> Affine:
        sums: dict[Atom, int] = dict(self.terms)
        for atom, coefficient in other.terms:
            sums[atom] = sums.get(atom, 0) + coefficient
        return _normal(sums, self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        """Return the expression times an integer."""
        return _normal({a: c * factor for a, c in self.terms}, self.constant * factor)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """Return the expression's value for integers, or integer arrays that broadcast."""
        total: Value = self.constant
        for atom, coefficient in self.terms:
            total = total + coefficient * _evaluate_atom(atom, values)
        return total

    def variables(self) -> Iterator[str]:
        """Yield the names of the variables, with repetitions."""
        for atom, _ in self.terms:
            if isinstance(atom, str):
                yield atom
            else:
                yield from atom.inner.variables()

    def __str__(self) -> str:
        parts = [_term_text(atom, coefficient) for atom, coefficient in self.terms]
        if self.constant or not parts:
            parts.append(f"{self.constant:+d}")
        text = "".join(parts)
        return text.removeprefix("+")


def variable(name: str) -> Affine:
    """Return the expression of a single variable."""
    return Affine(((name, 1),))


def constant(value: int) -> Affine:
    """Return the expression of a single number."""
    return Affine((), value)


def floor_div(inner: Affine, divisor: int) -> Affine:
    """Return ``floor(inner / divisor)``, simplified if ``divisor`` is 1 or ``inner`` constant."""
    if divisor == 1:
        return inner
    if not inner.terms:
        return constant(inner.constant // divisor)
    return Affine(((Floor(inner, divisor), 1),))


def modulo(inner: Affine, divisor: int) -> Affine:
    """Return ``inner mod divisor``, simplified if ``divisor`` is 1 or ``inner`` constant."""
    if not inner.terms or divisor == 1:
        return constant(inner.constant % divisor)
    return Affine(((Mod(inner, divisor), 1),))


def _normal(sums: Mapping[Atom, int], offset: int) -> Affine:
    kept = [(atom, c) for atom, c in sums.items() if c != 0]
    return Affine(tuple(sorted(kept, key=lambda term: _atom_text(term[0]))), offset)


def _evaluate_atom(atom: Atom, values: Mapping[str, Value]) -> Value:
    if isinstance(atom, str):
        return values[atom]
    inner = atom.inner.evaluate(values)
    return inner // atom.divisor if isinstance(atom, Floor) else inner % atom.divisor


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    if isinstance(atom, Floor):
        return f"floor(({atom.inner})/{atom.divisor})"
    return f"({atom.inner})%{atom.divisor}"


def _term_text(atom: Atom, coefficient: int) -> str:
    sign = "+" if coefficient > 0 else "-"
    size = "" if abs(coefficient) == 1 else f"{abs(coefficient)}*"
    return f"{sign}{size}{_atom_text(atom)}"
