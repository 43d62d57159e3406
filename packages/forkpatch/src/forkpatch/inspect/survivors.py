# SPDX-License-Identifier: Apache-2.0
"""Survivors: what the place of a change lost on a new base, and another file has there instead.

A block moves to another file, and a twin with another name stays in its place: for git the twin is
the block. A change is at home where its lines are. Where the lines around it, or the name of its
function, are gone from there, the other files of the new base are searched for them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import PurePosixPath

from forkpatch.inspect.upstreamed import NewBase
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.changes import Change, Group, Misplacement, says_something
from forkpatch.symbols.outline import MODULE, Outline, bare_name, outline, places

_AROUND = 40  # lines above and below a change that tell it from a twin


def survivors(
    diff: FileDiff, old: tuple[bytes, bytes], here: bytes, path: str, base: NewBase
) -> Iterator[Misplacement]:
    """Places of other files to which a change may belong.

    Args:
        diff: what the patch does to one file.
        old: the file before and after the patch on its own base.
        here: the file on the new base.
        path: its path there.
        base: the new base.
    """
    if old[0] == here and path == diff.old:
        return
    mine, now = Change.of_diff(diff, *old), places(path, here)
    elsewhere = (diff.old, path)
    for group in mine.groups:
        symbol = mine.before.at(group.last)
        is_named = mine.before.is_parsed and symbol.name != MODULE
        if (
            is_named
            and path == diff.old
            and {known.twins(symbol.name) for known in (mine.before, now)} == {1}
        ):
            continue  # it is where it was
        first, last = max(group.first - 1, 0), group.last + 1
        block = _bare(b"\n".join(mine.before.lines[first:last])).strip().split(b"\n")
        rarest = max(filter(says_something, block), key=len, default=b"")
        lost = _lost(mine.before, group, now)
        found = _by_lines(lost, block, rarest, base, elsewhere) if lost and rarest else ""
        if not found and is_named and not symbol.family.endswith(")"):
            found = _by_name(symbol.name, rarest, base, elsewhere)
        if found:
            yield Misplacement(symbol.name, f"it changes {path}, and {found} now")


def _lost(known: Outline, group: Group, now: Outline) -> set[bytes]:
    """The lines near a change that the file had once, and has no more."""
    around = known.lines[max(group.first - _AROUND, 0) : group.last + _AROUND]
    return {
        line.strip()
        for line in around
        if says_something(line) and len(known.standing([line])) == 1 and not now.has_line(line)
    }


def _by_name(name: str, line: bytes, base: NewBase, elsewhere: tuple[str | None, ...]) -> str:
    """The place of a symbol with a line in a file that did not have it; empty without one."""
    suffix = PurePosixPath(elsewhere[1] or "").suffix
    words = bare_name(name), line.decode("utf-8", "surrogateescape")
    for other in base.find(*filter(None, words)):
        if other in elsewhere or PurePosixPath(other).suffix != suffix:
            continue
        there, was = (outline(other, read(other) or b"") for read in (base.read, base.was))
        if name in there.symbols and name not in was.symbols and line in there.own_lines(name):
            return f"{name} is in {other}"
    return ""


def _by_lines(
    lost: Container[bytes],
    block: Sequence[bytes],
    rarest: bytes,
    base: NewBase,
    elsewhere: tuple[str | None, ...],
) -> str:
    """The place in a file that got the lines of a change with one that its place lost."""
    for other in base.find(rarest.decode("utf-8", "surrogateescape")):
        if other in elsewhere:
            continue
        there, was = (Outline("", _bare(read(other) or b"")) for read in (base.read, base.was))
        rows = there.standing(block)
        for row in rows if len(rows) > len(was.standing(block)) else ():
            near = there.lines[max(row - _AROUND, 0) : row + len(block) + _AROUND]
            for line in near:
                if line in lost and not was.has_line(line):
                    text = line.decode("utf-8", "replace")
                    return f"the same lines are at {other}:{row + 1}, with {text!r},"
    return ""


def _bare(data: bytes) -> bytes:
    """Lines without the blanks around them: what moves may be indented otherwise there."""
    return b"\n".join(line.strip() for line in data.split(b"\n"))
