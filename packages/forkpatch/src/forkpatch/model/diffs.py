# SPDX-License-Identifier: Apache-2.0
"""Diffs in git's format, read strictly: a line that is not understood is an error, never skipped.

The format is git's ``Documentation/diff-format.txt``. Changes of binary files are applied by git.
:class:`DiffReader` also reads what other tools write.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as ReadHunk
from unidiff.patch import PatchSet

from forkpatch.command import typed
from forkpatch.errors import PatchError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import blob_id
from forkpatch.safety import GITLINK_MODE, TREE_MODES, check_path

DIFF_GIT = b"diff --git "
HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_INDEX = re.compile(rb"([0-9a-f]{1,64})\.\.([0-9a-f]{1,64})(?: (\S+))?$")
_BINARY_START = b"GIT binary patch"
_SIGNATURE = b"-- "
_KINDS = (b" ", b"+", b"-", b"\n", b"\\")
# The blank of an empty line of context may be lost, and the remark be in any language.
_AS_GIT_WRITES = {b"\n": b" \n", b"\\": b"\\ No newline at end of file\n"}
_OTHER_LINES = "malformed diff: a hunk has other lines than it states"
REMEDY = "export the patch again"
_REFRESH = "refresh the patch (quilt refresh), then import"
_ESCAPE = re.compile(rb'\\([abfnrtv"\\]|[0-7]{3})')
_ESCAPED = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13}
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DATE = re.compile(rb" +(?:\d{4}-\d\d-\d\d |[A-Z][a-z]{2} [A-Z][a-z]{2} +\d).*$")
_BINARY = re.compile(rb"(?:literal|delta) \d{1,12}$")
_FULL_ID = 40


class HunkLine(NamedTuple):
    """One line of a hunk: ``kind`` is a blank, ``-`` or ``+``; ``data`` holds its line end."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Hunk:
    """One hunk, at the lines it states.

    Attributes:
        old_start: first line it covers, from 1, as the patch writes it (0 for no lines).
        patch_line: the line of its ``@@`` in the patch file, from 1.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[HunkLine, ...]
    patch_line: int

    @property
    def first(self) -> int:
        """Index, from 0, of the first old line (or of the gap, when it covers no old line)."""
        return self.old_start if self.old_count == 0 else self.old_start - 1

    @property
    def old(self) -> tuple[bytes, ...]:
        """The hunk's lines of the old file: context and removed lines."""
        return tuple([data for kind, data in self.lines if kind != "+"])


@dataclass(frozen=True)
class FileDiff:
    """Changes of a patch to one file.

    Attributes:
        old: path before, None for a new file.
        new: path after, None for a removed file.
        old_mode: mode before, when the patch states a change of it.
        new_mode: mode after, when the patch states a change of it.
        mode: mode before and after, when the patch states that it stays.
        binary: a binary file is changed.
        change: how; None when the patch only says that it is.
        named: both paths are certain; False when one of the two is to be chosen.
    """

    old: str | None
    new: str | None
    old_mode: str | None
    new_mode: str | None
    binary: bool
    copied: bool
    hunks: tuple[Hunk, ...]
    patch_line: int
    mode: str | None = None
    change: BinaryChange | None = None
    named: bool = True

    @property
    def paths(self) -> tuple[str, ...]:
        """The old and the new path, without None; one path if they are equal."""
        return tuple(dict.fromkeys(path for path in (self.old, self.new) if path is not None))


def parse_diff(data: bytes, start: int, where: str) -> Iterator[FileDiff]:
    """Yield the diff of each file, from a diff in git's own form.

    ``data`` is a patch file named ``where``; ``start`` is the offset of its first ``diff --git``.

    Raises:
        PatchError: a line, a mode or the numbers of a hunk are not understood.
        UnsafePathError: the diff names a path outside the tree.
    """
    reader = DiffReader(data, start, where)
    while (line := reader.peek()) is not None:
        if line.startswith(DIFF_GIT):
            yield read_file(reader)
        elif line == _SIGNATURE:  # of git format-patch: a version, and the end
            return
        elif line.strip():
            raise reader.error("this line belongs to no file's diff")
        else:
            reader.take()


