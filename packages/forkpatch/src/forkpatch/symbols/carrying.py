# SPDX-License-Identifier: Apache-2.0
"""A patch's edits of a file, carried to another version of the file by the diff between both."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import islice

from forkpatch.git.merge import Range, changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.text import WORD, Span, Text, keys_of, plain, says_something, text

_LIKE = 0.5  # likeness of two lines that may be one line, edited


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
        for kind, data in (*hunk.lines, (" ", b"")):  # the line after the hunk ends the last run
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


def is_taken_back(diff: FileDiff, had: bytes, now: bytes) -> bool:
    """Return True if a file that had a patch, ``had``, is now more like the one before the patch.

    The lines that are new since then resemble those that the patch removes, or none that it adds.
    """
    before, after = (Counter(map(bytes.strip, data.split(b"\n"))) for data in (had, now))
    came = [line for line in after - before if says_something(line)]

    def likeness(lines: Iterable[bytes]) -> float:
        pairs = ((line.decode("latin-1"), new.decode("latin-1")) for line in lines for new in came)
        return max((SequenceMatcher(None, *pair).ratio() for pair in pairs), default=0.0)

    for hunk in diff.hunks:
        sides = {sign: {data.strip() for kind, data in hunk.lines if kind == sign} for sign in "+-"}
        removed, added = sides["-"] - sides["+"], sides["+"] - sides["-"]
        gone = {line for line in added & (before - after).keys() if says_something(line)}
        if gone and likeness(gone) <= max(likeness(removed), _LIKE):
            return True
        if removed and not added and removed <= {*came}:
            return True
    return False


class AddedLines:
    """Lines that a version of a file has in addition, for questions about a series of patches."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    @cached_property
    def keys(self) -> Set[bytes]:
        """The keys of the lines that have a name, or a number for one."""
        return {key for line in self._lines for key in keys_of(line)}

    @cached_property
    def words(self) -> Set[bytes]:
        """The words of the lines that may be names: those of at least three characters."""
        return {word for line in self._lines for word in WORD.findall(line)}


@dataclass(frozen=True)
class Versions:
    """Two versions of a file, and the runs of lines that both have.

    Attributes:
        old: the version that a patch is made for.
        new: the other version.
        runs: first old row, first new row and length of each run, in order; the last one ends with
            the row after the last line.
        added: the lines of upstream's that the new version has in addition.
    """

    old: Text
    new: Text
    runs: tuple[tuple[int, int, int], ...]
    added: AddedLines

    @classmethod
    def of(cls, old: Text, new: Text, ranges: Iterable[Range]) -> Versions:
        """Return two versions of a file from the rows in which they differ."""
        runs, added, first, start = list[tuple[int, int, int]](), list[bytes](), 0, 0
        for row, count, at, length in ranges:
            runs += [(first, start, row - first)] if row > first else []
            added += new.lines[at : at + length]
            first, start = row + count, at + length
        runs.append((first, start, len(old.lines) + 1 - first))
        return cls(old, new, tuple(runs), AddedLines(added))

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The first old row of each run."""
        return [first for first, _, _ in self.runs]

    def image(self, row: int) -> int:
        """Return the new row of an old row; -1 for a removed one."""
        at = bisect_right(self._firsts, row) - 1
        first, start, size = self.runs[at] if at >= 0 else (0, 0, 0)
        return start + row - first if row < first + size else -1

    def is_kept(self, first: int, last: int) -> bool:
        """Return True if the new version has the old rows, ``last`` excluded, in a single run."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self.runs[at][0] + self.runs[at][2]

    @cached_property
    def to_new(self) -> Sequence[int]:
        """New row of each old row, and of the end; -1 for a removed row."""
        rows = [-1] * (len(self.old.lines) + 1)
        for first, start, size in self.runs:
            rows[first : first + size] = range(start, start + size)
        return rows

    @cached_property
    def to_old(self) -> Sequence[int]:
        """Old row of each new row, and of the end; -1 for an added row."""
        rows = [-1] * (len(self.new.lines) + 1)
        for first, start, size in self.runs:
            rows[start : start + size] = range(first, first + size)
        return rows

    def place(self, edit: Edit) -> Place | None:
        """Return an edit's place, between the lines above and below; None if they changed there."""
        above = self.image(edit.first - 1) if edit.first else -1
        below = self.image(edit.last)
        if (edit.first and above < 0) or below < 0:
            return None
        span = above + 1, below
        if [self.image(row) for row in range(edit.first, edit.last)] == list(range(*span)):
            return Place(edit, span, is_done=False)
        if tuple(self.new.raw[slice(*span)]) == edit.new:
            return Place(edit, span, is_done=True)
        return None


