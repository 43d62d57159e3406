# SPDX-License-Identifier: Apache-2.0
"""Comparison of where a merge put the changes of a patch with where the patch makes them.

Git merges similar lines, and does not know when they are in another function. Here
each changed line is compared with the line of the patch that it comes from.

A change is in its place when no other place could be meant: its lines, and those around them as far
as they are what they were, stand once before and once after, and no symbol lives on elsewhere with
them. Else it must be

- in the same symbol, by its full name. One whose signature or conditions changed is followed
  when that is certain: the old one is gone, the new one is new, and neither has a twin;
- in the same block of it, as far as heads of blocks can tell (``case A:``, ``if (x) {``);
- between the same lines, in any language, when these lines tell similar places apart.

The rule behind all: while the old place still exists elsewhere, no other place is right. A place in
another file is found by :mod:`forkpatch.inspect.survivors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from forkpatch.git.merge import ChangedLines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.changes import (
    Change,
    ChangedLine,
    Group,
    Misplacement,
    among_likes,
)
from forkpatch.symbols.outline import MODULE, Outline, Symbol

_CONTEXT = 3  # lines around a change that say where it is, as in a patch
_LIKE_LINES = 50  # of so many lines that read alike in one symbol, the block need not be tried


def misplaced(
    diff: FileDiff,
    old: tuple[bytes, bytes],
    new: tuple[bytes, bytes],
    path: str,
    lines: ChangedLines | None = None,
    *,
    whole: bool = True,
) -> tuple[Misplacement, ...]:
    """The changes of one file that a merge put elsewhere than the patch makes them.

    Args:
        diff: what the patch does to the file.
        old: the file before and after the patch on its own base.
        new: the file before and after the merge.
        path: its path on the new base.
        lines: those that the merge changes, if they are known.
        whole: False when some hunks are known to be left out, for they conflict.
    """
    if old[0] == new[0] and old[1] == new[1]:
        return ()
    mine, theirs = Change.of_diff(diff, *old), Change.between(path, *new, lines)
    doubtful: dict[tuple[Group, Group], None] = {}
    found = dict.fromkeys(_moved(mine, theirs, doubtful))
    if whole:
        found |= dict.fromkeys(_lost(mine, theirs))
        if not found:
            found |= dict.fromkeys(among_likes(mine, theirs, doubtful))
    return tuple(found)


def same_symbol(one: Symbol, first: Outline, other: Symbol, second: Outline) -> bool:
    """True when ``other`` of the outline ``second`` is certainly ``one`` of ``first``."""
    if one.name == other.name:
        return first.twins(one.name) == second.twins(one.name)
    if one.family != other.family or MODULE in (one.name, other.name):
        return False
    is_new = one.name not in second.symbols and other.name not in first.symbols
    return is_new and _family(one, first) == [one] and _family(other, second) == [other]


def counterpart(one: Symbol, first: Outline, second: Outline) -> Symbol | None:
    """The symbol of ``second`` that is certainly ``one`` of ``first``; None without one."""
    known = second.symbols.get(one.name)
    candidates = [known] if known else _family(one, second)
    return next((item for item in candidates if same_symbol(one, first, item, second)), None)


def _family(one: Symbol, known: Outline) -> list[Symbol]:
    return [item for item in known.symbols.values() if item.family == one.family]


def _paired(mine: Change, theirs: Change) -> Iterator[tuple[ChangedLine | None, ChangedLine]]:
    """Each line that the merge changes, with the line of the patch that it is.

    Of several that read alike, one of the same symbol and the same block is taken first.
    """
    left: dict[tuple[str, bytes], list[ChangedLine]] = {}
    for one in mine.lines:
        left.setdefault((one.sign, one.text), []).append(one)
    for line in theirs.lines:
        same = left.get((line.sign, line.text), [])
        here = [one for one in same[:_LIKE_LINES] if _same_place(one, line)]
        alike = next((one for one in here if _blocks(one) == _blocks(line)), None)
        found = alike or next(iter(here), None) or next(iter(same), None)
        if found is not None:
            same.remove(found)
        yield found, line


def _same_place(one: ChangedLine, line: ChangedLine) -> bool:
    return same_symbol(one.symbol, one.outline, line.symbol, line.outline)


def _blocks(line: ChangedLine) -> tuple[str, ...]:
    return line.outline.blocks(line.number)


def _moved(
    mine: Change, theirs: Change, doubtful: dict[tuple[Group, Group], None]
) -> Iterator[Misplacement]:
    """Changed lines that are in another symbol or block, where more than one place is like it.

    What is at one of several like places, in whatever symbol, is added to ``doubtful``.
    """
    for one, line in _paired(mine, theirs):
        if one is None:
            if not _changes(mine, line):
                was = ", ".join(dict.fromkeys(each.symbol.name for each in mine.lines))
                what = f"it changes {line.symbol.name} now, and changed {was} before"
                yield Misplacement(line.symbol.name, what)
        elif not _is_alone(one, line, mine, theirs):
            doubtful[one.group, line.group] = None
            if not _same_place(one, line):
                what = f"it changes {line.symbol.name} now, and changed {one.symbol.name} before"
                yield Misplacement(line.symbol.name, what)
            elif detail := _block_moved(one, line):
                yield Misplacement(line.symbol.name, detail)


def _is_alone(one: ChangedLine, line: ChangedLine, mine: Change, theirs: Change) -> bool:
    """True when no other place, old or new, has the lines that a merge changes and those around.

    The lines around are those of a patch's context, as far as they are what they were. Within a
    symbol without twins, no place outside of it counts.
    """
    known, now, own, group = mine.before, theirs.before, one.group, line.group
    first, last = group.first, group.last
    for _ in range(_CONTEXT):
        if first and known.standing(now.lines[first - 1 : last]):
            first -= 1
        if last < len(now.lines) and known.standing(now.lines[first : last + 1]):
            last += 1
    above = group.first - first
    old, new = (
        [row + above for row in outline.standing(now.lines[first:last])] for outline in (known, now)
    )
    if _same_place(one, line) and line.outline.twins(line.symbol.name) == 1:
        old, new = (
            [row for row in rows if which.symbol.first <= row + 1 <= which.symbol.last]
            for rows, which in ((old, one), (new, line))
        )
    if len(new) != 1 or len(old) != 1 or _lives_on(one, line, now.lines[group.first : group.last]):
        return False
    return own.first - own.added <= old[0] <= own.last + own.added


def _lives_on(one: ChangedLine, line: ChangedLine, run: Sequence[bytes]) -> bool:
    """True when the symbol of one side is another one on the other side, and has the run there."""
    if _same_place(one, line):
        return False
    sides = ((one.symbol, one.outline, line.outline), (line.symbol, line.outline, one.outline))
    return any(
        other.first <= row + 1 <= other.last
        for symbol, first, second in sides
        if (other := counterpart(symbol, first, second)) and other.name != MODULE
        for row in second.standing(run)
    )


def _changes(mine: Change, line: ChangedLine) -> bool:
    """True when the patch changes the symbol of a line, though not by that very line."""
    return any(
        same_symbol(one.symbol, one.outline, line.symbol, line.outline)
        for one in mine.lines
        if one.sign == line.sign
    )


def _block_moved(one: ChangedLine, other: ChangedLine) -> str | None:
    """A message when a line is in another block of its symbol than the patch's line is.

    The head of a block that only one side has was changed by upstream. It tells nothing, unless
    the symbol has the lines around the patch's line in several blocks.
    """
    first, second = one.outline.blocks(one.number), other.outline.blocks(other.number)
    if first == second:
        return None
    known, now = (line.outline.heads(line.symbol.name) for line in (one, other))
    kept = [head for head in first if head in now]
    found = [head for head in second if head in known]
    if kept == found and not _has_copy(one):
        return None
    place = " > ".join(second) or "no block"
    return f"it changes {other.symbol.name} in {place} now, and in {' > '.join(first)} before"


def _has_copy(line: ChangedLine) -> bool:
    """True when the symbol has the lines above and below a line more than once."""
    own, row = line.outline.own_lines(line.symbol.name), line.number - 1
    around = [*line.outline.lines[max(row - 1, 0) : row], *line.outline.lines[row + 1 : row + 2]]
    return all(own[text.strip()] > 1 for text in around)


def _lost(mine: Change, theirs: Change) -> Iterator[Misplacement]:
    """Lines that the patch adds and that are not in its symbol after the merge."""
    counted = Counter(line.text for line in theirs.lines if line.sign == "+")
    for line in mine.lines:
        if line.sign == "-":
            continue
        if counted[line.text]:
            counted[line.text] -= 1
            continue
        name, symbol = line.symbol.name, counterpart(line.symbol, line.outline, theirs.after)
        if symbol is None:
            yield Misplacement(
                name, f"git finds its change of {name} made already, but {name} is gone"
            )
        elif line.text not in theirs.after.own_lines(symbol.name):
            yield Misplacement(name, f"git finds its change of {name} made already elsewhere")
