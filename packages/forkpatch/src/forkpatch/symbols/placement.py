# SPDX-License-Identifier: Apache-2.0
"""Check that a merge puts the changes of a patch where the patch makes them.

Git merges similar lines, even in different functions. Here each line that a merge changes is
compared with the changed line of the patch.

A place is certain when the changed lines, with their unchanged context, stand exactly once before
and once after the merge, and no other symbol keeps a copy. Any other place must be

- in the same symbol, by its full name. A symbol with a new signature or new conditions is followed
  only when the old name is gone, the new name is new, and neither has a twin;
- in the same block of the symbol, as far as heads of blocks can tell (``case A:``, ``if (x) {``);
- between the same lines, in any language, when these lines tell similar places apart.

While the old place still exists elsewhere, no other place is right.
:mod:`forkpatch.inspect.survivors` finds a place in another file.
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

_CONTEXT = 3  # lines of context around a change, as in a patch
_LIKE_LINES = 50  # most equal lines whose symbols and blocks are compared


def misplaced(
    diff: FileDiff,
    old: tuple[bytes, bytes],
    new: tuple[bytes, bytes],
    path: str,
    lines: ChangedLines | None = None,
    *,
    whole: bool = True,
) -> tuple[Misplacement, ...]:
    """Return the changes of a file that a merge put at another place than the patch does.

    Args:
        diff: the patch's diff of the file.
        old: the file before and after the patch, on the patch's base.
        new: the file before and after the merge.
        path: the file's path on the new base.
        lines: the lines that the merge changes; None if unknown.
        whole: False when conflicting hunks are left out.
    """
    if old[0] == new[0] and old[1] == new[1]:
        return ()
    patch, merge = Change.of_diff(diff, *old), Change.between(path, *new, lines)
    doubtful: dict[tuple[Group, Group], None] = {}
    errors = dict.fromkeys(_moved(patch, merge, doubtful))
    if whole:
        errors |= dict.fromkeys(_lost(patch, merge))
        if not errors:
            errors |= dict.fromkeys(among_likes(patch, merge, doubtful))
    return tuple(errors)


def same_symbol(symbol: Symbol, first: Outline, other: Symbol, second: Outline) -> bool:
    """Return True when ``other`` of outline ``second`` is certainly symbol ``one`` of ``first``."""
    if symbol.name == other.name:
        return first.twins(symbol.name) == second.twins(symbol.name)
    if symbol.family != other.family or MODULE in (symbol.name, other.name):
        return False
    is_new = symbol.name not in second.symbols and other.name not in first.symbols
    return is_new and _family(symbol, first) == [symbol] and _family(other, second) == [other]


def counterpart(symbol: Symbol, first: Outline, second: Outline) -> Symbol | None:
    """Return the symbol of ``second`` that is certainly ``one`` of ``first``; None without it."""
    known = second.symbols.get(symbol.name)
    candidates = [known] if known else _family(symbol, second)
    return next((item for item in candidates if same_symbol(symbol, first, item, second)), None)


def _family(symbol: Symbol, known: Outline) -> list[Symbol]:
    """Return the symbols of an outline with the same family as a symbol."""
    return [item for item in known.symbols.values() if item.family == symbol.family]


def _paired(patch: Change, merge: Change) -> Iterator[tuple[ChangedLine | None, ChangedLine]]:
    """Yield the patch's line for each line that the merge changes, and that line.

    The patch's line is None without an equal line. Of several equal lines, a line of the same
    symbol and block comes first.
    """
    unpaired: dict[tuple[str, bytes], list[ChangedLine]] = {}
    for source in patch.lines:
        unpaired.setdefault((source.sign, source.text), []).append(source)
    for line in merge.lines:
        same = unpaired.get((line.sign, line.text), [])
        same_symbols = [source for source in same[:_LIKE_LINES] if _same_place(source, line)]
        alike = next((source for source in same_symbols if _blocks(source) == _blocks(line)), None)
        match = alike or next(iter(same_symbols), None) or next(iter(same), None)
        if match is not None:
            same.remove(match)
        yield match, line


def _same_place(source: ChangedLine, line: ChangedLine) -> bool:
    """Return True when the patch's line and the merged line are in the same symbol."""
    return same_symbol(source.symbol, source.outline, line.symbol, line.outline)


def _blocks(line: ChangedLine) -> tuple[str, ...]:
    """Return the heads of the blocks around a changed line."""
    return line.outline.blocks(line.number)


