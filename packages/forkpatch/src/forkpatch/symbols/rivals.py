# SPDX-License-Identifier: Apache-2.0
"""Rivals: other places of a new version that fit an edit as well as the place that git gives it.

A place fits by the lines around it. They are compared from the edit outwards, block by block: where
one place has a line that the other lost, that block decides.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence, Set
from functools import cached_property
from itertools import count, islice, pairwise

from forkpatch.symbols.carrying import Carried, Place
from forkpatch.symbols.newbase import NewBase
from forkpatch.symbols.outline import MODULE, bare_name, outline
from forkpatch.symbols.text import (
    ITEM,
    WORD,
    WORDS,
    Span,
    Text,
    indent,
    said,
    says_something,
    shape,
    text,
)

_LIKES = 2000  # most places with the same lines that are compared
_BLOCK = 200  # most lines of a block that is searched by its lost lines
_LOST = 12  # most lost lines of a block that are searched
_FILES = 10  # most files with a line that tells places apart
_NEAR = (4, 9)  # lines near an edit
_NAMES = 20  # most lines between an edit and the name of its block
_SLACK = 3  # lines by which a block may have grown


class _Spot:
    """Some rows of a text, with the blocks around them, the innermost first."""

    def __init__(self, where: Text, rows: Span, depth: float) -> None:
        self.text, self.rows = where, rows
        self._found, self._rest = list[Span](), where.levels(*rows, depth)

    def levels(self) -> Iterator[Span]:
        """Yield the blocks around the rows, inside out; each is searched when it is asked for."""
        for number in count():
            block = self.block(number)
            if number == len(self._found):
                return
            yield block

    def block(self, number: int) -> Span:
        """Return a block by its number, from 0, inside out; the whole text for a higher number."""
        self._found += islice(self._rest, max(number + 1 - len(self._found), 0))
        return self._found[min(number, len(self._found) - 1)]

    def heads(self) -> Iterator[bytes]:
        """Yield the head lines of the blocks around the rows, inside out, but the whole text's."""
        *blocks, _ = self.levels()
        yield from (self.text.lines[top] for top, _ in blocks if top < self.rows[0])

    def symbol(self) -> str:
        """Return the symbol at the rows; MODULE in a file without a grammar."""
        return outline(self.text.path, self.text.data).at(self.rows[0] + 1).name


