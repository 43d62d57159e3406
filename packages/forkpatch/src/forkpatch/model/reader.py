# SPDX-License-Identifier: Apache-2.0
"""The lines of a patch file, read one after the other, and the paths in them."""

from __future__ import annotations

import re

from forkpatch.errors import PatchError
from forkpatch.safety import check_path

REMEDY = "export the patch again"
_REFRESH = "refresh the patch (quilt refresh), then import"
_ESCAPE = re.compile(rb'\\([abfnrtv"\\]|[0-7]{3})')
_ESCAPED = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13}
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DATE = re.compile(rb" +(?:\d{4}-\d\d-\d\d |[A-Z][a-z]{2} [A-Z][a-z]{2} +\d).*$")


class DiffReader:
    """The lines of a patch file from its diff on, without their ends, one after the other.

    Attributes:
        strip: leading parts of each path to drop, as of ``patch -p``, in a patch that any tool
            wrote; None for a patch in git's own form, with the prefixes ``a/`` and ``b/``.
        carriage: the lines of this file's hunks end with CRLF because the patch was mailed as
            text of another system.
    """

    def __init__(self, data: bytes, start: int, where: str, strip: int | None = None) -> None:
        self.data = data
        self.at = start
        self.number = data.count(b"\n", 0, start) + 1
        self.strip = strip
        self.carriage = False
        self._where = where

    @property
    def where(self) -> str:
        """The place of the next line, for messages."""
        return f"{self._where}:{self.number}"

    @property
    def foreign(self) -> bool:
        """True when any tool may have written the patch."""
        return self.strip is not None

    def peek(self, ahead: int = 0) -> bytes | None:
        """The next line, or one of the lines after it; None at the end."""
        start = self.at
        for _ in range(ahead):
            start = self.data.find(b"\n", start) + 1 or len(self.data)
        if start >= len(self.data):
            return None
        end = self.data.find(b"\n", start)
        line = self.data[start : end if end >= 0 else len(self.data)]
        return line.removesuffix(b"\r") if self.foreign else line

    def line(self) -> bytes:
        """The next line with its end as it is; empty at the end."""
        return self.data[self.at : self.data.find(b"\n", self.at) + 1 or len(self.data)]

    def take(self) -> bytes:
        """The next line, which is passed; empty at the end."""
        line = self.peek() or b""
        self.at = self.data.find(b"\n", self.at) + 1 or len(self.data) + 1
        self.number += 1
        return line

    def error(self, what: str) -> PatchError:
        """The error that the next line is ``what``."""
        return PatchError(f"{self.where}: {what}", remedy=_REFRESH if self.foreign else REMEDY)

    def takes_carriage(self, lines: int) -> bool:
        """True when each of the next lines ends with CRLF."""
        end = self.at
        for _ in range(lines):
            end = self.data.find(b"\n", end) + 1
            if not end or self.data[end - 2 : end - 1] != b"\r":
                return False
        return True

    def path(self, name: bytes, prefix: str, where: str) -> str:
        """The path in the tree of a name in the patch, checked."""
        path = unquote(name)
        if self.strip is None:
            if not path.startswith(prefix):
                raise PatchError(f"{where}: {path} lacks the prefix {prefix}")
            return check_path(path.removeprefix(prefix), where)
        parts = re.sub("/+", "/", path).split("/")
        if len(parts) <= self.strip:
            raise PatchError(f"{where}: {path} has no {self.strip + 1} parts, which -p needs")
        return check_path("/".join(parts[self.strip :]), where)

    def side(self, start: bytes, prefix: str, where: str) -> str | None:
        """The path of the next line, which begins with ``---`` or ``+++``; None for /dev/null."""
        line = self.take()
        if not line.startswith(start):
            raise PatchError(f"{where}: a file's diff could not be read whole", remedy=REMEDY)
        # Git puts a tab after a name with blanks; one in the name itself is escaped.
        name = line.removeprefix(start).partition(b"\t")[0]
        if self.foreign:  # other tools put a date there
            quoted = _QUOTED.match(name)
            name = quoted[0] if quoted else _DATE.sub(b"", name).rstrip()
        return None if unquote(name) == "/dev/null" else self.path(name, prefix, where)


def unquote(raw: bytes) -> str:
    """A path as it is: git writes unusual characters as C-style escapes in quotes."""
    if len(raw) > 1 and raw.startswith(b'"') and raw.endswith(b'"'):
        raw = _ESCAPE.sub(_unescape, raw[1:-1])
    return raw.decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code in _ESCAPED:
        return bytes([_ESCAPED[code]])
    return code if code in b'"\\' else bytes([int(code, 8) & 255])