def read_file(reader: DiffReader) -> FileDiff:
    """Read the next file's diff, from ``diff --git`` or ``---`` on; see :func:`parse_diff`."""
    where, start = reader.where, reader.number
    is_git = (reader.peek() or b"").startswith(DIFF_GIT)
    named = reader.take().removeprefix(DIFF_GIT) if is_git else b""
    header = _read_header(reader) if is_git else {}
    old_mode = _mode(header, "old mode", "deleted file mode")
    new_mode = _mode(header, "new mode", "new file mode")
    ids = _INDEX.match(header.get("index", b""))
    old, new, texts = _paths(reader, named, header, where)
    mode = ids[3].decode("latin-1") if ids and ids[3] else None
    for stated in filter(None, (old_mode, new_mode, mode)):
        if stated not in TREE_MODES:
            what = "is neither a plain nor an executable file nor a link"
            if stated == GITLINK_MODE:
                what = "is a submodule: change its pin in the lock instead"
            raise PatchError(f"{where}: mode {stated} of {new or old} {what}")
    change = read_binary(reader, ids) if reader.peek() == _BINARY_START else None
    said = reader.peek() or b""
    binary = change is not None
    if said.startswith(b"Binary files ") and said.endswith(b" differ"):
        reader.take()
        binary = True
    if not (header or texts or binary):
        raise PatchError(f"{where}: malformed diff: nothing of this file is changed")
    return FileDiff(
        old=old,
        new=new,
        old_mode=old_mode,
        new_mode=new_mode,
        binary=binary,
        copied="copy from" in header,
        hunks=tuple(_read_hunks(reader)) if texts else (),
        patch_line=start,
        mode=mode,
        change=change,
        named=old == new or None in (old, new) or _moves(header) != [],
    )


_HEADERS = (
    *("old mode", "new mode", "deleted file mode", "new file mode", "copy from", "copy to"),
    *("rename from", "rename to", "similarity index", "dissimilarity index", "index"),
)


def _read_header(reader: DiffReader) -> dict[str, bytes]:
    """Read a file's extended header lines; return the value of each by its key, as ``old mode``."""
    header: dict[str, bytes] = {}
    while (line := reader.peek()) is not None:
        text = line.decode("latin-1")
        key = next((key for key in _HEADERS if text.startswith(f"{key} ")), None)
        if key is None:
            break
        header[key] = line[len(key) + 1 :]
        reader.take()
    return header


def _mode(header: dict[str, bytes], *keys: str) -> str | None:
    """Return the mode of the first of ``keys`` that a header has; None without one."""
    return next((header[key].decode("latin-1").strip() for key in keys if key in header), None)


def _moves(header: dict[str, bytes]) -> list[str]:
    """Return which of ``copy`` and ``rename`` the header has."""
    return sorted({"rename", "copy"} & {key.partition(" ")[0] for key in header})


def _paths(
    reader: DiffReader, named: bytes, header: dict[str, bytes], where: str
) -> tuple[str | None, str | None, bool]:
    """Read up to the hunks; return old and new path, None for no file, and True if hunks follow."""
    old, new = _split_names(reader, named, where)
    moves = _moves(header)
    for moved in moves:
        if not {f"{moved} from", f"{moved} to"} <= header.keys():
            raise PatchError(f"{where}: a rename or copy without both of its names")
        old, new = (check_path(unquote(header[f"{moved} {end}"]), where) for end in ("from", "to"))
    created, deleted = "new file mode" in header, "deleted file mode" in header
    texts = (reader.peek() or b"").startswith(b"--- ")
    if texts:
        reader.carriage = reader.foreign and reader.takes_carriage(2)
        source = reader.side(b"--- ", "a/", where)
        target = reader.side(b"+++ ", "b/", where)
        created, deleted = created or source is None, deleted or target is None
        if reader.foreign and not moves:
            old = new = None  # these lines decide, as for patch(1)
        for name, found in ((old, source), (new, target)):
            if found is not None and name is not None and found != name and not reader.foreign:
                raise PatchError(f"{where}: {name} and {found} differ without a rename header")
        old, new = old or source or target, new or target or source
    if created and deleted:
        raise PatchError(f"{where}: a file that is both made and removed")
    if old is None or new is None:
        raise PatchError(f"{where}: the two names of the file are ambiguous")
    if old != new and not moves and not reader.foreign:
        raise PatchError(f"{where}: {old} and {new} differ without a rename header")
    return None if created else old, None if deleted else new, texts


def _split_names(reader: DiffReader, named: bytes, where: str) -> tuple[str | None, str | None]:
    """Return the two paths of a ``diff --git`` line; None twice if unquoted paths differ."""
    if named.startswith(b'"') or named.endswith(b'"'):
        match = re.fullmatch(rb'("(?:[^"\\]|\\.)*"|[^"]+) ("(?:[^"\\]|\\.)*"|[^"]+)', named)
        if match is None:
            raise PatchError(f"{where}: the names of the file cannot be read", remedy=REMEDY)
        old, new = match.groups()
    else:
        half = (len(named) - 1) // 2
        old, new = named[:half], named[half + 1 :]
        if named[half : half + 1] != b" " or old[2:] != new[2:]:  # of a rename: its header has them
            return None, None
    return reader.path(old, "a/", where), reader.path(new, "b/", where)


