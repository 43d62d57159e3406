# SPDX-License-Identifier: Apache-2.0
"""The changed lines of a file, and the lines around them that tell similar places apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from forkpatch.git.merge import ChangedLines, changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.outline import Outline, Symbol, places

_LIKE_RUNS = 2000  # most copies of the changed lines in a file; above, no place is searched
_MOST_AROUND = 1000  # most lines read above, or below, to tell copies apart


@dataclass(frozen=True)
class Misplacement:
    """A change that a merge put at another place than the patch does.

    Attributes:
        symbol: the symbol that has the change now; for a lost change, the symbol that had it.
        detail: the message that describes the error.
    """

    symbol: str
    detail: str


@dataclass(frozen=True)
class Group:
    """A run of adjacent changed lines.

    Attributes:
        first: row, from 0, of the first old line; for a change that only adds lines, the row above.
        last: row after the last old line; for a change that only adds lines, two rows below the row
            above.
        added: number of new lines.
    """

    first: int
    last: int
    added: int


@dataclass(frozen=True)
class ChangedLine:
    """A changed line; ``sign`` is ``-`` or ``+``, ``number`` is its line in ``outline``, from 1."""

    sign: str
    outline: Outline
    number: int
    group: Group

    @property
    def text(self) -> bytes:
        """The text of the changed line without blanks around it."""
        return self.outline.lines[self.number - 1].strip()

    @property
    def symbol(self) -> Symbol:
        """The innermost symbol around the changed line."""
        return self.outline.at(self.number)


@dataclass(frozen=True)
class Change:
    """A file before and after a change, with the numbers of its removed and added lines."""

    before: Outline
    after: Outline
    removed: Sequence[int]
    added: Sequence[int]

    @classmethod
    def of_diff(cls, diff: FileDiff, before: bytes, after: bytes) -> Change:
        """Return the change that a patch makes to a file."""
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
        """Return the change between two contents of a file; ``lines``: its known changed lines."""
        removed, added = lines or changed_lines([(before, after)])[0]
        return cls(places(path, before), places(path, after), removed, added)

    @cached_property
    def lines(self) -> list[ChangedLine]:
        """The changed lines that have a letter or a digit.

        Where the lines around a change read alike, a diff may begin one line too early or too late.
        A line that a symbol has as often before as after therefore counts only when it moves.
        """
        every = [
            ChangedLine(sign, known, number, group)
            for sign, known, which in (("-", self.before, 0), ("+", self.after, 1))
            for group, *numbers in self._grouped
            for number in numbers[which]
        ]
        return [line for line in every if says_something(line.text) and self._counts(line)]

    @cached_property
    def groups(self) -> list[Group]:
        """The changed lines in groups of adjacent lines."""
        return [group for group, *_ in self._grouped]

    @cached_property
    def _grouped(self) -> list[tuple[Group, range, range]]:
        """The groups, each with the numbers of its old and of its new lines."""
        removed, added = set(self.removed), set(self.added)
        old = new = 1
        groups: list[tuple[Group, range, range]] = []
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
                groups.append((Group(*rows, new - grown), range(first, old), range(grown, new)))
            else:
                old, new = old + 1, new + 1
        return groups

    def _counts(self, line: ChangedLine) -> bool:
        """Return True unless the symbol has a changed line as often before as after."""
        name = line.symbol.name
        if name not in self.before.symbols or name not in self.after.symbols:
            return True
        counts = (known.own_lines(name)[line.text] for known in (self.before, self.after))
        return len(set(counts)) > 1 or self._moves(line, name)

    def _moves(self, line: ChangedLine, name: str) -> bool:
        """Return True when the symbol loses the line at one row and gets it at another row."""
        numbers, other = (
            (self.added, self.after) if line.sign == "-" else (self.removed, self.before)
        )
        return any(
            other.lines[number - 1].strip() == line.text and other.at(number).name == name
            for number in numbers
        )


def among_likes(
    patch: Change, merge: Change, pairs: Iterable[tuple[Group, Group]]
) -> Iterator[Misplacement]:
    """Yield the changes that a merge put at another of several places with the same lines.

    The run of lines above a change, and below it, is read up to the first line that tells the
    copies of its place apart. The change belongs where that run stands in the new version. The run
    around git's change gives the old place of that change.
    """
    for change, result in pairs:
        unknown: set[bool] = set()
        size = change.last - change.first
        for below in (False, True):
            run = _unique_run(patch.before, change, patch.before, below=below).lines
            if not run or patch.after.standing(run):
                continue  # no proof: the change does not break the run
            then, standing = merge.before.standing(run), merge.after.standing(run)
            if then and len(standing) >= len(then):
                row = standing[0] + (size if below else len(run))
                side = "above" if below else "below"
                what = f"the lines that it changes are still at line {row}"
                yield Misplacement(merge.after.at(row).name, f"{what}, {side} the same lines")
            if not then and len(run) > size:
                unknown.add(below)
        name = merge.before.at(result.last).name
        known: set[bool] = set()
        for below in (False, True):
            run_there = _unique_run(merge.before, result, patch.before, below=below)
            if run_there.is_whole:
                known.add(below)
            at = run_there.at, run_there.at + result.last - result.first
            # Where lines read alike, a diff may show the same change some lines higher or lower.
            if run_there.lines and not any(
                near.first - near.added <= at[1] and at[0] <= near.last + near.added
                for near in patch.groups
            ):
                what = f"it changes what stands at line {at[1]} before, another place"
                yield Misplacement(name, what)
        if unknown - known:
            likes = patch.before.standing(merge.before.lines[result.first : result.last])
            if len(likes) > len({_named_place(patch.before, row + 1) for row in likes}):
                what = f"it changes one of {len(likes)} like places"
                what += ", and the lines that told them apart changed"
                yield Misplacement(name, what)


def _named_place(known: Outline, line: int) -> tuple[object, ...]:
    """Return symbol and blocks of a line without counters; empty for a file without a grammar."""
    if not known.is_parsed:
        return ()
    return re.sub(r"#\d+$", "", known.at(line).name), known.blocks(line)


@dataclass(frozen=True)
class _Run:
    """A run of lines that stands at a single place of a file; empty without such a run.

    Attributes:
        lines: the lines of the run.
        at: row of the only place.
        is_whole: True when the run has every line of that place.
    """

    lines: tuple[bytes, ...] = ()
    at: int = 0
    is_whole: bool = False


def _unique_run(outline: Outline, group: Group, known: Outline, *, below: bool) -> _Run:
    """Return the run of lines that tells at which place of ``known`` a group of changes is.

    The run grows above, or below, the group as far as needed. A line that ``known`` lacks is
    skipped: the change added the line, or replaced a line with it, and then the run is not whole.
    An empty line may be skipped, too, as an added line.
    """
    lines, start, end = outline.lines, group.first, group.last
    standing = known.standing(lines[start:end])
    if len(standing) > _LIKE_RUNS:
        return _Run()
    # Of each copy: its row, its drift in lines from the next line read, and whether it is whole.
    copies = {(at, 0, True) for at in standing}
    top, bottom = start, end
    while len({at for at, *_ in copies}) > 1 and bottom - top < end - start + _MOST_AROUND:
        row = bottom if below else top - 1
        if not 0 <= row < len(lines):
            break
        top, bottom = (top, bottom + 1) if below else (top - 1, bottom)
        kept = {c for c in copies if known.line_at(c[0] + row - start + c[1]) == lines[row]}
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
    """Return True when a line has a letter or a digit."""
    return any(chr(sign).isalnum() for sign in line)
