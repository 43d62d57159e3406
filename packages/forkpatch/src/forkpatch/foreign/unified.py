# SPDX-License-Identifier: Apache-2.0
"""Unified diffs of any tool, read as patch(1) reads them.

Tools differ in what stands around the hunks: git's extended headers, ``Index:`` lines, times,
rulers, remarks, any prefix before the paths. A hunk is as long as it says, whatever its lines look
like; what stands between the files is no part of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from forkpatch.errors import PatchError
from forkpatch.model.diffs import FileDiff, Hunk, HunkLine, parse_diff, unquote
from forkpatch.safety import GITLINK_MODE, TREE_MODES, check_path

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_EXTENDED = re.compile(
    rb"(old mode|new mode|deleted file mode|new file mode|rename from|rename to|copy from|copy to"
    rb"|similarity index|dissimilarity index|index) (.*)"
)
_START = re.compile(
    rb"^(?:Index: [^\n]*\n|diff [^\n]*\n|--- [^\n]*\n\+\+\+ [^\n]*\n(?:@@ |\Z)"
    rb"|\*\*\* [^\n]*\n--- )",
    re.MULTILINE,
)
_REMEDY = "refresh the patch (quilt refresh), then import"
_KINDS = {32: " ", 43: "+", 45: "-"}


@dataclass(frozen=True)
class ForeignDiff:
    """One file's diff.

    Attributes:
        old: the path that it was, None for ``/dev/null``.
        new: the path that it is to be, None for ``/dev/null``.
        named: old and new path follow from git's header, and are not a choice of two.
        binary: the diff in full, of a binary file.
        mode: mode before and after, when the diff states that it stays.
    """

    old: str | None
    new: str | None
    named: bool
    old_mode: str | None
    new_mode: str | None
    copied: bool
    hunks: tuple[Hunk, ...]
    patch_line: int
    binary: FileDiff | None = None
    mode: str | None = None

    def settled(self, exists: Callable[[str], bool]) -> FileDiff:
        """The diff with its paths, chosen as patch(1) chooses them.

        Args:
            exists: tells if the tree has a file.
        """
        if self.binary is not None:
            return self.binary
        old, new = self.old, self.new
        if not self.named and old is not None and new is not None:
            there = [path for path in dict.fromkeys((old, new)) if exists(path)]
            adds = len(self.hunks) == 1 and self.hunks[0].old_count == 0
            path = min(there or (old, new), key=_rank)
            old, new = (None, path) if adds and not there else (path, path)
        return FileDiff(
            old=old,
            new=new,
            old_mode=self.old_mode,
            new_mode=self.new_mode,
            binary=False,
            copied=self.copied,
            hunks=self.hunks,
            patch_line=self.patch_line,
            mode=self.mode,
        )


def _rank(path: str) -> tuple[int, int, int]:
    return path.count("/"), len(path.rpartition("/")[2]), len(path)


def diff_offset(data: bytes) -> int:
    """Offset at which the first file's diff starts, with what stands before its names."""
    start = _START.search(data)
    return start.start() if start else len(data)


def read_unified(data: bytes, where: str, strip: int = 1) -> Iterator[ForeignDiff]:
    """The files of a diff.

    Args:
        data: the patch, with or without its head.
        where: its name, for messages.
        strip: leading parts of each path that do not count.

    Raises:
        PatchError: a hunk is cut off, or something cannot be kept: a binary file of which the
            patch only says that it differs, a context diff, a submodule.
        UnsafePathError: it names a path outside the tree.
    """
    reader = _Lines(data, where, strip)
    reader.skip_to(diff_offset(data))
    while (line := reader.peek()) is not None:
        if line.startswith(b"diff --git "):
            yield reader.read_git()
        elif line.startswith(b"--- ") and (reader.peek(1) or b"").startswith(b"+++ "):
            yield reader.read_plain()
        elif line.startswith(b"*** ") and (reader.peek(1) or b"").startswith(b"--- "):
            raise reader.error("a context diff: its lines cannot be read")
        elif _HUNK.match(line):
            raise reader.error("malformed diff: a hunk without the names of its file")
        elif line.startswith(b"Binary files "):
            raise reader.error("a binary file is changed, and the patch does not say how")
        else:
            reader.at += 1