def _read_hunks(reader: DiffReader) -> Iterator[Hunk]:
    """Yield a text file's hunks as unidiff reads them; raise PatchError if it reads other lines."""
    if not (reader.peek() or b"").startswith(b"@@ "):
        raise reader.error("malformed diff: there is no hunk")
    patch, given = PatchSet(""), list[tuple[int, list[str]]]()
    try:  # filled here, because _given_lines looks at what is read already
        PatchSet.__init__(patch, _given_lines(reader, patch, given))
    except UnidiffParseError as error:
        raise reader.error(_OTHER_LINES) from error
    for hunk, (patch_line, text) in zip(patch[0], given, strict=True):
        if list(map(str, hunk)) != text:
            raise reader.error(_OTHER_LINES)
        yield _hunk(hunk, patch_line)


def _given_lines(
    reader: DiffReader, patch: PatchSet, given: list[tuple[int, list[str]]]
) -> Iterator[str]:
    """Yield the lines of a file's hunks, one character a byte, until its last hunk is whole.

    Unidiff reads them into ``patch``. ``given`` receives line number and lines of each hunk.
    """
    yield from ("--- a/x\n", "+++ b/x\n")
    while line := reader.line():
        whole = len(patch[0]) == len(given)
        if whole and line.startswith(b"@@ "):
            if HUNK.match(line) is None:
                raise reader.error("malformed diff: the line of a hunk's numbers cannot be read")
            given.append((reader.number, []))
        elif whole and not line.startswith(b"\\"):
            return
        else:
            if reader.carriage and line.endswith(b"\r\n"):
                line = line[:-2] + b"\n"
            if line[:1] not in _KINDS or (line.startswith(b"\\") and not given[-1][1]):
                raise reader.error(_OTHER_LINES)
            line = _AS_GIT_WRITES.get(line[:1], line)
            given[-1][1].append(line.decode("latin-1"))
        yield line.decode("latin-1")
        reader.take()


def _hunk(read: ReadHunk, patch_line: int) -> Hunk:
    lines: list[HunkLine] = []
    for line in read:
        if line.line_type == "\\":
            lines[-1] = HunkLine(lines[-1].kind, lines[-1].data.removesuffix(b"\n"))
        else:
            lines.append(HunkLine(line.line_type, line.value.encode("latin-1")))
    starts = read.source_start, read.source_length, read.target_start, read.target_length
    return Hunk(*starts, tuple(lines), patch_line)


def _edited() -> str:
    return f"edited by hand? change the tree instead, and write the patch: {typed('export')}"


