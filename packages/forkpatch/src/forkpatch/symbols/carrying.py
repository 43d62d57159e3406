# SPDX-License-Identifier: Apache-2.0
"""A patch's edits of a file, carried to another version of the file by the diff between both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from forkpatch.git.merge import ChangedLines, changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.text import Span, Text, line_map, text


@dataclass(frozen=True)
class Edit:
    """A run of changed lines of a patch: old rows, from 0, and the new lines.

    Attributes:
        start: first row of the new lines in the patched file.
    """

    first: int
    last: int
    new: tuple[bytes, ...]
    start: int


@dataclass(frozen=True)
class Place:
    """The place of an edit in another version of the file.

    Attributes:
        rows: the rows that the edit replaces; for an edit that is done, the rows of its new lines.
        is_done: True when the new lines are there already.
    """

    edit: Edit
    rows: Span
    is_done: bool


def edits_of(diff: FileDiff) -> Iterator[Edit]:
    """Yield the runs of changed lines of a patch."""
    for hunk in diff.hunks:
        row = hunk.old_start - (1 if hunk.old_count else 0)
        new = hunk.new_start - (1 if hunk.new_count else 0)
        first, added = row, list[bytes]()
        for kind, data in hunk.lines:
            if kind == " ":
                if row > first or added:
                    yield Edit(first, row, tuple(added), new - len(added))
                added, row, new = [], row + 1, new + 1
                first = row
            elif kind == "-":
                row += 1
            else:
                added.append(data)
                new += 1
        if row > first or added:
            yield Edit(first, row, tuple(added), new - len(added))


@dataclass(frozen=True)
class Carried:
    """A patch's edits of a file in another version of the file.

    Attributes:
        old: the patch's own version.
        new: the other version.
        to_new: new row of each old row; -1 for a removed row.
        places: the place of each edit; None when upstream changed the lines there.
    """

    old: Text
    new: Text
    to_new: Sequence[int]
    places: tuple[Place | None, ...]

    @cached_property
    def to_old(self) -> Sequence[int]:
        """Old row of each new row; -1 for an added row."""
        rows = [-1] * (len(self.new.lines) + 1)
        for row, now in enumerate(self.to_new):
            if now >= 0:
                rows[now] = row
        return rows

    def merged(self) -> bytes | None:
        """Return the new version with all edits; None when an edit has no place."""
        rows, parts = 0, list[bytes]()
        for place in self.places:
            if place is None:
                return None
            if not place.is_done:
                parts += [*self.new.raw[rows : place.rows[0]], *place.edit.new]
                rows = place.rows[1]
        return b"".join([*parts, *self.new.raw[rows:]])


def carry(
    diff: FileDiff, old: bytes, new: bytes, path: str, lines: ChangedLines | None = None
) -> Carried:
    """Carry a patch's edits of a file to another version of the file.

    Args:
        diff: the patch's diff of the file.
        old: the file that the patch was made for.
        new: the other version.
        path: path of the other version.
        lines: the lines that differ between both; None if unknown.
    """
    before, now = text(diff.old or path, old), text(path, new)
    rows = line_map(before, now, *(lines or changed_lines([(old, new)])[0]))
    return Carried(before, now, rows, tuple(_place(edit, rows, now) for edit in edits_of(diff)))


def _place(edit: Edit, rows: Sequence[int], now: Text) -> Place | None:
    """Return an edit's place: between the lines that stood above and below it."""
    above, below = rows[edit.first - 1] if edit.first else -1, rows[edit.last]
    if (edit.first and above < 0) or below < 0:
        return None
    span = above + 1, below
    if rows[edit.first : edit.last] == list(range(*span)):
        return Place(edit, span, is_done=False)
    if tuple(now.raw[slice(*span)]) == edit.new:
        return Place(edit, span, is_done=True)
    return None
