# SPDX-License-Identifier: Apache-2.0
"""Counts of maps that are too large to enumerate, from the counts of smaller boxes.

A quasi-polynomial of a box's extents counts the points of the box under a quasi-affine map
(Ehrhart; Verdoolaege et al., *Counting Integer Points in Parametric Polytopes Using Barvinok's
Rational Functions*, Algorithmica 2007). For extents in fixed classes modulo the divisors of the
map, the quasi-polynomial is a polynomial. The polynomial is fitted to boxes that can be enumerated
and accepted only if it gives the exact counts of further, larger boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import lcm, prod

from costmodel.counting.affine import Affine

Extents = tuple[int, ...]
Counts = Mapping[str, int]
DEGREES = (1, 2)
FIRST = 2  # periods in the smallest box; in a smaller box, borders may overlap
MOST_POINTS = 1 << 27  # of all enumerated boxes


class NoPolynomialError(Exception):
    """The error if no polynomial gives the counts of the sample boxes, or they are too large."""


def period(name: str, expressions: Sequence[Affine]) -> int:
    """Return a common multiple of the divisors through which a dimension passes."""
    multiple = 1
    for expression in expressions:
        for atom, _ in expression.terms:
            if not isinstance(atom, str) and name in set(atom.inner.variables()):
                inner = period(name, [atom.inner])
                multiple = lcm(multiple, atom.divisor * inner)
    return multiple


def extrapolate(
    extents: Extents, periods: Sequence[int], counts: Callable[[Extents], Counts]
) -> dict[str, int]:
    """Return the counts of a box, extrapolated from smaller boxes.

    Args:
        extents: of the box.
        periods: of its dimensions, see :func:`period`.
        counts: enumerates a small box.

    Raises:
        NoPolynomialError: no polynomial of low degree gives the sample boxes.
    """
    known: dict[Extents, Counts] = {}

    def visited(box: Extents) -> Counts:
        if box not in known:
            known[box] = counts(box)
        return known[box]

    bases = [_base(e, p) for e, p in zip(extents, periods, strict=True)]
    for degree in DEGREES:
        nodes = [_nodes(e, p, b, degree) for e, p, b in zip(extents, periods, bases, strict=True)]
        checks = list(_checks(extents, periods, nodes))
        boxes = {*product(*nodes), *checks}
        if sum(prod(b) for b in boxes - set(known)) > MOST_POINTS:
            break
        if all(_fitted(c, nodes, visited) == dict(visited(c)) for c in checks):
            return _fitted(extents, nodes, visited)
    raise NoPolynomialError


def _base(extent: int, step: int) -> int:
    return min(extent, extent % step + FIRST * step)


def _nodes(extent: int, step: int, base: int, degree: int) -> list[int]:
    nodes = [base + n * step for n in range(degree + 1)]
    return nodes if nodes[-1] < extent else [extent]


def _checks(extents: Extents, periods: Sequence[int], nodes: list[list[int]]) -> Iterator[Extents]:
    """Yield boxes beyond the fitted boxes: with a single larger extent, and with all larger."""
    larger = [n[-1] + p if len(n) > 1 else n[-1] for n, p in zip(nodes, periods, strict=True)]
    for position, values in enumerate(nodes):
        if len(values) > 1:
            yield tuple(larger[n] if n == position else nodes[n][0] for n in range(len(extents)))
    yield tuple(larger)


def _fitted(
    wanted: Extents, nodes: list[list[int]], visited: Callable[[Extents], Counts]
) -> dict[str, int]:
    """Return Lagrange's polynomial through the nodes at ``wanted``, in exact fractions."""
    sums: dict[str, Fraction] = {}
    for box in product(*nodes):
        weight = Fraction(1)
        for at, node, values in zip(wanted, box, nodes, strict=True):
            for other in values:
                if other != node:
                    weight *= Fraction(at - other, node - other)
        for name, value in visited(box).items():
            sums[name] = sums.get(name, Fraction(0)) + weight * value
    if any(v.denominator != 1 for v in sums.values()):
        raise NoPolynomialError
    return {name: int(value) for name, value in sums.items()}