@dataclass(frozen=True)
class Carried:
    """A patch's edits of a file in another version of the file.

    Attributes:
        versions: the patch's own version of the file, and the other one.
        places: the place of each edit; None when upstream changed the lines there.
    """

    versions: Versions
    places: tuple[Place | None, ...]

    def merged(self) -> bytes | None:
        """Return the new version with all edits; None when an edit has no place."""
        return None if None in self.places else b"".join(self._edited(b"").raw)

    def _edited(self, data: bytes) -> Text:
        """Return the new version with all edits that have a place; ``data`` is its content."""
        edits = ((p.rows, p.edit.new) for p in self.places if p and not p.is_done)
        return self.versions.new.edited(edits, data)

    def versions_after(self, patched: bytes, merged: bytes) -> Versions:
        """Return both versions with the patch in them, to carry the next patch.

        Every edit must have a place.

        Args:
            patched: content of the old version with the patch.
            merged: content of the new version with the patch.
        """
        places = [place for place in self.places if place]
        edits = (((p.edit.first, p.edit.last), p.edit.new) for p in places)
        old, new = self.versions.old.edited(edits, patched), self._edited(merged)
        return replace(self.versions, old=old, new=new, runs=tuple(self._runs_after(places)))

    def _runs_after(self, places: Sequence[Place]) -> list[tuple[int, int, int]]:
        """Return the runs of lines that both versions have after the patch."""
        found, at, shift, new_shift = list[tuple[int, int, int]](), 0, 0, 0

        def add(old: int, new: int, size: int) -> None:
            old, new = old + shift, new + new_shift
            last = found[-1] if found else (0, 0, 0)
            if found and (last[0] + last[2], last[1] + last[2]) == (old, new):
                found[-1] = (*last[:2], last[2] + size)
            elif size > 0:
                found.append((old, new, size))

        for first, start, size in self.versions.runs:
            row, end = first, first + size
            while at < len(places) and places[at].edit.first < end:
                edit, rows = places[at].edit, places[at].rows
                add(row, start + row - first, max(edit.first - row, 0))
                row = max(row, edit.last)
                if edit.last >= end:
                    break  # a later run has the line below the edit
                add(edit.first, rows[0], len(edit.new))
                shift += len(edit.new) - (edit.last - edit.first)
                new_shift += 0 if places[at].is_done else len(edit.new) - (rows[1] - rows[0])
                at += 1
            add(row, start + row - first, max(end - row, 0))
        return found


def carry(diff: FileDiff, old: bytes, new: bytes, path: str) -> Carried:
    """Carry a patch's edits of a file to another version of the file, which has the path ``path``.

    An edit whose lines the diff between both takes for changed may have a place by its own lines.
    """
    (ranges,) = changed_lines([(old, new)])
    found = carried(diff, Versions.of(text(diff.old or path, old), text(path, new), ranges))
    return found if None not in found.places else replace(found, places=tuple(_laid(diff, found)))


def _laid(diff: FileDiff, found: Carried) -> Iterator[Place | None]:
    """Yield the edits' places; an edit without one is laid where its hunk's lines alone stand.

    It is not laid where the diff between both versions takes most of these lines for others.
    """
    places, new = iter(found.places), found.versions.new
    for hunk in diff.hunks:
        run = [*map(plain, hunk.old)]
        sides = [found.versions.old.standing(run), new.standing(run)] if run else [[], []]
        is_only = [len(rows) for rows in sides] == [1, 1]
        at = sides[1][0] if is_only else 0
        is_only = is_only and tuple(new.raw[at : at + len(run)]) == hunk.old
        rows = [row for row, line in enumerate(run) if says_something(line)]
        images = [found.versions.image(hunk.first + row) for row in rows]
        away = sum(image not in (-1, at + row) for image, row in zip(images, rows, strict=True))
        is_only = is_only and 2 * away <= len(rows)
        edits = list(edits_of(replace(diff, hunks=(hunk,))))
        for edit, place in zip(edits, islice(places, len(edits)), strict=True):
            span = edit.first - hunk.first + at, edit.last - hunk.first + at
            yield Place(edit, span, is_done=False) if place is None and is_only else place


def carried(diff: FileDiff, versions: Versions) -> Carried:
    """Return the edits of a file's diff, with their places in ``versions.new``."""
    return Carried(versions, tuple(map(versions.place, edits_of(diff))))