class _Pair:
    """A spot, and the spot of another version that git takes for the same.

    ``changed`` are the other rows of the home that the patch changes, ``added`` its new lines here.
    """

    def __init__(
        self,
        home: _Spot,
        there: _Spot,
        depth: float,
        changed: Container[int],
        added: Sequence[bytes] = (),
    ) -> None:
        self.home, self.there, self.depth = home, there, depth
        self.lines, (self.first, self.last) = home.text.lines, home.rows
        self._changed, self._added = changed, added
        self._lost: dict[tuple[Span, _Spot, Span], list[int]] = {}

    @property
    def inner_depth(self) -> float:
        """The depth of the lines that go with the rows; the first line of an item has a sign."""
        is_item = any(line.startswith(ITEM) for line in self.lines[self.first : self.last][:1])
        return self.depth + len(ITEM) * is_item

    @property
    def is_paragraph(self) -> bool:
        """True when the patch adds lines between two empty ones, of which it adds one."""
        if self.first < self.last or not self._added:
            return False
        above, below = self.lines[: self.first][-1:], self.lines[self.last :][:1]
        begins, ends = (not self._added[at].strip() for at in (0, -1))
        return (begins and below in ([], [b""])) or (ends and above in ([], [b""]))

    @cached_property
    def is_renamed(self) -> bool:
        """True when git's spot is in a symbol of another name; parses files only if it may be."""
        may_be = self._has_lost_condition or (not self._is_in_same_blocks and self._has_lost)
        return may_be and self.home.symbol() != self.there.symbol()

    @property
    def _has_lost_condition(self) -> bool:
        """True when a condition above or below the home is not on that side of git's spot."""
        above, below = _conditions(self.home)
        others = _conditions(self.there)
        return not (above <= others[0] and below <= others[1])

    @property
    def _has_lost(self) -> bool:
        """True when git's spot lost a line near the home, of its blocks, or the head of one."""
        is_near = any(lost for _, lost in self.losses())
        return is_near or self.kept_heads(-1) != self.heads(-1)

    @cached_property
    def _is_in_same_blocks(self) -> bool:
        """True when the blocks around both spots have the same heads, the outermost only once.

        The outermost head must have several words: a single word may be a label in a symbol.
        """
        heads, others = ([*spot.heads()] for spot in (self.home, self.there))
        texts = self.home.text, self.there.text
        is_only = bool(heads) and all(len(where.rows(heads[-1])) == 1 for where in texts)
        return is_only and heads == others and len(WORDS.findall(heads[-1])) > 1

    @cached_property
    def symbol_heads(self) -> Set[int]:
        """The first rows of symbols, if git's spot is in the same one as the home."""
        where, is_same = self.home.text, self.home.symbol() == self.there.symbol()
        known = outline(where.path, where.data).symbols.values() if is_same else ()
        return {item.first - 1 for item in known if item.name != MODULE}

    @cached_property
    def core(self) -> Span:
        """The rows, and as much around them as is needed to say something."""
        top, bottom = self.first, self.last
        while top == bottom or not any(map(says_something, self.lines[top:bottom])):
            if (top, bottom) == (0, len(self.lines)):
                break
            top, bottom = max(top - 1, 0), min(bottom + 1, len(self.lines))
        return top, bottom

    def likes(self, other: Text) -> list[Span]:
        """Return the spans of another text around which the lines of :attr:`core` stand."""
        top, bottom = self.core
        rows = other.standing(self.lines[top:bottom]) if bottom > top else []
        firsts = (row + self.first - top for row in rows)
        return [(at, at + self.last - self.first) for at in firsts]

    def image(self, rows: Sequence[int], at: Span) -> Span | None:
        """Return the span to which ``rows``, new rows by old, takes ``at``; None if it parts."""
        above, size = self.first - self.core[0], self.core[1] - self.core[0]
        images = list(rows[at[0] - above : at[0] - above + size])
        if images[0] < 0 or images != list(range(images[0], images[0] + size)):
            return None
        return images[0] + above, images[0] + above + at[1] - at[0]

    def says(self, row: int) -> bool:
        """Return True when a row says something, and the patch does not change it."""
        return row not in self._changed and says_something(self.lines[row])

    def run(self, other: Text, at: Span) -> tuple[int, int]:
        """Return the number of lines above and below the home that stand around ``at``, too."""
        (above, up), (below, down) = (self.first, at[0]), (self.last, at[1])
        while above and up and self.lines[above - 1] == other.lines[up - 1]:
            above, up = above - 1, up - 1
        size, end = len(self.lines), len(other.lines)
        while below < size and down < end and self.lines[below] == other.lines[down]:
            below, down = below + 1, down + 1
        return self.first - above, below - self.last

    def words(self, other: Text, at: Span) -> tuple[int, int]:
        """Return the numbers of :meth:`run`, without lines that say nothing."""
        up, down = self.run(other, at)
        sides = range(self.first - up, self.first), range(self.last, self.last + down)
        return sum(map(self.says, sides[0])), sum(map(self.says, sides[1]))

    def lost(self, span: Span, spot: _Spot, block: Span) -> list[int]:
        """Return the rows of a span that say something and a spot's block lacks, nearest first."""
        key = span, spot, block  # several ways ask for the same blocks
        if key not in self._lost:
            rows = filter(self.says, self._missing(span, spot, block))
            self._lost[key] = sorted(rows, key=lambda row: abs(row - self.first))
        return self._lost[key]

    def _missing(self, span: Span, spot: _Spot, block: Span) -> Iterator[int]:
        """Yield the rows of a span whose lines a spot's block lacks above, or below, the spot."""
        top, bottom = spot.rows
        above = set(spot.text.lines[block[0] : top])
        below = set(spot.text.lines[bottom : block[1]])
        yield from (row for row in range(span[0], self.first) if self.lines[row] not in above)
        yield from (row for row in range(self.last, span[1]) if self.lines[row] not in below)

    def indistinct(self) -> Span | None:
        """Return other old rows that read alike and lack no more of a block than git's spot."""
        likes = [at for at in self.likes(self.home.text)[:_BLOCK] if at != self.home.rows]
        is_renamed = bool(likes) and self.is_renamed
        for number, (span, outer) in enumerate(pairwise(self.home.levels())) if likes else ():
            lost = self.lost(span, self.there, self.there.block(number))
            if (lost or is_renamed) and span[1] - span[0] <= _BLOCK:
                for at in (at for at in likes if outer[0] <= at[0] < outer[1]):
                    spot = _Spot(self.home.text, at, self.depth)
                    block = spot.block(number)
                    is_other = not block[0] <= self.first < block[1]
                    if is_other and {*self.lost(span, spot, block)} <= {*lost}:
                        return at
        return None

    def better(self, at: Span) -> bytes | None:
        """Return a line for which other rows of git's text fit as well; None if they do not."""
        run, mine = self.run(self.there.text, at), self.run(self.there.text, self.there.rows)
        for number, (top, bottom) in enumerate(self.home.levels()):
            block = self.there.block(number)
            most = self.first - top, bottom - self.last
            if block[0] <= at[0] < block[1]:
                # Two blocks that read alike may differ by the borders of the block around them.
                its = _within(run, most, at, block)
                gits = _within(mine, most, self.there.rows, block)
                if its[1] > gits[1]:
                    return self.lines[min(self.last + gits[1], len(self.lines) - 1)]
                if its[0] > gits[0]:
                    return self.lines[max(self.first - 1 - gits[0], 0)]
                if its != gits:
                    return None
                continue
            up, down = map(min, run, most)
            has = {*filter(self.says, range(self.first - up, self.last + down))}
            lost = {*self.lost((top, bottom), self.there, block)}
            if has & lost:
                return self.lines[min(has & lost)]
            if len(has) < sum(map(self.says, range(top, bottom))) - len(lost):
                return None
        return None

    def heads(self, row: int) -> set[bytes]:
        """Return the heads of the blocks up to the one of a row; of all for a row outside."""
        *levels, _ = self.home.levels()
        inner = [top for top, bottom in levels if not top <= row < bottom]
        return {self.lines[top] for top, _ in levels[: len(inner) + 1] if self.says(top)}

    def kept_heads(self, row: int) -> set[bytes]:
        """Return the heads of the blocks up to the one of a row that git's spot has above it."""
        return self.heads(row) & {*self.there.text.lines[: self.there.rows[0]]}

    def losses(self) -> Iterator[tuple[Span, list[int]]]:
        """Yield the lines near the home, and its blocks, each with its rows that git's spot lost.

        Lines outside of a block that has a name of its own, and kept it, tell nothing about it.
        """
        for size in _NEAR:
            span = _near(self.home, size)
            yield span, self.lost(span, self.there, _near(self.there, size + _SLACK))
        size = len(self.lines)
        for number, (top, bottom) in enumerate(self.home.levels()):
            is_outside = bottom - top == size and self._is_in_same_blocks
            if bottom - top > _BLOCK or is_outside:
                return
            yield (top, bottom), self.lost((top, bottom), self.there, self.there.block(number))


