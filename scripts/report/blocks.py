# SPDX-License-Identifier: Apache-2.0
"""Parts of a page: sections that hold tables and figures."""

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
    """One value of a table; ``number`` sets it flush right."""

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
    """Body of a section."""

    facts: Sequence[tuple[str, Cell]] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: the anchor.
        command: makes the part, also for the second time.
        why: reason for which the part is missing; empty when it is there.
    """

    key: str
    title: str
    lead: str
    command: str
    why: str = ""
    body: Content = Content()


NONE = "\N{EN DASH}"


def text(value: object, status: Status = Status.PLAIN) -> Cell:
    """A cell of words."""
    return Cell(str(value), status)


def code(value: object) -> Cell:
    """A cell with a name to copy."""
    return Cell(str(value), code=True)


def number(value: float | None, digits: int = 2, status: Status = Status.PLAIN) -> Cell:
    """A number with ``digits`` behind the point; a dash for None."""
    return Cell(NONE if value is None else f"{value:,.{digits}f}", status, number=True)


def scientific(value: float | None, status: Status = Status.PLAIN) -> Cell:
    """A number such as an error, in powers of ten."""
    return Cell(NONE if value is None else f"{value:.1e}", status, number=True)


def verdict(holds: bool, yes: str = "yes", no: str = "no") -> Cell:
    """A cell that is good or bad."""
    return Cell(yes if holds else no, Status.GOOD if holds else Status.BAD)


def distinct(values: Iterable[str]) -> list[str]:
    """The values without repetition, in their order."""
    return list(dict.fromkeys(values))
