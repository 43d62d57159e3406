# SPDX-License-Identifier: Apache-2.0
"""The lines of a file, compared without blanks around them and commas, and blocks by indent.

Blocks are found in every language and format alike: a block is a run of lines with at least the
same indent, with the line above it, its head. A heading in brackets (``[name]``), a separator
(``---``), and a heading of Markdown begin a block, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from itertools import repeat

from forkpatch.model.diffs import split_lines

_HEADING = re.compile(rb"\[+[^\[\]=,]+\]+$|---$")
_DIRECTIVE = re.compile(rb"#\s*(?:if|ifdef|ifndef|el|endif|define|include|pragma|undef|error)")
_CONDITION = re.compile(rb"#[ \t]*(?:if|el|endif)")
#: Suffixes of files for readers.
DOCUMENTS = (".rst", ".txt", ".md", ".adoc", *(f".{section}" for section in range(1, 9)))
#: The sign of an item of a list.
ITEM = b"- "
#: A word that may be a name.
WORD = re.compile(rb"[A-Za-z_]\w{2,}")
_NUMBERED = re.compile(rb"([^=:]*\w *[=:] *)(\d+)\W*$")
_TELLING = re.compile(b"[%b]" % bytes(sign for sign in range(256) if chr(sign).isalnum()))
#: The words of a line, with dots and hyphens.
WORDS = re.compile(rb"[\w.-]+")
_VALUE = re.compile(rb"\"[^\"]*\"(?!\s*:)|'[^']*'(?!\s*:)|\b\d[\w.]*")
# A quoted first argument that other arguments follow.
_QUOTED_KEY = re.compile(rb"[^\"'(]*\((?:[^\"'(),]*,\s*)*(?:\"[^\"]*\"|'[^']*')(?=\s*,)")
_PAIR = re.compile(rb"([\w./\"' ()-]+[:=](?![:=])\s*)[^(){}\[\]=]+$")
_END_TAG = re.compile(rb"</[\w:-]+>$")
_LAST_WORD = re.compile(rb"[\w./-]+[^\w#]*$")
_REACH = 400  # most lines that are read to find the border of a block
_LEVELS = 12  # most nested blocks
_HEAD = 10  # most lines of a head

#: First row and row after the last, from 0.
Span = tuple[int, int]
#: The lines of a file, and the same lines as :func:`plain` returns them.
Rows = tuple[list[bytes], list[bytes]]


def plain(line: bytes) -> bytes:
    """Return a line without the blanks around it, and without the comma at its end."""
    return line.strip().removesuffix(b",")


def says_something(line: bytes) -> bool:
    """Return True when a line has a letter or a digit."""
    return _TELLING.search(line) is not None


def said(lines: Sequence[bytes]) -> list[bytes]:
    """Return lines as they are compared, from the first to the last that say something."""
    run = [plain(line) for line in lines]
    rows = [row for row, line in enumerate(run) if says_something(line)]
    return run[rows[0] : rows[-1] + 1] if rows else []


def is_directive(line: bytes) -> bool:
    """Return True for a directive of C's preprocessor, whatever the language of the file."""
    return line[:1] == b"#" and bool(_DIRECTIVE.match(line))


def is_outermost(lines: Iterable[bytes]) -> bool:
    """Return True when some line that says something has no indent, and is no C directive."""
    told = (line for line in lines if says_something(line))
    return any(not indent(line) and not is_directive(line) for line in told)


def without_values(line: bytes) -> bytes:
    """Return a line without its numbers and quoted values; a quoted key before them stays."""
    line = line.removeprefix(ITEM)
    key = _QUOTED_KEY.match(line) if b"(" in line else None
    at = key.end() if key else 0
    return line[:at] + _VALUE.sub(b"#", line[at:])


@lru_cache(maxsize=1 << 16)
def key_of(line: bytes) -> bytes:
    """Return a line without its value: the text after ``=`` or ``:``, or else the last word."""
    if pair := _PAIR.match(line.removeprefix(ITEM)):
        return pair[1] + b"#"
    key = without_values(_END_TAG.sub(b"", line))
    word = _LAST_WORD.search(key)
    return key[: word.start()] + b"#" if word and WORD.search(key[: word.start()]) else key


@lru_cache(maxsize=1 << 16)  # both sides of each patch ask for the lines that upstream added
def keys_of(line: bytes) -> tuple[bytes, ...]:
    """Return the keys of a line: :func:`key_of`, if it has a name, and the number that it sets."""
    key, number = key_of(line), numbered(line)
    return (*([key] if WORD.search(key) else []), *([b"%s %d" % number] if number else []))


def numbered(line: bytes) -> tuple[bytes, int] | None:
    """Return the shape and the number of a line such as ``name = 3``; None for another line."""
    found = _NUMBERED.match(line)
    return (shape(found[1]), int(found[2])) if found else None


def shape(line: bytes) -> bytes:
    """Return a line with ``#`` for each word."""
    return WORDS.sub(b"#", line)


def indent(line: bytes, signs: bytes = b" ") -> int:
    """Return the width of the blanks, or of other signs, at the start of a line."""
    if line[:1] not in b" \t" + signs:
        return 0
    wide = line.expandtabs(8) if b"\t" in line else line
    return len(wide) - len(wide.lstrip(signs))


