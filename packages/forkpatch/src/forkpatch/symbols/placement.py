# SPDX-License-Identifier: Apache-2.0
"""The place of each hunk of a patch in another version of its file: is it the only one?

A hunk is carried to the new version by git's diff between both versions (:func:`carry`). It is in
its place when no other place fits as well (:func:`misplaced`):

- A *rival* is another place in the new version with the hunk's old lines. It fits as well when it
  has a line of the block around the hunk that git's place lost; or, inside the same block, when
  more lines above or below it, or borders of the block, are as they were around the hunk. Places
  that the old version had already, with the same lines around them, do not count.
- A place of the old version that is now gone, and whose block git's place resembles more, is a
  rival, too: git's place is then the rest of that block.
- A place that has a line of the hunk's block that git's place lost, and half of the block's other
  lines, is a rival although the hunk's old lines changed there. So is the place of such a line that
  changed places with a line of another block.

Rivals are searched in the same file, and in all files that changed or are new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forkpatch.git.merge import changed_lines
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.additions import both_added, both_removed
from forkpatch.symbols.carrying import Carried, Place, Versions, carry
from forkpatch.symbols.newbase import NewBase
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.symbols.rivals import Search
from forkpatch.symbols.text import Span, Text, text


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
    *,
    whole: bool = True,
    elsewhere: NewBase | None = None,
) -> tuple[Misplacement, ...]:
    """Return the changes of a file that a merge may have put at another place than the patch does.

    Args:
        diff: the patch's diff of the file.
        old: the file before and after the patch, on the patch's base.
        new: the file before and after the merge.
        path: the file's path on the new base.
        whole: False when conflicting hunks are left out.
        elsewhere: the other files of the new version; None to search in this file only.
    """
    if old[0] == new[0]:
        return ()
    edits = carry(diff, old[0], new[0], path)
    if whole and edits.merged() != new[1]:
        return (Misplacement(MODULE, _differing(edits, new[1])),)
    if whole:
        return rivalled(edits, old[1], elsewhere)
    # A person, or another merge, may have put a change elsewhere.
    known = edits.versions.new
    merge = Versions.of(known, text(path, new[1]), changed_lines([new])[0])
    places = [place for place in edits.places if place and _is_changed(place.rows, merge)]
    return tuple(_with_rivals(edits, places, elsewhere))


def rivalled(edits: Carried, patched: bytes, elsewhere: NewBase | None) -> tuple[Misplacement, ...]:
    """Return the edits with other places, and those that upstream's own changes repeat."""
    found = _with_rivals(edits, [place for place in edits.places if place], elsewhere)
    new = edits.versions.new
    both = (*both_added(edits, patched), *both_removed(edits, patched))
    twice = (Misplacement(_symbol(new, (row, row)), what) for row, what in both)
    return (*found, *twice)


def _with_rivals(
    edits: Carried, places: Sequence[Place], elsewhere: NewBase | None
) -> Iterator[Misplacement]:
    """Yield the edits at some places for which the new version has other places, too."""
    search = Search(edits, elsewhere)
    rivals = ((place, rival) for place in places if (rival := search.rival(place)))
    yield from dict.fromkeys(
        Misplacement(
            _symbol(edits.versions.new, place.rows), f"{_where(edits, place)}, and {rival}"
        )
        for place, rival in rivals
    )


def _is_changed(rows: Span, merge: Versions) -> bool:
    """Return True when a merge changes some rows, or adds lines there."""
    above = merge.image(rows[0] - 1) if rows[0] else -1
    images = [merge.image(row) for row in range(rows[0], rows[1] + 1)]
    return images != list(range(above + 1, above + 2 + rows[1] - rows[0]))


def _symbol(where: Text, rows: Span) -> str:
    return outline(where.path, where.data).at(rows[0] + 1).name


def _where(edits: Carried, place: Place) -> str:
    """Return the message for git's place."""
    was = _symbol(edits.versions.old, (place.edit.first, place.edit.last))
    now = _symbol(edits.versions.new, place.rows)
    if was != now:
        return f"it changes {now} now, and changed {was} before"
    return f"it changes line {place.rows[0] + 1}"


def _differing(edits: Carried, merged: bytes) -> str:
    ours = edits.merged()
    if ours is None:
        return "git's two ways to compare files differ: by one of them, upstream changed the lines"
    pairs = zip(*(text(edits.versions.new.path, data).raw for data in (ours, merged)), strict=False)
    row = next((number for number, (one, other) in enumerate(pairs) if one != other), 0)
    return f"git's two ways to compare give two merges, which differ at line {row + 1}"
