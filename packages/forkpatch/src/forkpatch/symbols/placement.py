# SPDX-License-Identifier: Apache-2.0
"""The place of each hunk of a patch in another version of its file: is it the only one?

A hunk is carried to the new version by git's diff between both versions (:func:`carry`). It is in
its place when no other place fits as well (:func:`misplaced`):

- A *rival* is another place in the new version with the hunk's old lines. It fits as well when it
  has a line of the block around the hunk that git's place lost; or, inside the same block, when
  more lines above or below it are as they were around the hunk. Places that the old version had
  already, with the same lines around them, do not count.
- A place of the old version that is now gone, and whose block git's place resembles more, is a
  rival, too: git's place is then the rest of that block.
- A place that has a line of the hunk's block that git's place lost, and half of the block's other
  lines, is a rival although the hunk's old lines changed there.

Rivals are searched in the same file, and in all files that changed or are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forkpatch.git.merge import ChangedLines, changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.additions import both_added
from forkpatch.symbols.carrying import Carried, Place, carry
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.symbols.rivals import Elsewhere, Search
from forkpatch.symbols.text import Span, line_map, text


@dataclass(frozen=True)
class Misplacement:
    """A change that may belong to another place.

    Attributes:
        symbol: the symbol that has the change now; for a lost change, the symbol that had it.
        detail: the message that describes the error.
    """

    symbol: str
    detail: str


def misplaced(
    diff: FileDiff,
    old: tuple[bytes, bytes],
    new: tuple[bytes, bytes],
    path: str,
    lines: ChangedLines | None = None,
    *,
    whole: bool = True,
    elsewhere: Elsewhere | None = None,
) -> tuple[Misplacement, ...]:
    """Return the changes of a file that a merge may have put at another place than the patch does.

    Args:
        diff: the patch's diff of the file.
        old: the file before and after the patch, on the patch's base.
        new: the file before and after the merge.
        path: the file's path on the new base.
        lines: the lines that differ between both bases; None if unknown.
        whole: False when conflicting hunks are left out.
        elsewhere: the other files of the new version; None to search in this file only.
    """
    if old[0] == new[0]:
        return ()
    carried = carry(diff, old[0], new[0], path, lines)
    if whole and carried.merged() != new[1]:
        return (Misplacement(MODULE, _differing(carried, new[1])),)
    search = Search(carried, elsewhere)
    places = [place for place in carried.places if place]
    if not whole:  # a person, or another merge, may have put the change elsewhere
        merge = line_map(carried.new, text(path, new[1]), *changed_lines([new])[0])
        places = [place for place in places if _is_changed(place.rows, merge)]
    found = dict.fromkeys(
        Misplacement(_symbol(path, new[0], place.rows), f"{_where(carried, place)}, and {rival}")
        for place in places
        if (rival := search.rival(place))
    )
    added = both_added(carried, old[1]) if whole else ()
    twice = (Misplacement(_symbol(path, new[0], (row, row)), what) for row, what in added)
    return (*found, *twice)


def _is_changed(rows: Span, merge: Sequence[int]) -> bool:
    """Return True when a merge changes some rows, or adds lines there."""
    above = merge[rows[0] - 1] if rows[0] else -1
    after = range(above + 1, above + 2 + rows[1] - rows[0])
    return list(merge[rows[0] : rows[1] + 1]) != list(after)


def _symbol(path: str, data: bytes, rows: Span) -> str:
    """Return the symbol at some rows."""
    return outline(path, data).at(rows[0] + 1).name


def _where(carried: Carried, place: Place) -> str:
    """Return the message for git's place."""
    was = _symbol(carried.old.path, carried.old.data, (place.edit.first, place.edit.last))
    now = _symbol(carried.new.path, carried.new.data, place.rows)
    if was != now:
        return f"it changes {now} now, and changed {was} before"
    return f"it changes line {place.rows[0] + 1}"


def _differing(carried: Carried, merged: bytes) -> str:
    """Return the message for merges that differ."""
    if None in carried.places:
        return "git's two ways to compare files differ: by one of them, upstream changed the lines"
    ours = text(carried.new.path, carried.merged() or b"").raw
    theirs = text(carried.new.path, merged).raw
    row = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    return f"git's two ways to compare give two merges, which differ at line {row + 1}"
