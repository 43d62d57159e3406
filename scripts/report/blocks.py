# SPDX-License-Identifier: Apache-2.0
"""Parts of a page: sections with tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Judgement of a cell, shown by a mark as well as by colour."""

    PLAIN = ""
    GOOD = "good"
    BAD = "bad"
    NOTE = "note"


@dataclass(frozen=True)
class Cell:
    """A cell of a table; a ``number`` is aligned right."""

    text: str
    status: Status = Status.PLAIN
    number: bool = False
    code: bool = False


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its heading."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Figure:
    """A drawing as inline SVG, its title, and its content in words for screen readers."""

    svg: str
    title: str
    words: str


@dataclass(frozen=True)
class Content:
    """The body of a section."""

    facts: Sequence[tuple[str, Cell]] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: anchor of the section.
        command: command that makes the part, also again.
        why: reason why the part is missing; empty for a present part.
    """

    key: str
    title: str
    lead: str
    command: str
    why: str = ""
    body: Content = Content()


NONE = "\N{EN DASH}"


def text(value: object, status: Status = Status.PLAIN) -> Cell:
    """Return a cell of words."""
    return Cell(str(value), status)


def code(value: object) -> Cell:
    """Return a cell with a name to copy."""
    return Cell(str(value), code=True)


def number(value: float | None, digits: int = 2, status: Status = Status.PLAIN) -> Cell:
    """Return a cell with a number of ``digits`` decimals; a dash for None."""
    return Cell(NONE if value is None else f"{value:,.{digits}f}", status, number=True)


def scientific(value: float | None) -> Cell:
    """Return a cell with a number in powers of ten, such as an error; a dash for None."""
    return Cell(NONE if value is None else f"{value:.1e}", number=True)


def verdict(holds: bool, yes: str = "yes", no: str = "no") -> Cell:
    """Return a good cell with the text ``yes`` if it holds, else a bad cell with ``no``."""
    return Cell(yes if holds else no, Status.GOOD if holds else Status.BAD)


def distinct(values: Iterable[str]) -> list[str]:
    """Return the values without repetition, in their order."""
    return list(dict.fromkeys(values))
