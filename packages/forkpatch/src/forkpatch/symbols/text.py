# SPDX-License-Identifier: Apache-2.0
"""The lines of a file, compared without the blanks around them, and its blocks by indent.

Blocks are found in every language and format alike: a block is a run of lines with at least the
same indent, with the line above it, its head. A heading in brackets (``[name]``), a separator
(``---``), and a heading of Markdown begin a block, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, lru_cache

from forkpatch.model.diffs import split_lines

_HEADING = re.compile(rb"\[+[^\[\]=,]+\]+$|---$")
_DIRECTIVE = re.compile(rb"#\s*(?:if|ifdef|ifndef|el|endif|define|include|pragma|undef|error)")
#: A word that may be a name.
WORD = re.compile(rb"[A-Za-z_]\w{2,}")
_REACH = 400  # most lines that are read to find the border of a block
_LEVELS = 12  # most nested blocks
_HEAD = 10  # most lines of a head

#: First row and row after the last, from 0.
Span = tuple[int, int]


def says_something(line: bytes) -> bool:
    """Return True when a line has a letter or a digit."""
    return any(chr(sign).isalnum() for sign in line)


def is_directive(line: bytes) -> bool:
    """Return True for a directive of C's preprocessor, whatever the language of the file."""
    return line[:1] == b"#" and bool(_DIRECTIVE.match(line))


def indent(line: bytes, signs: bytes = b" ") -> int:
    """Return the width of the blanks, or of other signs, at the start of a line."""
    wide = line.expandtabs(8) if b"\t" in line else line
    return len(wide) - len(wide.lstrip(signs))


class Text:
    """The lines of a file.

    Attributes:
        raw: the lines, each with its line feed.
        lines: the same lines without blanks around them.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.raw = split_lines(data)
        self.lines = [line.strip() for line in self.raw]
        self._depths: dict[int, float | None] = {}

    @cached_property
    def _rows(self) -> dict[bytes, list[int]]:
        """Rows of each distinct line."""
        rows: defaultdict[bytes, list[int]] = defaultdict(list)
        for row, line in enumerate(self.lines):
            rows[line].append(row)
        return dict(rows)

    def rows(self, line: bytes) -> Sequence[int]:
        """Return the rows of a line."""
        return self._rows.get(line, ())

    def standing(self, run: Sequence[bytes]) -> list[int]:
        """Return the rows at which a run of lines begins; all rows for an empty run."""
        rarest = min(range(len(run)), key=lambda at: len(self.rows(run[at])))
        starts = (row - rarest for row in self.rows(run[rarest]))
        wanted = list(run)
        return [at for at in starts if at >= 0 and self.lines[at : at + len(run)] == wanted]

    def depth(self, row: int) -> float | None:
        """Return the indent of a line; None for an empty line and a C directive."""
        if row not in self._depths:
            line, depth = self.lines[row], float(indent(self.raw[row]))
            if _HEADING.match(line) or (line[:1] == b"#" and self.path.endswith(".md")):
                depth -= 0.5
            self._depths[row] = None if not line or is_directive(line) else depth
        return self._depths[row]

    def head(self, row: int) -> int:
        """Return the row of the head of a row's block; the row itself at the top of the file."""
        depth = self.depth(row) or 0
        for above in range(row - 1, max(row - _REACH, -1) if depth > 0 else row, -1):
            outer = self.depth(above)
            if outer is not None and outer < depth:
                return above
        return row

    def levels(self, first: int, last: int, depth: float) -> list[Span]:
        """Return the blocks around some rows, the innermost first; the last is the whole file.

        Args:
            first: the first row.
            last: the row after the last.
            depth: indent of the rows.
        """
        found: list[Span] = []
        top, bottom = first, last
        if self.lines[first:last] and self.lines[first].startswith(b"- "):  # an item of a list
            found.append((first, self._widened(last, last, depth + 1)[1]))
        while len(found) < _LEVELS:
            top, bottom = self._widened(top, bottom, depth)
            if not top > 0 or top <= first - _REACH or bottom >= last + _REACH:
                break
            top = self._head(top - 1)
            if bottom < len(self.lines) and not says_something(self.lines[bottom]):
                bottom += 1
            found.append((top, bottom))
            depth = self.depth(top) or 0
        return [*found, (0, len(self.lines))]

    def _widened(self, top: int, bottom: int, depth: float) -> Span:
        """Return a span with the lines around it that have at least an indent."""
        least, most = max(top - _REACH, 0), min(bottom + _REACH, len(self.lines))
        while top > least and ((above := self.depth(top - 1)) is None or above >= depth):
            top -= 1
        while bottom < most and ((below := self.depth(bottom)) is None or below >= depth):
            bottom += 1
        return top, bottom

    def _head(self, row: int) -> int:
        """Return the first row of a head whose last row may be a lone bracket."""
        depth, first = self.depth(row), row
        if says_something(self.lines[row]) or depth is None:
            return row
        while first and row - first < _HEAD:
            first -= 1
            above = self.depth(first)
            if above is None or above < depth or self.lines[first][-1:] in b",;{}[":
                return row
            if above == depth:
                return first
        return row


@lru_cache(maxsize=256)
def text(path: str, data: bytes) -> Text:
    """Return the lines of a file; the last ones are kept, as a series asks for them again."""
    return Text(path, data)


def line_map(old: Text, new: Text, removed: Sequence[int], added: Sequence[int]) -> list[int]:
    """Return the new row of each old row, -1 for a removed one; one more row is the end.

    Args:
        old: the old file.
        new: the new file.
        removed: numbers, from 1, of the old lines that a diff removes.
        added: numbers of the new lines that it adds.
    """
    gone, came = {number - 1 for number in removed}, {number - 1 for number in added}
    stay = (row for row in range(len(new.lines)) if row not in came)
    rows = [-1 if row in gone else next(stay) for row in range(len(old.lines))]
    return [*rows, len(new.lines)]