def _moved(
    patch: Change, merge: Change, doubtful: dict[tuple[Group, Group], None]
) -> Iterator[Misplacement]:
    """Yield misplacements: lines in another symbol or block, when their place is not certain.

    Each pair of groups whose place is not certain is added to ``doubtful``.
    """
    for source, line in _paired(patch, merge):
        if source is None:
            if not _changes(patch, line):
                was = ", ".join(dict.fromkeys(each.symbol.name for each in patch.lines))
                what = f"it changes {line.symbol.name} now, and changed {was} before"
                yield Misplacement(line.symbol.name, what)
        elif not _is_alone(source, line, patch, merge):
            doubtful[source.group, line.group] = None
            if not _same_place(source, line):
                what = f"it changes {line.symbol.name} now, and changed {source.symbol.name} before"
                yield Misplacement(line.symbol.name, what)
            elif detail := _block_moved(source, line):
                yield Misplacement(line.symbol.name, detail)


def _is_alone(source: ChangedLine, line: ChangedLine, patch: Change, merge: Change) -> bool:
    """Return True when a single old and a single new place have a merged line and its context.

    The context is that of a patch, as far as the lines are unchanged. Within a symbol without
    twins, only places in that symbol count.
    """
    known, now, patched, group = patch.before, merge.before, source.group, line.group
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
    if _same_place(source, line) and line.outline.twins(line.symbol.name) == 1:
        old, new = (
            [row for row in rows if which.symbol.first <= row + 1 <= which.symbol.last]
            for rows, which in ((old, source), (new, line))
        )
    if (
        len(new) != 1
        or len(old) != 1
        or _lives_on(source, line, now.lines[group.first : group.last])
    ):
        return False
    return patched.first - patched.added <= old[0] <= patched.last + patched.added


def _lives_on(source: ChangedLine, line: ChangedLine, run: Sequence[bytes]) -> bool:
    """Return True when a symbol exists on both sides, and the other side's copy has the run.

    Lines of the same symbol never count.
    """
    if _same_place(source, line):
        return False
    sides = (
        (source.symbol, source.outline, line.outline),
        (line.symbol, line.outline, source.outline),
    )
    return any(
        other.first <= row + 1 <= other.last
        for symbol, first, second in sides
        if (other := counterpart(symbol, first, second)) and other.name != MODULE
        for row in second.standing(run)
    )


def _changes(patch: Change, line: ChangedLine) -> bool:
    """Return True when the patch changes the symbol of a line, though by another line."""
    return any(
        same_symbol(source.symbol, source.outline, line.symbol, line.outline)
        for source in patch.lines
        if source.sign == line.sign
    )


def _block_moved(source: ChangedLine, other: ChangedLine) -> str | None:
    """Return a message when a line is in another block of its symbol than the patch's line.

    Upstream changed a block head that only one side has. Such a head proves nothing, unless the
    symbol has the lines around the patch's line in several blocks.
    """
    first, second = source.outline.blocks(source.number), other.outline.blocks(other.number)
    if first == second:
        return None
    known, now = (line.outline.heads(line.symbol.name) for line in (source, other))
    kept = [head for head in first if head in now]
    heads = [head for head in second if head in known]
    if kept == heads and not _has_copy(source):
        return None
    blocks = " > ".join(second) or "no block"
    return f"it changes {other.symbol.name} in {blocks} now, and in {' > '.join(first)} before"


def _has_copy(line: ChangedLine) -> bool:
    """Return True when the symbol has the lines above and below a line more than once."""
    counts, row = line.outline.own_lines(line.symbol.name), line.number - 1
    around = [*line.outline.lines[max(row - 1, 0) : row], *line.outline.lines[row + 1 : row + 2]]
    return all(counts[text.strip()] > 1 for text in around)


def _lost(patch: Change, merge: Change) -> Iterator[Misplacement]:
    """Yield the lines that the patch adds and its symbol lacks after the merge."""
    counted = Counter(line.text for line in merge.lines if line.sign == "+")
    for line in patch.lines:
        if line.sign == "-":
            continue
        if counted[line.text]:
            counted[line.text] -= 1
            continue
        name, symbol = line.symbol.name, counterpart(line.symbol, line.outline, merge.after)
        if symbol is None:
            yield Misplacement(
                name, f"git finds its change of {name} made already, but {name} is gone"
            )
        elif line.text not in merge.after.own_lines(symbol.name):
            yield Misplacement(name, f"git finds its change of {name} made already elsewhere")