class Search:
    """The search for rivals of a file's edits."""

    def __init__(self, carried: Carried, elsewhere: NewBase | None) -> None:
        self._versions = carried.versions
        self._elsewhere = elsewhere
        edits = [place.edit for place in carried.places if place]
        self._changed = {row for edit in edits for row in range(edit.first, edit.last)}

    def rival(self, place: Place) -> str:
        """Return a message that names another place that fits as well; empty without one."""
        (old, new), edit = (self._versions.old, self._versions.new), place.edit
        lines = [line for line in edit.new if line.strip()] or old.raw[edit.first : edit.last]
        depth = min(map(indent, lines), default=0)
        home = _Spot(old, (edit.first, edit.last), depth)
        there = _Spot(new, place.rows, depth)
        pair = _Pair(home, there, depth, self._changed - {*range(*home.rows)}, edit.new)
        if place.is_done and (found := self._left(pair, place)):
            return found
        likes = pair.likes(new)
        if len(likes) > _LIKES:
            return f"more than {_LIKES:,} places of {new.path} read alike"
        for at in likes:
            if at != place.rows and (line := self._better(pair, at)) is not None:
                return _message(new.path, at[0], line)
        back = _Pair(there, home, depth, ())  # of which old place is git's the rest?
        gone = [] if place.is_done else back.likes(old)[:_LIKES]
        for at in (at for at in gone if at != home.rows):
            is_gone = back.image(self._versions.to_new, at) is None
            if is_gone and (line := back.better(at)) is not None:
                return _message(f"the old {old.path}", at[0], line)
        if rows := pair.indistinct():
            what = "reads alike, and the lines that told both apart changed"
            return f"line {rows[0] + 1} of the old {old.path} {what}"
        reach = max(edit.first - _BLOCK, 0), min(edit.last + _BLOCK, len(old.lines))
        is_kept = self._versions.is_kept(*reach)
        ways = [] if is_kept else [self._exchanged, self._by_lost_lines, self._by_name]
        return next(filter(None, (way(pair) for way in ways)), "")

    def _left(self, pair: _Pair, place: Place) -> str:
        """Return a message for lines that the patch removes, and that upstream only moved.

        Lines that stand at several places of the old version count inside their block alone.
        """
        old, new, run = pair.home.text, pair.there.text, said(pair.lines[slice(*pair.home.rows)])
        lines, (top, bottom) = set(filter(says_something, run)), pair.there.block(0)
        if said(place.edit.new) or not lines:
            return ""
        is_only = any(len(old.rows(line)) == 1 for line in lines)
        came = [row for line in lines for row in new.rows(line) if self._versions.to_old[row] < 0]
        rows = [row for row in came if is_only or top <= row < bottom]
        if lines == {new.lines[row] for row in rows}:
            return f"line {min(rows) + 1} of {new.path} has what it removes"
        others = self._elsewhere.standing(run, new.path) if self._elsewhere and is_only else ()
        return next((f"line {row + 1} of {path} has what it removes" for path, row in others), "")

    def _by_name(self, pair: _Pair) -> str:
        """Return a message for the symbol that the patch changes, if git's place is in another.

        A part of a function that became a function of its own, which the function names, is no
        rival.
        """
        old, new = self._versions.old, self._versions.new
        symbol = pair.home.symbol() if pair.is_renamed else MODULE
        if symbol == MODULE:
            return self._by_kind(pair)
        there = pair.there.symbol()
        part = bare_name(there).encode()
        others = self._elsewhere.places_of(old.path, symbol) if self._elsewhere else ()
        here = ((new.path, item) for item in outline(new.path, new.data).symbols.values())
        for path, item in (*here, *((path, item) for path, item in others if path != new.path)):
            was, now = (old, new) if path == new.path else self._read(path)
            is_known = item.name in outline(was.path, was.data).symbols
            is_it = item.name == symbol if path == new.path or not is_known else False
            is_it |= _family(item.name) == _family(symbol) != _family(there) and not is_known
            if is_it and (path, item.name) != (new.path, there):
                lines = b"\n".join(now.lines[item.first - 1 : item.last])
                if part == bare_name(symbol).encode() or part not in WORD.findall(lines):
                    return f"{symbol} is at line {item.first} of {path}"
        return ""

    def _by_kind(self, pair: _Pair) -> str:
        """Return a message for the name of a block that stands elsewhere, found without a parser.

        It is the nearest line of its kind; git's place has another one of that kind, and a line
        beside the name is new. The head of a symbol that git's place is in, too, is no such name.
        """
        for (kind, _), rows in _names_by_kind(pair).items():
            found = {row: self._elsewhere_named(pair, row, kind) for row in rows}
            # The files are parsed only now: most edits need no parser.
            heads = pair.symbol_heads if any(found.values()) else ()
            nearest = next((row for row in rows if row not in heads), rows[0])
            if nearest not in heads and found[nearest]:
                return found[nearest]
        return ""

    def _elsewhere_named(self, pair: _Pair, row: int, kind: tuple[float, bytes]) -> str:
        """Return a message for a line near the edit, if git's place has another one of its kind."""
        old, new, line = self._versions.old, self._versions.new, pair.lines[row]
        if self._versions.is_kept(min(row, pair.first), max(row + 1, pair.last)):
            return ""  # git's place has the same name
        if not pair.says(row) or not len(old.rows(line)) == len(new.rows(line)) == 1:
            return ""
        (at,), (top, bottom) = new.rows(line), pair.there.rows
        side = range(top - 1, -1, -1) if row < pair.first else range(bottom, len(new.lines))
        rival = next((one for one in side[:_BLOCK] if _kind(new, one) == kind), at)
        came = [one for one in _beside(new, at) if self._versions.to_old[one] < 0]
        is_other = rival != at and any(_kind(new, one) != kind for one in came)
        return _message(new.path, at, line) if is_other else ""

    def _exchanged(self, pair: _Pair) -> str:
        """Return a message for a line of the block in whose place a line of another block is now.

        The other block has a new line in that place, too: the names of both were exchanged, or
        blocks that read alike were moved and renamed.
        """
        old, new, image = self._versions.old, self._versions.new, self._versions.image
        lost = [row for _, rows in pair.losses() for row in rows]
        nearest = [rows[0] for rows in _names_by_kind(pair).values()]
        for row in (*lost, *nearest):
            side = int(row >= pair.last)
            there = row + pair.there.rows[side] - pair.home.rows[side]
            if (old.depth(row) or 0) > pair.inner_depth or not 0 <= there < len(new.lines):
                continue
            line, other = new.lines[there], old.rows(new.lines[there])
            if len(old.rows(pair.lines[row])) == len(other) == len(new.rows(line)) == 1:
                is_replaced = image(row - 1) + 1 == there == image(row + 1) - 1
                was_replaced = image(other[0] - 1) + 1 == image(other[0] + 1) - 1
                is_of_another = row in lost or _are_apart(pair, row, other[0])
                if other[0] != row and is_replaced and was_replaced and is_of_another:
                    return _message(f"the old {old.path}", other[0], line)
        return ""

    def _better(self, pair: _Pair, at: Span) -> bytes | None:
        """Return a line for which a place of the new version fits as well; None if it does not."""
        old, new = self._versions.old, self._versions.new
        was = pair.image(self._versions.to_old, at)
        symbol = pair.home.symbol() if pair.is_renamed else MODULE
        if symbol != MODULE and symbol == _Spot(new, at, 0).symbol():
            return symbol.encode()  # as it was, while git's place has another symbol
        if was == pair.home.rows:
            was = None  # git's place is by another comparison
        if was and all(map(int.__le__, pair.words(new, at), pair.words(old, was))):
            return None  # it fitted as well before, and was not meant
        return pair.better(at)

    def _by_lost_lines(self, pair: _Pair) -> str:
        """Return a message for the first place with a line that git's place lost; empty without.

        The place, in any file, also has half of the lines around the edit, or most of those between
        the edit and the line. Lines near the edit are compared, then those of its blocks. A line
        that only has other lines before it now is no copy, if it belongs to git's place.
        """
        first, last = (self._versions.image(row) for row in (pair.first - 1, pair.last))
        is_own = (first + 1, last) == pair.there.rows  # else only lines around it gave the place
        for span, lost in pair.losses():
            if self._versions.is_kept(*span):
                continue
            said = {*filter(pair.says, range(*span))}
            for row in lost[:_LOST]:
                near = {*range(min(row, pair.first), max(row + 1, pair.last))} & said
                near |= {*range(*pair.core)} & said if len(near) < 3 else set()
                is_telling = len(near) > 2 and len(pair.home.text.rows(pair.lines[row])) == 1
                for other, at in self._having(row):
                    shift, is_here = at - row, other is pair.there.text
                    if is_here and abs(pair.first + shift - pair.there.rows[0]) <= _SLACK:
                        continue
                    above = {*other.lines[: max(pair.first + shift + _SLACK, 0)]}
                    if not is_here and not pair.kept_heads(row) <= above:
                        continue  # git's place kept the name of the block
                    kept = {
                        one
                        for one in said
                        if one == row or self._is_copied(one, other, shift, is_own)
                    }
                    least = max(2, len(said) / 2, 0 if is_here else len(said) - len(lost))
                    share = len(near & kept) / len(near)
                    is_near = is_telling and share >= (2 / 3 if is_here else 1)
                    has_drifted = is_here and is_own and self._versions.to_old[at] == row
                    if is_near or (len(kept) >= least and not has_drifted):
                        return _message(other.path, at, pair.lines[row])
        return ""

    def _is_copied(self, row: int, other: Text, shift: int, is_own: bool) -> bool:
        """Return True when a text has an old line near ``row + shift``.

        Its image does not count if ``is_own``.
        """
        own = self._versions.to_new[row] if is_own and other is self._versions.new else -1
        line, first = self._versions.old.lines[row], max(row + shift - _SLACK, 0)
        near = other.lines[first : max(row + shift + _SLACK + 1, 0)]
        return any(one == line and at != own for at, one in enumerate(near, first))

    def _having(self, row: int) -> Iterator[tuple[Text, int]]:
        """Yield text and row of the new version's places where the old line ``row`` may now be."""
        old, new = self._versions.old, self._versions.new
        line = old.lines[row]
        for at in new.rows(line)[:_BLOCK]:
            if self._versions.to_old[at] in (-1, row):
                yield new, at
        paths = [*self._elsewhere.having_more(line)] if self._elsewhere else []
        for path in paths if len(paths) <= _FILES else ():
            was, now = self._read(path)
            if now.data != new.data and len(now.rows(line)) > len(was.rows(line)):
                yield from ((now, at) for at in now.rows(line)[:_BLOCK])

    def _read(self, path: str) -> tuple[Text, Text]:
        """Return another file of the new version, before and now."""
        assert self._elsewhere is not None
        was, now = self._elsewhere.was(path), self._elsewhere.read(path)
        return text(path, was or b""), text(path, now or b"")


