# SPDX-License-Identifier: Apache-2.0
"""Parser of relation texts such as ``{S[i,j,k] -> PE[i%8, j%8]}``.

The grammar is the part of isl's grammar that TENET's files use, with spellings of handwritten
files: ``%`` or ``mod``; ``floor(e/c)``, ``e//c`` or ``e/c``, all of which round down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodel.counting.affine import Affine, constant, floor_div, modulo, variable
from costmodel.errors import CostError

DIGITS = 18  # of a whole number: enough for every size, and within 64 bits
DEEPEST = 64  # brackets within brackets


def is_number(text: str) -> bool:
    """Return True for a whole number in ASCII digits that fits 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*'?)|(->|<=|>=|//|[-+*/%()\[\]{}:;,<>=]))")
_COMPARISONS = ("<=", "<", ">=", ">", "=")


@dataclass(frozen=True)
class Position:
    """The position of a text, for messages: a file (or option) name and a line number."""

    name: str
    line: int = 0

    def error(self, text: str, problem: str, remedy: str = "") -> CostError:
        """Return the error of a mistake in ``text``, whose line the message shows."""
        where = f"{self.name}:{self.line}" if self.line else self.name
        return CostError(f"{where}: {problem}\n  | {text.strip()}", remedy=remedy)


@dataclass(frozen=True)
class Tuple:
    """A named tuple of expressions: ``PE[i%8, j%8]``."""

    name: str
    entries: tuple[Affine, ...]


@dataclass(frozen=True)
class Relation:
    """A disjunct ``domain -> range``; the domain's entries are plain variables."""

    domain: str
    variables: tuple[str, ...]
    range: Tuple


@dataclass(frozen=True)
class Domain:
    """A named set: variables, their half-open bounds, and constraints ``expression >= 0``."""

    name: str
    variables: tuple[str, ...]
    bounds: tuple[tuple[int, int], ...]
    constraints: tuple[Affine, ...] = ()


def parse_relations(
    text: str, source: Position, values: Mapping[str, int] | None = None
) -> tuple[Relation, ...]:
    """Parse ``{A[i] -> B[i+1]; A[i] -> B[i-1]}`` (braces optional) into its disjuncts.

    Args:
        text: the relation.
        source: for messages.
        values: numbers of names (array sizes, tile factors).

    Raises:
        CostError: the text is not a relation; the message names the line.
    """
    parser = _Parser(text, source, values or {})
    return parser.relations()


def parse_domain(text: str, source: Position, values: Mapping[str, int] | None = None) -> Domain:
    """Parse ``{S[i,j] : 0 <= i < 8 and 0 <= j < 8}``; each variable needs both bounds."""
    parser = _Parser(text, source, values or {})
    return parser.domain()


