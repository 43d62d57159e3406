# SPDX-License-Identifier: Apache-2.0
"""Reader of relation texts such as ``{S[i,j,k] -> PE[i%8, j%8]}``.

The grammar is the part of isl's grammar that TENET's files use, with spellings of handwritten
files: ``%`` or ``mod``; ``floor(e/c)``, ``e//c`` or ``e/c``, all of which round down.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from costmodel.counting.affine import Affine, constant, floor_div, modulo, variable
from costmodel.counting.space import Box
from costmodel.errors import CostError

DIGITS = 18  # of a whole number: enough for every size, and within 64 bits
DEPTH = 200  # levels of an expression's syntax tree
_TOO_DEEP = "it is too deep"


def is_number(text: str) -> bool:
    """Return True for a whole number in ASCII digits that fits 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS


_PRIME = "\u02b9"  # a letter to Python, for isl's names such as i'
# isl's spellings and Python's. A minus before a term applies to the whole term: -i%8 is -(i%8).
_SPELLINGS = (
    ("'", _PRIME),
    (r"\bmod\b", "%"),
    (r"(\d)(and\b)", r"\1 \2"),
    (r"\b(\d+)\s*(?=[A-Za-z_])(?!and\b)", r"\1*"),
    (r"(?<![<>=])=", "=="),
    (r"(^|[\[(,<>=])\s*-", r"\1 0-"),
    (r"\[\s*\]", "[()]"),
)


@dataclass(frozen=True)
class Line:
    """A text with its position, for messages: a file (or option) name and a line number."""

    text: str
    name: str
    number: int = 0

    def error(self, problem: str, remedy: str = "") -> CostError:
        """Return the error of a mistake in the text, which the message shows."""
        where = f"{self.name}:{self.number}" if self.number else self.name
        return CostError(f"{where}: {problem}\n  | {self.text.strip()}", remedy=remedy)


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


def parse_relations(line: Line, values: Mapping[str, int] | None = None) -> tuple[Relation, ...]:
    """Parse ``{A[i] -> B[i+1]; A[i] -> B[i-1]}`` (braces optional) into its disjuncts.

    Args:
        line: the relation.
        values: numbers of names (array sizes, tile factors).

    Raises:
        CostError: the text is not a relation; the message names the line.
    """
    reader = _Reader(line, values or {})
    return tuple(reader.relation(part) for part in reader.inside().split(";"))


def parse_domain(line: Line) -> tuple[str, Box]:
    """Parse ``{S[i,j] : 0 <= i < 8 and 0 <= j < 8}`` into name and box.

    Each variable needs two bounds that are numbers. Other comparisons, such as ``i <= j``, become
    constraints of the box.

    Raises:
        CostError: the text is not such a domain; the message names the line.
    """
    return _Reader(line, {}).domain()