def _conditions(spot: _Spot) -> tuple[Set[bytes], Set[bytes]]:
    """Return the conditions of C's preprocessor above a spot, and those below it."""
    lines, rows, (top, bottom) = spot.text.lines, spot.text.conditions, spot.rows
    above = {lines[row] for row in rows if row < top}
    return above, {lines[row] for row in rows if row >= bottom}


def _within(run: tuple[int, int], most: Span, rows: Span, block: Span) -> tuple[int, int]:
    """Return a run, cut to ``most`` lines; a border of ``block`` that it reaches counts as one."""
    up, down = map(min, run, most)
    top, bottom = rows[0] - most[0] == block[0], rows[1] + most[1] == block[1]
    return up + (up == most[0] and top), down + (down == most[1] and bottom)


def _names(pair: _Pair) -> list[int]:
    """Return the rows near an edit that may name its block, the nearest first.

    The head of another block, and the lines of that block, do not. Nor does a line outside of a
    paragraph that the patch adds.
    """
    home, depth = pair.home, pair.inner_depth
    (first, last), (top, bottom), where = home.rows, home.block(0), home.text
    near = range(max(first - _NAMES, top), min(last + _NAMES, bottom))
    rows = {row for row in near if (where.depth(row) or 0) <= depth and not _is_head(where, row)}
    rows = set() if pair.is_paragraph else rows
    rows -= {row for row in where.conditions if row >= last}  # they begin something else
    rows |= {block[0] for block in home.levels() if block[1] - block[0] < len(where.lines)}
    return sorted(rows - {*range(first, last)}, key=lambda row: abs(row - first))