def check_hunks(
    lines: Callable[[int, int], list[bytes]], size: int, diff: FileDiff, name: str
) -> None:
    """Raise PatchError unless every hunk's old lines are exactly where it states them.

    ``lines(first, end)`` returns rows of the file, which has ``size``; ``name`` is the patch's.
    """
    end = shift = 0
    for hunk in diff.hunks:
        where = f"{name}:{hunk.patch_line}"
        first, old = hunk.first, list(hunk.old)
        if first < end or first + hunk.old_count > size:
            raise PatchError(
                f"{where}: line {hunk.old_start} of {diff.old} is out of order or past its end",
                remedy=_edited(),
            )
        if hunk.new_start + (hunk.new_count == 0) != first + shift + 1:
            raise PatchError(
                f"{where}: the new line number does not follow from the old one", remedy=_edited()
            )
        here = lines(first, first + len(old))
        if here != old:
            pairs = enumerate(zip(here, old, strict=True), first + 1)
            number, found, line = next((at, *pair) for at, pair in pairs if pair[0] != pair[1])
            raise PatchError(
                f"{where}: does not apply to line {number} of {diff.old}:"
                f" it has {_shown(found)}, the patch {_shown(line)}",
                remedy="a patch applies to the very line it states, or not at all;"
                f" to move it to another base: {typed('rebase')}",
            )
        end = first + hunk.old_count
        shift += hunk.new_count - hunk.old_count


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, each with its line feed; the last may lack one."""
    if b"\r" not in data:  # which ends a line, too, for this much faster way
        return data.splitlines(keepends=True)
    lines = data.split(b"\n")
    ended = [line + b"\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def _shown(line: bytes) -> str:
    return repr(line.decode("utf-8", "replace"))


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
        """The place of the next line, ``FILE:NUMBER``, for messages."""
        return f"{self._where}:{self.number}"

    @property
    def foreign(self) -> bool:
        """True when any tool may have written the patch."""
        return self.strip is not None

    def peek(self, ahead: int = 0) -> bytes | None:
        """Return the line ``ahead`` lines after the next, without line feed; None past the end."""
        start = self.at
        for _ in range(ahead):
            start = self.data.find(b"\n", start) + 1 or len(self.data)
        if start >= len(self.data):
            return None
        end = self.data.find(b"\n", start)
        line = self.data[start : end if end >= 0 else len(self.data)]
        return line.removesuffix(b"\r") if self.foreign else line

    def line(self) -> bytes:
        """Return the next line with its line end, without moving on; empty at the end."""
        return self.data[self.at : self.data.find(b"\n", self.at) + 1 or len(self.data)]

    def take(self) -> bytes:
        """Return the next line without line feed, and move past the line; empty at the end."""
        line = self.peek() or b""
        self.at = self.data.find(b"\n", self.at) + 1 or len(self.data) + 1
        self.number += 1
        return line

    def error(self, what: str) -> PatchError:
        """Return the error ``what`` with the place of the next line."""
        return PatchError(f"{self.where}: {what}", remedy=_REFRESH if self.foreign else REMEDY)

    def takes_carriage(self, lines: int) -> bool:
        """Return True when each of the next ``lines`` lines ends with CRLF."""
        end = self.at
        for _ in range(lines):
            end = self.data.find(b"\n", end) + 1
            if not end or self.data[end - 2 : end - 1] != b"\r":
                return False
        return True

    def path(self, name: bytes, prefix: str, where: str) -> str:
        """Return the path of a name without ``prefix``, or without ``strip`` parts if foreign.

        Raises:
            UserError: the name lacks the prefix or the parts, or the path leaves the tree.
        """
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
        """Return the path of the next line, which begins with ``start``; None for /dev/null."""
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
    """Return a path without git's quotes and C-style escapes, which it may have, as text."""
    if len(raw) > 1 and raw.startswith(b'"') and raw.endswith(b'"'):
        raw = _ESCAPE.sub(_unescape, raw[1:-1])
    return raw.decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if code in _ESCAPED:
        return bytes([_ESCAPED[code]])
    return code if code in b'"\\' else bytes([int(code, 8) & 255])


@dataclass(frozen=True)
class BinaryChange:
    """New content of a binary file.

    Attributes:
        old: blob id of the old content; zeros for a new file.
        new: blob id of the new content; zeros for a removed file.
        data: the change as git writes it: deflated, as a whole or as a delta to the old content.
    """

    old: str
    new: str
    data: bytes = field(compare=False)

    def apply(self, before: bytes | None, where: str) -> bytes:
        """Return the content after the change to ``before``, None for a new file; empty if removed.

        Raises:
            PatchError: old or new content differs from the patch's blob ids, or the change is
                damaged.
        """
        if before is not None and blob_id(before) != self.old:
            raise PatchError(
                f"{where}: the binary file is {blob_id(before)}, the patch was made for {self.old}",
                remedy=f"to move it to another base: {typed('rebase')}",
            )
        kind = "new file mode 100644\n" if before is None else ""
        kind = "deleted file mode 100644\n" if set(self.new) == {"0"} else kind
        head = f"diff --git a/x b/x\n{kind}index {self.old}..{self.new}\n".encode()
        with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
            folder = Path(name).resolve()
            if before is not None:
                (folder / "x").write_bytes(before)
            no_repository = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
            text = b"%b%b\n%b" % (head, _BINARY_START, self.data)
            try:
                Git().run("-C", str(folder), "apply", stdin=text, env=no_repository)
            except GitError as error:
                what = f"malformed diff: {error.what}"
                raise PatchError(f"{where}: {what}", remedy=REMEDY) from error
            return (folder / "x").read_bytes() if (folder / "x").exists() else b""


def read_binary(reader: DiffReader, ids: re.Match[bytes] | None) -> BinaryChange:
    """Read a ``GIT binary patch`` and its reverse; raise PatchError if the ``ids`` are not full."""
    if ids is None or len(ids[1]) < _FULL_ID or len(ids[2]) < _FULL_ID:
        raise reader.error("a binary change without full object ids: use --full-index")
    reader.take()
    lines: list[bytes] = []
    while _BINARY.match(reader.peek() or b""):
        while reader.peek():
            lines.append(reader.take())
        lines.append(reader.take())  # an empty line
    if not lines:
        raise reader.error("malformed diff: a binary change is neither literal nor delta")
    return BinaryChange(ids[1].decode(), ids[2].decode(), b"\n".join([*lines, b""]))