class _Lines:
    """The lines of a patch, without their line feeds."""

    def __init__(self, data: bytes, where: str, strip: int) -> None:
        self.lines = data.removesuffix(b"\n").split(b"\n")
        self.at = 0
        self._where, self._strip = where, strip

    def skip_to(self, offset: int) -> None:
        size = 0
        while self.at < len(self.lines) and size < offset:
            size += len(self.lines[self.at]) + 1
            self.at += 1

    def peek(self, ahead: int = 0) -> bytes | None:
        at = self.at + ahead
        return self.lines[at] if at < len(self.lines) else None

    @property
    def where(self) -> str:
        return f"{self._where}:{self.at + 1}"

    def error(self, what: str, remedy: str = _REMEDY) -> PatchError:
        return PatchError(f"{self.where}: {what}", remedy=remedy)

    def read_git(self) -> ForeignDiff:
        """A file's diff with git's header."""
        first, where = self.at, self.where
        names = (self.peek() or b"").rstrip(b"\r").removeprefix(b"diff --git ")
        self.at += 1
        header: dict[str, bytes] = {}
        while match := _EXTENDED.fullmatch((self.peek() or b"").rstrip(b"\r")):
            header[match[1].decode()] = match[2]
            self.at += 1
        line = self.peek() or b""
        if line == b"GIT binary patch":
            return self._read_binary(first, where)
        if line.startswith(b"Binary files "):
            raise self.error("a binary file is changed, and the patch does not say how")
        old_mode, new_mode = (
            _mode(header, keys, where)
            for keys in (("old mode", "deleted file mode"), ("new mode", "new file mode"))
        )
        old: str | None
        new: str | None
        if "rename from" in header or "copy from" in header:
            key = "rename" if "rename from" in header else "copy"
            old, new = (
                check_path(unquote(header.get(f"{key} {side}", b"")), where)
                for side in ("from", "to")
            )
        else:
            old, new = self._git_names(names, where)
        old = None if "new file mode" in header else old
        new = None if "deleted file mode" in header else new
        hunks: tuple[Hunk, ...] = ()
        if line.startswith(b"--- ") and (self.peek(1) or b"").startswith(b"+++ "):
            plain = self.read_plain()
            hunks = plain.hunks
            if "rename from" not in header and "copy from" not in header:
                old = plain.old if "new file mode" not in header else None
                new = plain.new if "deleted file mode" not in header else None
        if old is None and new is None:
            raise PatchError(f"{where}: the names of the file cannot be told apart")
        if not header and not hunks:
            raise PatchError(f"{where}: malformed diff: nothing of this file is changed")
        same = old == new or None in (old, new) or "rename from" in header or "copy from" in header
        stays = header.get("index", b"").decode("latin-1").partition(" ")[2].strip()
        mode = _mode({"index": stays.encode()}, ("index",), where) if stays else None
        return ForeignDiff(
            *(old, new, same, old_mode, new_mode, "copy from" in header, hunks, first + 1),
            mode=mode,
        )

    def _git_names(self, names: bytes, where: str) -> tuple[str | None, str | None]:
        if names.startswith(b'"') or names.endswith(b'"'):
            match = re.fullmatch(rb'("(?:[^"\\]|\\.)*"|[^"]+) ("(?:[^"\\]|\\.)*"|[^"]+)', names)
            parts = match.groups() if match else ()
        else:
            half = (len(names) - 1) // 2
            parts = (names[:half], names[half + 1 :]) if names[half : half + 1] == b" " else ()
            if len(parts) != 2 or parts[0][2:] != parts[1][2:]:
                return None, None
        if len(parts) != 2:
            return None, None
        return self._path(parts[0], where), self._path(parts[1], where)

    def _read_binary(self, first: int, where: str) -> ForeignDiff:
        if self._strip != 1:
            raise self.error("a binary file in a patch with -p other than 1")
        end = self.at + 1
        while end < len(self.lines):
            line = self.lines[end]
            if not line or re.match(rb"(literal|delta) \d+$|[A-Za-z][^ ]+$", line):
                end += 1
            else:
                break
        block = b"\n".join(self.lines[first:end]) + b"\n"
        (diff,) = parse_diff(block, 0, where)
        self.at = end
        return ForeignDiff(
            *(diff.old, diff.new, True, diff.old_mode, diff.new_mode, False, (), first + 1),
            binary=replace(diff, patch_line=first + 1),
        )

    def read_plain(self) -> ForeignDiff:
        """A file's names and hunks."""
        first, where = self.at, self.where
        source, target = self.lines[self.at][4:], self.lines[self.at + 1][4:]
        # A patch that was mailed as text of another system; the file itself may have these ends.
        carriage = source.endswith(b"\r") and target.endswith(b"\r")
        self.at += 2
        old, new = (self._path(_name(side.rstrip(b"\r")), where) for side in (source, target))
        if old is None and new is None:
            raise PatchError(f"{where}: a diff between no file and no file")
        hunks = []
        while _HUNK.match(self.peek() or b""):
            hunks.append(self._read_hunk(carriage=carriage))
        if not hunks:
            raise PatchError(f"{where}: malformed diff: there is no hunk")
        named = old == new or None in (old, new)
        return ForeignDiff(old, new, named, None, None, False, tuple(hunks), first + 1)

    def _path(self, name: bytes, where: str) -> str | None:
        path = unquote(name)
        if path == "/dev/null":
            return None
        parts = re.sub("/+", "/", path).split("/")
        if len(parts) <= self._strip:
            raise PatchError(f"{where}: {path} has no {self._strip + 1} parts, which -p needs")
        return check_path("/".join(parts[self._strip :]), where)

    def _read_hunk(self, *, carriage: bool) -> Hunk:
        where, patch_line = self.where, self.at + 1
        match = _HUNK.match(self.lines[self.at])
        assert match is not None
        old_start, new_start = int(match[1]), int(match[3])
        old_count, new_count = (1 if count is None else int(count) for count in match.group(2, 4))
        self.at += 1
        old, new = old_count, new_count
        lines: list[HunkLine] = []
        while old or new or (self.peek() or b"").startswith(b"\\"):
            line = self.peek()
            if line is None:
                break
            if carriage:
                line = line.removesuffix(b"\r")
            if line.startswith(b"\\") and lines:
                lines[-1] = HunkLine(lines[-1].kind, lines[-1].data.removesuffix(b"\n"))
                self.at += 1
                continue
            kind = _KINDS.get(line[0]) if line else " "  # an editor took the blank away
            if kind is None:
                break
            lines.append(HunkLine(kind, line[1:] + b"\n"))
            old -= kind != "+"
            new -= kind != "-"
            if old < 0 or new < 0:
                break
            self.at += 1
        if old or new:
            raise PatchError(
                f"{where}: malformed diff: a hunk has other lines than it states", remedy=_REMEDY
            )
        return Hunk(old_start, old_count, new_start, new_count, tuple(lines), patch_line)