@lru_cache(maxsize=1 << 18)  # the versions of a file share most lines
def _depth(raw: bytes, is_markdown: bool) -> float | None:
    line = raw.strip()
    if not line or is_directive(line):
        return None
    sign = line[:1]
    is_title = is_markdown and sign == b"#"
    is_heading = is_title or (sign in b"[-" and _HEADING.match(line) is not None)
    return indent(raw) - (0.5 if is_heading else 0)


class Text:
    """The lines of a file.

    Attributes:
        raw: the lines, each with its line feed.
        lines: the same lines as they are compared.
    """

    def __init__(self, path: str, data: bytes, rows: Rows | None = None) -> None:
        self.path = path
        self.data = data
        raw = split_lines(data) if rows is None else rows[0]
        # The loop of :func:`plain`, without a call for each line of a file.
        self.raw, self.lines = rows or (raw, [line.strip().removesuffix(b",") for line in raw])
        self._is_markdown = path.endswith(".md")

    def edited(self, edits: Iterable[tuple[Span, Sequence[bytes]]], data: bytes) -> Text:
        """Return the text with other lines at some rows, in order; ``data`` is its content."""
        raw, lines, at = list[bytes](), list[bytes](), 0
        for (first, last), new in edits:
            raw += [*self.raw[at:first], *new]
            lines += [*self.lines[at:first], *map(plain, new)]
            at = last
        return Text(self.path, data, (raw + self.raw[at:], lines + self.lines[at:]))

    @cached_property
    def _index(self) -> Mapping[bytes, list[int]]:
        """The rows of each line."""
        found = defaultdict[bytes, list[int]](list)
        for row, line in enumerate(self.lines):
            found[line].append(row)
        return found

    @cached_property
    def conditions(self) -> Set[int]:
        """The rows of conditions of C's preprocessor."""
        signs = (line for line in self._index if line[:1] == b"#")
        return {row for line in signs if _CONDITION.match(line) for row in self._index[line]}

    def rows(self, line: bytes) -> Sequence[int]:
        """Return the rows of a line that :func:`plain` returned.

        The sign of a list's item before it does not count.
        """
        key = line.removeprefix(ITEM)
        bare, items = (self._index.get(one, []) for one in (key, ITEM + key))
        return sorted((*bare, *items)) if bare and items else bare or items

    def standing(self, run: Sequence[bytes]) -> list[int]:
        """Return the rows at which a run of lines, as :func:`plain` returns them, begins."""
        wanted, places = list(run), [self._index.get(line, []) for line in run]
        at = min(range(len(run)), key=lambda one: len(places[one]))  # the rarest line
        starts = (row - at for row in places[at] if row >= at)
        return [row for row in starts if self.lines[row : row + len(wanted)] == wanted]

    def depth(self, row: int) -> float | None:
        """Return a line's indent, 0.5 less for a heading; None for an empty line, a C directive."""
        return _depth(self.raw[row], self._is_markdown)

    def head(self, row: int) -> int:
        """Return the row of the head of a row's block; the row itself at the top of the file."""
        depth = self.depth(row) or 0
        for above in range(row - 1, max(row - _REACH, -1) if depth > 0 else row, -1):
            outer = self.depth(above)
            if outer is not None and outer < depth:
                return above
        return row

    def levels(self, first: int, last: int, depth: float) -> Iterator[Span]:
        """Yield the blocks around rows of indent ``depth``, inside out; last the whole file."""
        top, bottom, most = first, last, _LEVELS
        if self.lines[first:last] and self.lines[first].startswith(ITEM):  # an item of a list
            yield first, self._widened(last, last, depth + 1)[1]
            most -= 1
        for _ in range(most):
            top, bottom = self._widened(top, bottom, depth)
            if not top > 0 or top <= first - _REACH or bottom >= last + _REACH:
                break
            top = self._head(top - 1)
            if bottom < len(self.lines) and not says_something(self.lines[bottom]):
                bottom += 1
            yield top, bottom
            depth = self.depth(top) or 0
        yield 0, len(self.lines)

    def _widened(self, top: int, bottom: int, depth: float) -> Span:
        """Return a span with the lines around it that have at least the indent ``depth``."""
        least, most = max(top - _REACH, 0), min(bottom + _REACH, len(self.lines))
        above, below = self.raw[least:top][::-1], self.raw[bottom:most]
        return top - self._inside(above, depth), bottom + self._inside(below, depth)

    def _inside(self, lines: Sequence[bytes], least: float) -> int:
        """Return the number of lines before the first whose indent is less than ``least``."""
        depths = enumerate(map(_depth, lines, repeat(self._is_markdown)))
        return next((at for at, one in depths if one is not None and one < least), len(lines))

    def _head(self, row: int) -> int:
        """Return the first row of a head whose last row may be a lone bracket."""
        depth, first = self.depth(row), row
        if says_something(self.lines[row]) or depth is None:
            return row
        while first and row - first < _HEAD:
            first -= 1
            above = self.depth(first)
            if above is None or above < depth or self.raw[first].rstrip()[-1:] in b",;{}[":
                return row
            if above == depth:
                return first
        return row


@lru_cache(maxsize=256)
def text(path: str, data: bytes) -> Text:
    """Return the lines of a file; the last ones are kept, as a series asks for them again."""
    return Text(path, data)