class _Parser:
    """A recursive descent parser of a line."""

    def __init__(self, text: str, source: Position, values: Mapping[str, int]) -> None:
        self.text, self.source, self.values = text, source, values
        self.depth = 0
        self.tokens = self._tokenize()
        self.at = 0

    def _tokenize(self) -> list[str]:
        tokens, position, text = [], 0, self.text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.fail(f"unexpected character {text[position:].strip()[0]!r}")
            tokens.append(match.group(0).strip())
            position = match.end()
        return tokens

    def fail(self, problem: str, remedy: str = "") -> CostError:
        return self.source.error(self.text, problem, remedy)

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if wanted and token not in wanted:
            found = f"found {token!r}" if token else "the line ends"
            raise self.fail(f"expected {' or '.join(map(repr, wanted))}, {found}")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def relations(self) -> tuple[Relation, ...]:
        braced = self.accept("{")
        relations: list[Relation] = []
        while not relations or self.accept(";"):
            relations.append(self.relation())
        if braced:
            self.take("}")
        self.end()
        return tuple(relations)

    def relation(self) -> Relation:
        left = self.tuple_()
        names = self.plain_variables(left)
        self.take("->")
        right = self.tuple_()
        unbound = {n for e in right.entries for n in e.variables()} - set(names)
        if unbound:
            raise self.fail(
                f"unbound {'name' if len(unbound) == 1 else 'names'} {', '.join(sorted(unbound))}",
                f"use only the variables of {left.name}[{','.join(names)}], or bind the name",
            )
        return Relation(left.name, names, right)

    def domain(self) -> Domain:
        braced = self.accept("{")
        head = self.tuple_()
        names = self.plain_variables(head)
        comparisons: list[Affine] = []
        if self.accept(":"):
            while not comparisons or self.accept("and"):
                comparisons.extend(self.chain())
        if braced:
            self.take("}")
        self.end()
        return self.bounded(head.name, names, comparisons)

    def bounded(self, name: str, names: Sequence[str], positive: Sequence[Affine]) -> Domain:
        lower: dict[str, int] = {}
        upper: dict[str, int] = {}
        rest: list[Affine] = []
        for expression in positive:
            match expression.terms:
                case ((str(one), 1),):
                    lower[one] = max(lower.get(one, -expression.constant), -expression.constant)
                case ((str(one), -1),):
                    limit = expression.constant + 1
                    upper[one] = min(upper.get(one, limit), limit)
                case _:
                    rest.append(expression)
        for one in names:
            if one not in lower or one not in upper:
                raise self.fail(f"dimension {one} is unbound", f"add 0 <= {one} < SIZE")
            if upper[one] <= lower[one]:
                raise self.fail(f"dimension {one} is empty")
        stray = {v for e in positive for v in e.variables()} - set(names)
        if stray:
            raise self.fail(f"unbound name {', '.join(sorted(stray))}")
        bounds = tuple((lower[n], upper[n]) for n in names)
        return Domain(name, tuple(names), bounds, tuple(rest))

    def plain_variables(self, head: Tuple) -> tuple[str, ...]:
        names = []
        for entry in head.entries:
            match entry.terms:
                case ((str(name), 1),) if entry.constant == 0:
                    names.append(name)
                case _:
                    raise self.fail(f"{head.name}[...] must list plain variables, not {entry}")
        if len(set(names)) != len(names):
            raise self.fail(f"{head.name}[...] names a variable twice")
        return tuple(names)

    def tuple_(self) -> Tuple:
        name = self.take()
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise self.fail(f"expected a name before '[', found {name!r}")
        self.take("[")
        entries: list[Affine] = []
        while not self.accept("]"):
            if entries:
                self.take(",")
            entries.append(self.sum_())
        return Tuple(name, tuple(entries))

    def chain(self) -> list[Affine]:
        """Parse ``0 <= i < 8`` into expressions that must not be negative."""
        left, expressions = self.sum_(), []
        while self.peek() in _COMPARISONS:
            sign = self.take()
            right = self.sum_()
            difference = right - left if sign in ("<", "<=") else left - right
            strict = constant(1 if sign in ("<", ">") else 0)
            expressions.append(difference - strict)
            if sign == "=":
                expressions.append(right - left)
            left = right
        if not expressions:
            raise self.fail(f"expected a comparison, found {self.peek()!r}")
        return expressions

    def sum_(self) -> Affine:
        negative = self.accept("-")
        total = self.product().scaled(-1 if negative else 1)
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total += self.product().scaled(sign)
        return total

    def product(self) -> Affine:
        total = self.factor()
        while self.peek() in ("*", "/", "//", "%", "mod"):
            operator = self.take()
            right = self.factor()
            total = self.combine(operator, total, right)
        return total

    def combine(self, operator: str, left: Affine, right: Affine) -> Affine:
        if operator == "*":
            if left.terms and right.terms:
                raise self.fail("a product of two variables is not affine")
            return left.scaled(right.constant) if left.terms else right.scaled(left.constant)
        if right.terms or right.constant <= 0:
            unbound = f"; unbound: {right}" if right.terms else ""
            raise self.fail(f"the right side of {operator!r} must be a positive number{unbound}")
        join = modulo if operator in ("%", "mod") else floor_div
        return join(left, right.constant)

    def factor(self) -> Affine:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fail(f"more than {DEEPEST} brackets or signs within each other")
        inner = self._factor()
        self.depth -= 1
        return inner

    def _factor(self) -> Affine:
        token = self.take()
        if token in ("(", "floor"):
            if token == "floor":
                self.take("(")
            inner = self.sum_()
            self.take(")")
            return inner
        if token == "-":
            return self.factor().scaled(-1)
        if is_number(token):
            return self.implicit(int(token))
        if re.fullmatch(r"[A-Za-z_]\w*'?", token):
            return constant(self.values[token]) if token in self.values else variable(token)
        raise self.fail(f"expected an expression, found {token!r}" if token else "the line ends")

    def implicit(self, number: int) -> Affine:
        """Parse the rest of a number: ``2i`` is isl's spelling of ``2*i``."""
        if re.fullmatch(r"[A-Za-z_]\w*'?", self.peek()) and self.peek() not in ("and", "mod"):
            return self.factor().scaled(number)
        return constant(number)

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail(f"unexpected {self.peek()!r} after the end")
