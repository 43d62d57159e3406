# SPDX-License-Identifier: Apache-2.0
"""Survivors: lines or symbols that a change's place lost, and another file has on a new base.

A block may move to another file while a similar block stays in its place, which git takes for the
moved block. A change belongs where its lines are. If the lines around it, or the name of its
function, are gone there, the other files of the new base are searched for them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import PurePosixPath

from forkpatch.inspect.upstreamed import NewBase
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.changes import Change, Group, Misplacement, says_something
from forkpatch.symbols.outline import MODULE, Outline, bare_name, outline, places

_AROUND = 40  # lines read above and below a change to tell similar places apart


def survivors(
    diff: FileDiff, old: tuple[bytes, bytes], here: bytes, path: str, base: NewBase
) -> Iterator[Misplacement]:
    """Yield changes that may belong to another file.

    Args:
        diff: the patch's diff of one file.
        old: the file before and after the patch, on the patch's own base.
        here: the file on the new base.
        path: path of the file on the new base.
        base: the new base.
    """
    if old[0] == here and path == diff.old:
        return
    patched, now = Change.of_diff(diff, *old), places(path, here)
    elsewhere = (diff.old, path)
    for group in patched.groups:
        symbol = patched.before.at(group.last)
        is_named = patched.before.is_parsed and symbol.name != MODULE
        if (
            is_named
            and path == diff.old
            and {known.twins(symbol.name) for known in (patched.before, now)} == {1}
        ):
            continue  # the symbol did not move
        first, last = max(group.first - 1, 0), group.last + 1
        block = _bare(b"\n".join(patched.before.lines[first:last])).strip().split(b"\n")
        rarest = max(filter(says_something, block), key=len, default=b"")
        lost = _lost(patched.before, group, now)
        place = _by_lines(lost, block, rarest, base, elsewhere) if lost and rarest else ""
        if not place and is_named and not symbol.family.endswith(")"):
            place = _by_name(symbol.name, rarest, base, elsewhere)
        if place:
            yield Misplacement(symbol.name, f"it changes {path}, and {place} now")


def _lost(known: Outline, group: Group, now: Outline) -> set[bytes]:
    """Return the lines near a change that were unique in the file, and are now gone."""
    around = known.lines[max(group.first - _AROUND, 0) : group.last + _AROUND]
    return {
        line.strip()
        for line in around
        if says_something(line) and len(known.standing([line])) == 1 and not now.has_line(line)
    }


def _by_name(name: str, line: bytes, base: NewBase, elsewhere: tuple[str | None, ...]) -> str:
    """Return the other file that got a symbol with a line, in words; empty without one."""
    suffix = PurePosixPath(elsewhere[1] or "").suffix
    words = bare_name(name), line.decode("utf-8", "surrogateescape")
    for other in base.find(*filter(None, words)):
        if other in elsewhere or PurePosixPath(other).suffix != suffix:
            continue
        present, was = (outline(other, read(other) or b"") for read in (base.read, base.was))
        if name in present.symbols and name not in was.symbols and line in present.own_lines(name):
            return f"{name} is in {other}"
    return ""


def _by_lines(
    lost: Container[bytes],
    block: Sequence[bytes],
    rarest: bytes,
    base: NewBase,
    elsewhere: tuple[str | None, ...],
) -> str:
    """Return the other file that got a change's lines beside a lost line, in words."""
    for other in base.find(rarest.decode("utf-8", "surrogateescape")):
        if other in elsewhere:
            continue
        present, was = (Outline("", _bare(read(other) or b"")) for read in (base.read, base.was))
        rows = present.standing(block)
        for row in rows if len(rows) > len(was.standing(block)) else ():
            near = present.lines[max(row - _AROUND, 0) : row + len(block) + _AROUND]
            for line in near:
                if line in lost and not was.has_line(line):
                    text = line.decode("utf-8", "replace")
                    return f"the same lines are at {other}:{row + 1}, with {text!r},"
    return ""


def _bare(data: bytes) -> bytes:
    """Return the lines without blanks around them, as a moved block may have another indent."""
    return b"\n".join(line.strip() for line in data.split(b"\n"))