def _name(text: bytes) -> bytes:
    """The name of a ``---`` line; a tab, or blanks before a date, end it."""
    if quoted := re.match(rb'"(?:[^"\\]|\\.)*"', text):
        return quoted[0]
    name = text.partition(b"\t")[0]
    return re.sub(rb" +(?:\d{4}-\d\d-\d\d |[A-Z][a-z]{2} [A-Z][a-z]{2} +\d).*$", b"", name).rstrip()


def _mode(header: dict[str, bytes], keys: tuple[str, ...], where: str) -> str | None:
    found = next((header[key].decode("latin-1").strip() for key in keys if key in header), None)
    if found is not None and found not in TREE_MODES:
        what = "a submodule" if found == GITLINK_MODE else "not a file's or link's"
        raise PatchError(f"{where}: mode {found} is {what}")
    return found


def reverse(diff: FileDiff, where: str) -> FileDiff:
    """The diff that undoes a diff.

    Raises:
        PatchError: it cannot be undone from what it says.
    """
    if diff.binary or diff.copied:
        raise PatchError(
            f"{where}:{diff.patch_line}: -R of a {'binary file' if diff.binary else 'copy'}",
            remedy="turn the patch round (git diff -R), and take -R out of the series",
        )
    swapped = {" ": " ", "+": "-", "-": "+"}
    hunks = tuple(
        Hunk(
            *(hunk.new_start, hunk.new_count, hunk.old_start, hunk.old_count),
            tuple(HunkLine(swapped[line.kind], line.data) for line in hunk.lines),
            hunk.patch_line,
        )
        for hunk in diff.hunks
    )
    return replace(
        diff,
        old=diff.new,
        new=diff.old,
        old_mode=diff.new_mode,
        new_mode=diff.old_mode,
        hunks=hunks,
    )
