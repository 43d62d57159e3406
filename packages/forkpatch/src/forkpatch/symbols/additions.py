# SPDX-License-Identifier: Apache-2.0
"""Lines, keys and symbols that a patch and upstream both add to a file, or both remove."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from forkpatch.symbols.carrying import Carried, Place, Versions
from forkpatch.symbols.outline import outline
from forkpatch.symbols.text import (
    DOCUMENTS,
    ITEM,
    WORD,
    Text,
    indent,
    key_of,
    keys_of,
    numbered,
    plain,
    says_something,
    text,
    without_values,
)

_NO_NAMES = (b"//", b"/*", b"#if", b"#el", b"#endif")  # comments and conditions
_SET = re.compile(rb"^[^()]*[=:]\s*#\W*$")
_STATEMENT = re.compile(rb"[\w.>-]*\(#|(?:return|goto|import|include|use)\b")
_FIRST_WORD = re.compile(rb"\W*[\w-]+")
_SIBLINGS = 3  # least lines whose rising numbers tell them apart


def both_added(edits: Carried, patched: bytes) -> Iterator[tuple[int, str]]:
    """Yield row and message for the first line, key or symbol that patch and upstream both add.

    Each edit must have a place in the new version, whose row is yielded. ``patched`` is the old
    version with the patch.
    """
    places = [place for place in edits.places if place and place.edit.new and not place.is_done]
    ours = [line for place in places for line in place.edit.new]
    theirs, known = edits.versions.added, edits.versions.old.data
    words = {word for line in ours for word in WORD.findall(line) if word in theirs.words}
    if theirs.keys.isdisjoint(key for line in ours for key in keys_of(plain(line))) and all(
        word in known for word in words
    ):
        return
    done = [range(*place.rows) for place in edits.places if place and place.is_done]
    came = [row for row in _new(edits.versions) if not any(row in rows for rows in done)]
    after = text(edits.versions.old.path, patched)
    found = _same_line(edits.versions, places, after, came) or _same_symbol(
        edits.versions, places, after, came
    )
    if found:
        where = f"line {found[0] + 1} of {edits.versions.new.path}"
        yield found[0], f"upstream adds {found[1]!r}, too, at {where}"


def both_removed(edits: Carried, patched: bytes) -> Iterator[tuple[int, str]]:
    """Yield row and message for equal lines of a block that each side removes in part.

    Upstream removes one of each line that the patch removes. Each side leaves some, the merge none.
    """
    old, new = edits.versions.old, edits.versions.new
    places = [place for place in edits.places if place and not place.is_done]
    # Several edits may do no more than remove one line from a run of lines that read alike.
    for some in (places, *([place] for place in places)):
        rows = [row for place in some for row in range(place.edit.first, place.edit.last)]
        new_lines = (plain(line) for place in some for line in place.edit.new)
        kept = {line.removeprefix(ITEM) for line in new_lines}
        gone = (old.lines[row].removeprefix(ITEM) for row in rows)
        lines = {line for line in gone if says_something(line)}
        came = any(says_something(line) for line in kept - lines)
        lines -= kept
        if came or any(len(new.rows(line)) >= len(old.rows(line)) for line in lines):
            continue
        after = text(old.path, patched)
        depth = min((old.depth(row) or 0 for row in rows), default=0)
        for line in sorted(lines):
            count, ours, theirs = (len(side.rows(line)) for side in (old, after, new))
            if not 0 < ours <= count - theirs < count:
                continue
            levels, end = old.levels(rows[0], rows[-1] + 1, depth), len(old.lines)
            top, bottom = next(span for span in levels if span[0] < rows[0] or span[1] == end)
            if all(top <= row < bottom for row in old.rows(line)):
                what = line.decode("utf-8", "replace")
                yield some[0].rows[0], f"upstream removes another one of {count} lines {what!r}"
                return


def _new(versions: Versions) -> Iterator[int]:
    """Yield the rows that upstream adds, without those that are old lines with other values."""
    old, new = versions.old.lines, versions.new.lines
    for (first, start, size), (end, last, _) in pairwise([(0, 0, 0), *versions.runs]):
        gone, came = range(first + size, end), range(start + size, last)
        edited = dict(zip(came, gone, strict=True)) if len(gone) == len(came) else {}
        for row in came:
            was = edited.get(row)
            if was is None or key_of(old[was]) != key_of(new[row]):
                yield row


def _same_line(
    versions: Versions, places: list[Place], after: Text, came: list[int]
) -> tuple[int, str] | None:
    """Return row and text of a line or key that both sides add to one block."""
    theirs: dict[bytes, list[int]] = {}
    for row in came:
        line = versions.new.lines[row]
        for key in () if line.startswith(_NO_NAMES) else keys_of(line):
            theirs.setdefault(key, []).append(row)
    for place in places if theirs else ():
        start, size = place.edit.start, len(place.edit.new)
        for row in range(start, start + size):
            keys = keys_of(after.lines[row])
            for at in (at for key in keys for at in theirs.get(key, ())):
                is_same = _is_same(versions, place, (after, row), at)
                if is_same and _are_like(versions, place, at):
                    return at, after.lines[row].decode("utf-8", "replace")
    return None


def _is_same(versions: Versions, place: Place, ours: tuple[Text, int], at: int) -> bool:
    """Return True when two added lines with one key are the same thing in the same block."""
    (after, row), old, new, edit = ours, versions.old, versions.new, place.edit
    line, other = after.lines[row], new.lines[at]
    rows = range(edit.start, edit.start + len(edit.new))
    depths = [depth for depth in map(after.depth, rows) if depth is not None]
    if not depths or (line == other and old.rows(line)):
        # Conditions of a preprocessor may define one name in several ways.
        return line == other and b"include" in line and not old.rows(line)
    depth = min(depths)
    top, bottom = next(new.levels(*place.rows, depth))
    if (after.depth(row) or 0) > depth:  # the name of a new block, if it told all blocks apart
        word, is_sample = _FIRST_WORD.match(line), new.path.endswith(DOCUMENTS)
        is_alike = line == other and after.lines[after.head(row)] == new.lines[new.head(at)]
        if is_sample or word is None or not is_alike:  # samples of code have no names
            return False
        named = [text for text in old.lines if text.startswith(word[0])]
        added = after.lines[edit.start : edit.start + len(edit.new)]
        is_common = max(new.lines[top:bottom].count(line), added.count(line)) > 1
        return 0 < len(named) == len(set(named)) and not is_common
    if not top <= at < bottom or indent(new.raw[at], b" -") != indent(after.raw[row], b" -"):
        return False
    block = old.lines[slice(*next(old.levels(edit.first, edit.last, depth)))]
    key, is_code = key_of(line), outline(new.path, new.data).is_parsed
    # A key has one value; a statement, of which there may be several, has words as arguments.
    is_key = _SET.search(key) if is_code else not _STATEMENT.match(key)
    is_key = is_key and b"+=" not in line
    kind = without_values(line)
    is_alike = kind == without_values(other) and all(without_values(text) != kind for text in block)
    if key != key_of(other):  # a number is a name if those of the block rise
        sign, _ = numbered(line) or (b"", 0)
        known = [one[1] for one in map(numbered, block) if one and one[0] == sign]
        return len(known) >= _SIBLINGS and known == sorted({*known})
    is_new = all(key_of(text) != key for text in block)
    return line == other or is_alike or bool(is_key and is_new)


def _are_like(versions: Versions, place: Place, at: int) -> bool:
    """Return True when half of the new lines of an edit, and of upstream's at a row, are in both.

    Outside of prose, half of the lines of one are enough; in a block, or in code, a single line is.
    """
    new, is_prose = versions.new, versions.new.path.endswith(DOCUMENTS)
    depth = min(map(indent, place.edit.new))
    in_block = next(new.levels(*place.rows, depth)) != (0, len(new.lines))
    if not is_prose and (in_block or outline(new.path, new.data).is_parsed):
        return True
    top, bottom = at, at + 1
    while top and versions.to_old[top - 1] < 0:
        top -= 1
    while versions.to_old[bottom] < 0:
        bottom += 1
    ours, theirs = (
        {key_of(line) for line in lines if says_something(line) and not versions.old.rows(line)}
        for lines in (map(plain, place.edit.new), new.lines[top:bottom])
    )
    return 2 * len(ours & theirs) >= (max if is_prose else min)(len(ours), len(theirs))


def _same_symbol(
    versions: Versions, places: list[Place], after: Text, came: list[int]
) -> tuple[int, str] | None:
    """Return row and name of a symbol that both sides add."""
    old, new = versions.old, versions.new
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
