# SPDX-License-Identifier: Apache-2.0
"""A change of one file as its lines, and the lines around them that tell similar places apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from forkpatch.git.merge import ChangedLines, changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.outline import Outline, Symbol, places

_LIKE_RUNS = 2000  # copies of changed lines in a file from which its place is not told
_MOST_AROUND = 1000  # lines that are read up, or down, for one that tells copies apart


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
class Group:
    """Changed lines that stand together.

    Attributes:
        first: row, from 0, of the first old line; of a change that only adds lines the row above.
        last: the row behind the last old line; of a change that only adds lines behind the one
            below them.
        added: number of the new lines.
    """

    first: int
    last: int
    added: int


@dataclass(frozen=True)
class ChangedLine:
    """A changed line: ``sign`` is ``-`` or ``+``; ``number`` counts from 1 in ``outline``."""

    sign: str
    outline: Outline
    number: int
    group: Group

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
        return cls(places(paths[0], before), places(paths[1], after), removed, added)

    @classmethod
    def between(
        cls, path: str, before: bytes, after: bytes, lines: ChangedLines | None = None
    ) -> Change:
        """The change between two contents of a file; ``lines`` if they are known."""
        removed, added = lines or changed_lines([(before, after)])[0]
        return cls(places(path, before), places(path, after), removed, added)

    @cached_property
    def lines(self) -> list[ChangedLine]:
        """The changed lines that say something.

        A diff may begin a block of lines one line too early or too late when the lines around
        it read alike. What a symbol has as often before as after is no change of it.
        """
        every = [
            ChangedLine(sign, known, number, group)
            for sign, known, which in (("-", self.before, 0), ("+", self.after, 1))
            for group, *numbers in self._grouped
            for number in numbers[which]
        ]
        return [one for one in every if says_something(one.text) and self._counts(one)]

    @cached_property
    def groups(self) -> list[Group]:
        """The changed lines in groups."""
        return [group for group, *_ in self._grouped]

    @cached_property
    def _grouped(self) -> list[tuple[Group, range, range]]:
        """The groups, each with the numbers of its old and its new lines."""
        removed, added = set(self.removed), set(self.added)
        old = new = 1
        found: list[tuple[Group, range, range]] = []
        while removed or added:
            first, grown = old, new
            while old in removed:
                removed.remove(old)
                old += 1
            while new in added:
                added.remove(new)
                new += 1
            rows = (first - 1, old - 1) if old > first else (max(old - 2, 0), old)
            if old > first or new > grown:
                found.append((Group(*rows, new - grown), range(first, old), range(grown, new)))
            else:
                old, new = old + 1, new + 1
        return found

    def _counts(self, line: ChangedLine) -> bool:
        name = line.symbol.name
        if name not in self.before.symbols or name not in self.after.symbols:
            return True
        counts = (known.own_lines(name)[line.text] for known in (self.before, self.after))
        return len(set(counts)) > 1 or self._moves(line, name)

    def _moves(self, line: ChangedLine, name: str) -> bool:
        """True when the symbol loses the line at one place and gets it at another."""
        numbers, other = (
            (self.added, self.after) if line.sign == "-" else (self.removed, self.before)
        )
        return any(
            other.lines[number - 1].strip() == line.text and other.at(number).name == name
            for number in numbers
        )


def among_likes(
    mine: Change, theirs: Change, pairs: Iterable[tuple[Group, Group]]
) -> Iterator[Misplacement]:
    """Changes of lines that have like ones in the file, by the lines around that tell these apart.

    From a change up, and from it down, the run of lines to the first one that no copy has there is
    read. Where that run stands in the new version the change belongs; and the run from what git
    changed tells which place of the old version that is.
    """
    for own, one in pairs:
        unknown: set[bool] = set()
        size = own.last - own.first
        for below in (False, True):
            run = _told_apart(mine.before, own, mine.before, below=below).lines
            if not run or mine.after.standing(run):
                continue  # the run stands once: a change that does not break it tells nothing
            then, still = theirs.before.standing(run), theirs.after.standing(run)
            if then and len(still) >= len(then):
                row = still[0] + (size if below else len(run))
                side = "above" if below else "below"
                what = f"the lines that it changes are still at line {row}"
                yield Misplacement(theirs.after.at(row).name, f"{what}, {side} the same lines")
            if not then and len(run) > size:
                unknown.add(below)
        name = theirs.before.at(one.last).name
        told: set[bool] = set()
        for below in (False, True):
            other = _told_apart(theirs.before, one, mine.before, below=below)
            if other.is_whole:
                told.add(below)
            at = other.at, other.at + one.last - one.first
            # Where lines read alike, a diff may show the same change some lines higher or lower.
            if other.lines and not any(
                near.first - near.added <= at[1] and at[0] <= near.last + near.added
                for near in mine.groups
            ):
                what = f"it changes what stands at line {at[1]} before, another place"
                yield Misplacement(name, what)
        if unknown - told:
            likes = mine.before.standing(theirs.before.lines[one.first : one.last])
            if len(likes) > len({_named_place(mine.before, row + 1) for row in likes}):
                what = f"it changes one of {len(likes)} like places"
                what += ", and the lines that told them apart changed"
                yield Misplacement(name, what)


def _named_place(known: Outline, line: int) -> tuple[object, ...]:
    """Symbol and blocks of a line as far as names tell; where nothing is parsed, nothing."""
    if not known.is_parsed:
        return ()
    return re.sub(r"#\d+$", "", known.at(line).name), known.blocks(line)


@dataclass(frozen=True)
class _Run:
    """Lines that stand at one place of a file alone; none where like places are not told apart.

    Attributes:
        lines: they.
        at: row of the place that they were read from.
        is_whole: every line of that place is among them.
    """

    lines: tuple[bytes, ...] = ()
    at: int = 0
    is_whole: bool = False


def _told_apart(outline: Outline, group: Group, known: Outline, *, below: bool) -> _Run:
    """The run of lines that tells which place of ``known`` a group of changed lines is at.

    It goes from there as far above, or below, as it takes. A line that ``known`` lacks is passed
    over: it was added, or it was put in the place of one, and then the run is not whole. So is an
    empty one, which may have been added.
    """
    lines, start, end = outline.lines, group.first, group.last
    standing = known.standing(lines[start:end])
    if len(standing) > _LIKE_RUNS:
        return _Run()
    # Row of each copy, the lines by which it is beside the next one read, and whether it is whole.
    copies = {(at, 0, True) for at in standing}
    top, bottom = start, end
    while len({at for at, *_ in copies}) > 1 and bottom - top < end - start + _MOST_AROUND:
        row = bottom if below else top - 1
        if not 0 <= row < len(lines):
            break
        top, bottom = (top, bottom + 1) if below else (top - 1, bottom)
        kept = {one for one in copies if known.line_at(one[0] + row - start + one[1]) == lines[row]}
        is_new = not known.has_line(lines[row])
        if is_new or not lines[row].strip():
            added = -1 if below else 1
            kept |= {(at, drift + added, whole) for at, drift, whole in copies}
        if is_new:
            kept |= {(at, drift, False) for at, drift, _ in copies}
        copies = kept
    if len({at for at, *_ in copies}) != 1:
        return _Run()
    at = next(iter(copies))[0]
    return _Run(tuple(lines[top:bottom]), at, any(whole for *_, whole in copies))


def says_something(line: bytes) -> bool:
    """True when a line has a letter or a digit."""
    return any(chr(sign).isalnum() for sign in line)