def _names_by_kind(pair: _Pair) -> dict[tuple[tuple[float, bytes], bool], list[int]]:
    """Return the rows near an edit that may name its block, by kind and side, nearest first."""
    rows = dict[tuple[tuple[float, bytes], bool], list[int]]()
    for row in _names(pair):
        rows.setdefault((_kind(pair.home.text, row), row < pair.first), []).append(row)
    return rows


def _are_apart(pair: _Pair, row: int, other: int) -> bool:
    """Return True if lines of the edit's kinds are between two rows of another, common kind."""
    where = pair.home.text
    kinds = {_kind(where, one) for one in range(*pair.core) if pair.says(one)}
    between = range(min(row, other) + 1, max(row, other))
    is_name = _kind(where, row) == _kind(where, other) not in kinds
    return is_name and any(_kind(where, one) in kinds for one in between)


def _is_head(where: Text, row: int) -> bool:
    """Return True when the next line has more indent."""
    below = min(row + 1, len(where.lines) - 1)
    return (where.depth(below) or 0) > (where.depth(row) or 0)


def _beside(where: Text, row: int) -> Iterator[int]:
    """Yield the lines above and below a line that are in its block; less indent is outside."""
    for side in (range(row + 1, len(where.lines)), range(row - 1, -1, -1)):
        one = next((one for one in side[:_SLACK] if says_something(where.lines[one])), row)
        if one != row and (where.depth(one) or 0) >= (where.depth(row) or 0):
            yield one