@dataclass(frozen=True)
class _Reader:
    """A reader of a line, whose expressions are Python's but for :data:`_SPELLINGS`."""

    line: Line
    values: Mapping[str, int]

    def fail(self, problem: str, remedy: str = "") -> CostError:
        return self.line.error(problem, remedy)

    def inside(self) -> str:
        """Return the text without its braces."""
        text = self.line.text.strip()
        if text.startswith("{") != text.endswith("}"):
            raise self.fail("a brace is missing")
        return text[1:-1] if text.startswith("{") else text

    def relation(self, part: str) -> Relation:
        left, arrow, right = part.partition("->")
        if not arrow:
            raise self.fail("expected '->'")
        head, result = self.tuple_(left), self.tuple_(right)
        names = self.plain_variables(head)
        self.refuse_unbound(
            result.entries,
            names,
            f"use only the variables of {head.name}[{','.join(names)}], or bind the name",
        )
        return Relation(head.name, names, result)

    def domain(self) -> tuple[str, Box]:
        left, colon, conditions = self.inside().partition(":")
        head = self.tuple_(left)
        names = self.plain_variables(head)
        positive = self.comparisons(self.parse(conditions)) if colon else []
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
        self.refuse_unbound(positive, names)
        bounds = tuple((lower[n], upper[n]) for n in names)
        return head.name, Box(names, bounds, tuple(rest))

    def refuse_unbound(
        self, expressions: Iterable[Affine], names: Sequence[str], remedy: str = ""
    ) -> None:
        stray = sorted({v for e in expressions for v in e.variables()} - set(names))
        if stray:
            word = "name" if len(stray) == 1 else "names"
            raise self.fail(f"unbound {word} {', '.join(stray)}", remedy)

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

    def parse(self, part: str) -> ast.expr:
        """Return the syntax tree of a part of the line."""
        if re.search(rf"\d{{{DIGITS + 1}}}", part):
            raise self.fail(f"a number has more than {DIGITS} digits")
        text = part.strip()
        for spelling, python in _SPELLINGS:
            text = re.sub(spelling, python, text)
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else _TOO_DEEP
            raise self.fail(f"{part.strip()!r}: {reason}") from error
        # How deep Python parses depends on its version.
        level: list[ast.AST] = [tree]
        for _ in range(DEPTH):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if level:
            raise self.fail(f"{part.strip()!r}: {_TOO_DEEP}")
        return tree

    def tuple_(self, part: str) -> Tuple:
        match self.parse(part):
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=entries)):
                return Tuple(name, tuple(map(self.affine, entries)))
            case ast.Subscript(value=ast.Name(id=name), slice=entry):
                return Tuple(name, (self.affine(entry),))
        raise self.fail(f"{part.strip()!r} is not a tuple such as PE[i, j]")

    def comparisons(self, node: ast.expr) -> list[Affine]:
        """Return the expressions that ``0 <= i < 8 and ...`` does not allow to be negative."""
        match node:
            case ast.BoolOp(op=ast.And(), values=nodes):
                return [e for each in nodes for e in self.comparisons(each)]
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self.affine(side) for side in (left, *others)]
                expressions = []
                for (first, second), op in zip(pairwise(sides), ops, strict=True):
                    match op:
                        case ast.Lt() | ast.LtE():
                            listed = [second - first]
                        case ast.Gt() | ast.GtE():
                            listed = [first - second]
                        case ast.Eq():
                            listed = [first - second, second - first]
                        case _:
                            raise self.fail("a comparison must be one of <, <=, >, >=, =")
                    strict = constant(int(isinstance(op, ast.Lt | ast.Gt)))
                    expressions += [each - strict for each in listed]
                return expressions
        raise self.fail(f"expected comparisons, found {ast.unparse(node)!r}")

    def affine(self, node: ast.expr) -> Affine:
        """Return the expression of a syntax tree."""
        match node:
            case ast.Constant(value=value) if type(value) is int:
                return constant(value)
            case ast.Name(id=written):
                name = written.replace(_PRIME, "'")
                return constant(self.values[name]) if name in self.values else variable(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.affine(inner).scaled(-1)
            case ast.Call(func=ast.Name(id="floor"), args=[inner]):
                return self.affine(inner)
            case ast.BinOp(left=left, op=op, right=right):
                return self.combined(op, self.affine(left), self.affine(right))
        raise self.fail(f"expected an expression, found {ast.unparse(node)!r}")

    def combined(self, op: ast.operator, left: Affine, right: Affine) -> Affine:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                if left.terms and right.terms:
                    raise self.fail("a product of two variables is not affine")
                return left.scaled(right.constant) if left.terms else right.scaled(left.constant)
            case ast.Div() | ast.FloorDiv() | ast.Mod():
                if right.terms or right.constant <= 0:
                    unbound = f"; unbound: {right}" if right.terms else ""
                    raise self.fail(f"a divisor must be a positive number{unbound}")
                join = modulo if isinstance(op, ast.Mod) else floor_div
                return join(left, right.constant)
        raise self.fail("an operator must be one of +, -, *, /, //, %, mod")
