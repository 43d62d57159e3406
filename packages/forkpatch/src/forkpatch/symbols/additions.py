# SPDX-License-Identifier: Apache-2.0
"""Lines, keys and symbols that both a patch and upstream add to a file, at two places."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forkpatch.symbols.carrying import Carried, Place
from forkpatch.symbols.outline import outline
from forkpatch.symbols.text import WORD, Text, indent, text

_VALUE = re.compile(rb"\"[^\"]*\"(?!\s*:)|'[^']*'(?!\s*:)|\b\d[\w.]*")
_FIRST_WORD = re.compile(rb"\W*[\w-]+")


def both_added(carried: Carried, patched: bytes) -> Iterator[tuple[int, str]]:
    """Yield row and message for the first thing that the patch and upstream both add.

    Args:
        carried: the patch's edits in the new version, each of which has a place.
        patched: the patched file.
    """
    places = [place for place in carried.places if place and place.edit.new and not place.is_done]
    done = [range(*place.rows) for place in carried.places if place and place.is_done]
    new, to_old = carried.new, carried.to_old
    came = [row for row in range(len(new.lines)) if to_old[row] < 0]
    came = [row for row in came if not any(row in rows for rows in done)]
    if places and came:
        after = text(carried.old.path, patched)
        found = _same_line(carried, places, after, came) or _same_symbol(
            carried, places, after, came
        )
        if found:
            yield found[0], f"upstream adds {found[1]!r}, too, at line {found[0] + 1} of {new.path}"


def _same_line(
    carried: Carried, places: list[Place], after: Text, came: list[int]
) -> tuple[int, str] | None:
    """Return row and text of a line or key that both sides add to one block."""
    theirs: dict[bytes, list[int]] = {}
    for row in came:
        if WORD.search(key := _key(carried.new.lines[row])):
            theirs.setdefault(key, []).append(row)
    for place in places if theirs else ():
        start, size = place.edit.start, len(place.edit.new)
        for row in range(start, start + size):
            for at in theirs.get(_key(after.lines[row]), ()):
                if _is_same(carried, place, (after, row), at):
                    return at, after.lines[row].decode("utf-8", "replace")
    return None


def _is_same(carried: Carried, place: Place, ours: tuple[Text, int], at: int) -> bool:
    """Return True when two added lines with one key are the same thing in the same block."""
    (after, row), old, new, edit = ours, carried.old, carried.new, place.edit
    line, other = after.lines[row], new.lines[at]
    if line == other and old.rows(line):
        return False
    depths = map(after.depth, range(edit.start, edit.start + len(edit.new)))
    depth = min(depth for depth in depths if depth is not None)
    if (after.depth(row) or 0) > depth:  # the name of a new block, if it told all blocks apart
        word = _FIRST_WORD.match(line)
        named = [text for text in old.lines if word and text.startswith(word[0])]
        heads = after.lines[after.head(row)], new.lines[new.head(at)]
        return line == other and heads[0] == heads[1] and 0 < len(named) == len(set(named))
    top, bottom = new.levels(*place.rows, depth)[0]
    if not top <= at < bottom or indent(new.raw[at], b" -") != indent(after.raw[row], b" -"):
        return False
    block = old.lines[slice(*old.levels(edit.first, edit.last, depth)[0])]
    return line == other or all(_key(text) != _key(line) for text in block)


def _same_symbol(
    carried: Carried, places: list[Place], after: Text, came: list[int]
) -> tuple[int, str] | None:
    """Return row and name of a symbol that both sides add."""
    old, new = carried.old, carried.new
    words = {word for row in came for word in WORD.findall(new.lines[row])}
    words &= {word for place in places for line in place.edit.new for word in WORD.findall(line)}
    if all(word in old.data for word in words):
        return None  # no parser is needed
    known, ours, theirs = (outline(side.path, side.data) for side in (old, after, new))
    for name in ours.symbols if known.is_parsed else ():
        row = theirs.symbols[name].first - 1 if name in theirs.symbols else -1
        if name not in known.symbols and row in came:
            return row, name
    return None


def _key(line: bytes) -> bytes:
    """Return a line without its numbers and quoted values."""
    return _VALUE.sub(b"#", line.removeprefix(b"- ")).rstrip(b",")