def _kind(where: Text, row: int) -> tuple[float, bytes]:
    """Return a line's depth (0 for an empty line), and the line with ``#`` for each word.

    The width of its blanks does not count. A line that is not the head of a block, and not
    underlined, keeps its first word, unless that is its only word beside signs.
    """
    line, depth = where.lines[row], where.depth(row) or 0
    below = min(row + 1, len(where.lines) - 1)
    is_underlined = len(where.lines[below]) > 2 and len({*where.lines[below]}) == 1
    words = [] if is_underlined or _is_head(where, row) else [*WORDS.finditer(line)]
    at = words[0].end() if len(words) > 1 or any(word[0] == line for word in words) else 0
    return depth, b" ".join((line[:at] + shape(line[at:])).split())


def _family(symbol: str) -> str:
    """Return the name of a symbol without the types of its parameters."""
    return symbol.partition("(")[0]


def _near(spot: _Spot, size: int) -> Span:
    """Return a spot's rows with some lines above and below that are in its block."""
    (first, last), (top, bottom) = spot.rows, spot.block(0)
    return max(first - size, top), min(last + size, bottom)


def _message(path: str, row: int, line: bytes) -> str:
    return f"line {row + 1} of {path} fits as well, for {line.decode('utf-8', 'replace')!r}"
