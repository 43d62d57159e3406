# SPDX-License-Identifier: Apache-2.0
"""A change of one file as its lines, and the places that tell like lines of it apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from forkpatch.git.merge import changed_lines
from forkpatch.inspect.symbols import Outline, Symbol, outline
from forkpatch.model.diffs import FileDiff

_LIKE_RUNS = 2000  # copies of changed lines in a file from which its place is not told
_MOST_ABOVE = 1000  # lines that are read upwards for one that tells copies apart


@dataclass(frozen=True)
class Misplacement:
    """A change that a merge put elsewhere than the patch makes it.

    Attributes:
        symbol: where it is now; where it was, when it got lost.
        detail: what is wrong.
    """

    symbol: str
    detail: str


@dataclass(frozen=True)
class ChangedLine:
    """A changed line: ``sign`` is ``-`` or ``+``; ``number`` counts from 1 in ``outline``."""

    sign: str
    outline: Outline
    number: int

    @property
    def text(self) -> bytes:
        """The line without blanks around it."""
        return self.outline.lines[self.number - 1].strip()

    @property
    def symbol(self) -> Symbol:
        """The innermost symbol around it."""
        return self.outline.at(self.number)


@dataclass(frozen=True)
class Change:
    """A file before and after a change, and the numbers of the lines that go and come."""

    before: Outline
    after: Outline
    removed: Sequence[int]
    added: Sequence[int]

    @classmethod
    def of_diff(cls, diff: FileDiff, before: bytes, after: bytes) -> Change:
        """The change that a patch makes."""
        removed: list[int] = []
        added: list[int] = []
        for hunk in diff.hunks:
            old, new = max(hunk.old_start, 1), max(hunk.new_start, 1)
            for line in hunk.lines:
                removed += [old] if line.kind == "-" else []
                added += [new] if line.kind == "+" else []
                old += line.kind != "+"
                new += line.kind != "-"
        paths = diff.old or diff.new or "", diff.new or diff.old or ""
        return cls(outline(paths[0], before), outline(paths[1], after), removed, added)

    @classmethod
    def between(cls, path: str, before: bytes, after: bytes) -> Change:
        """The change between two contents of a file."""
        return cls(outline(path, before), outline(path, after), *changed_lines(before, after))

    @cached_property
    def lines(self) -> list[ChangedLine]:
        """The changed lines that say something.

        A diff may begin a block of lines one line too early or too late when the lines around
        it read alike. What a symbol has as often before as after is no change of it.
        """
        every = [ChangedLine("-", self.before, number) for number in self.removed]
        every += [ChangedLine("+", self.after, number) for number in self.added]
        return [one for one in every if says_something(one.text) and self._counts(one)]

    def _counts(self, line: ChangedLine) -> bool:
        name = line.symbol.name
        if name not in self.before.symbols or name not in self.after.symbols:
            return True
        counts = self.before.own_lines[name][line.text], self.after.own_lines[name][line.text]
        return counts[0] != counts[1] or self._moves(line, name)

    def _moves(self, line: ChangedLine, name: str) -> bool:
        """True when the symbol loses the line at one place and gets it at another."""
        numbers, other = (
            (self.added, self.after) if line.sign == "-" else (self.removed, self.before)
        )
        return any(
            other.lines[number - 1].strip() == line.text and other.at(number).name == name
            for number in numbers
        )


def among_likes(mine: Change, theirs: Change) -> Iterator[Misplacement]:
    """Changes of lines that have like ones in the file, by the lines above that tell these apart.

    From a change up, the run of lines to the first one that no copy has above it is read. Where
    that run stands in the new version the change belongs; and the run above what git changed tells
    which place of the old version that is.
    """
    places = _groups(mine)
    unknown = False
    for start, end, _ in places:
        run = _told_apart(mine.before.lines, start, end, mine.before)[0]
        if not run or mine.after.standing(run):
            continue  # the run stands once: a change that does not break it tells nothing
        then, still = theirs.before.standing(run), theirs.after.standing(run)
        if then and len(still) >= len(then):
            row = still[0] + len(run)
            detail = f"what it changes stands at line {row} still, below the same lines as before"
            yield Misplacement(theirs.after.at(row).name, detail)
        unknown = unknown or (not then and len(run) > end - start)
    for start, end, added in _groups(theirs):
        run, at = _told_apart(theirs.before.lines, start, end, mine.before)
        name = theirs.before.at(end).name
        # Where lines read alike, a diff may show the same change some lines higher or lower.
        near = [(first - added, behind + added) for first, behind, _ in places]
        if run and not any(first <= at[1] and at[0] <= behind for first, behind in near):
            what = f"it changes what stands at line {at[1]} before, another place"
            yield Misplacement(name, what)
        elif not run and unknown:
            likes = mine.before.standing(theirs.before.lines[start:end])
            if len(likes) > len({_named_place(mine.before, row + 1) for row in likes}):
                what = f"it changes one of {len(likes)} like places"
                what += ", and the lines above that told them apart changed"
                yield Misplacement(name, what)


def _named_place(known: Outline, line: int) -> tuple[object, ...]:
    """Symbol and blocks of a line as far as names tell; where nothing is parsed, nothing."""
    if not known.is_parsed:
        return ()
    return re.sub(r"#\d+$", "", known.at(line).name), known.blocks(line)


def _groups(change: Change) -> list[tuple[int, int, int]]:
    """Rows of old lines, from and behind, of each change, and the number of lines that come.

    The rows are those of the lines that go; what is only added stands for the lines on both sides.
    """
    removed, added = set(change.removed), set(change.added)
    last = len(change.before.lines)
    old = new = 1
    found: list[tuple[int, int, int]] = []
    while (removed or added) and old <= last + 1:
        first, grown = old, new
        while old in removed:
            removed.remove(old)
            old += 1
        while new in added:
            added.remove(new)
            new += 1
        if old > first:
            found.append((first - 1, old - 1, new - grown))
        elif new > grown and 1 < old <= last:
            found.append((old - 2, old, new - grown))
        elif new == grown:
            old, new = old + 1, new + 1
    return found


def _told_apart(
    lines: Sequence[bytes], start: int, end: int, known: Outline
) -> tuple[tuple[bytes, ...], tuple[int, int]]:
    """A run of lines up to the row ``end`` that stands once in ``known``, and its rows there.

    It begins at the row ``start``, or as far above as it takes; it is empty where the like places
    cannot be told apart.
    """
    nothing: tuple[tuple[bytes, ...], tuple[int, int]] = (), (0, 0)
    copies = known.standing(lines[start:end])
    if len(copies) > _LIKE_RUNS:
        return nothing
    top = start
    while len(copies) > 1 and top > max(start - _MOST_ABOVE, 0):
        top -= 1
        copies = [at - 1 for at in copies if at > 0 and known.lines[at - 1] == lines[top]]
    if len(copies) != 1:
        return nothing
    at = copies[0] + start - top
    return tuple(lines[top:end]), (at, at + end - start)


def says_something(line: bytes) -> bool:
    """True when a line has a letter or a digit."""
    return any(chr(sign).isalnum() for sign in line)
