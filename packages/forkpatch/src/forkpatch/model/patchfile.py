# SPDX-License-Identifier: Apache-2.0
"""Patch files in git's mailbox format, and the series that orders them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.model.condition import ALWAYS, Condition, parse_condition
from forkpatch.model.diffs import FileDiff, parse_diff
from forkpatch.model.mailhead import parse_head, parse_trailers
from forkpatch.safety import check_name, check_regular

SERIES = "series"
#: Names in a series' folder that are no patches.
RESERVED = frozenset({SERIES, "derived.json", "origin"})
SUFFIX = ".patch"

#: First old line of each hunk, as a patch writes it, by path.
Positions = Mapping[str, tuple[int, ...]]

_DIFF_START = re.compile(rb"^diff --git ", re.MULTILINE)
_CRLF = re.compile(rb"^(?:diff --git |--- |\+\+\+ |@@ )[^\n]*\r$", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """A parsed patch file.

    Attributes:
        name: its file name, as the series has it.
        author: ``Name <email>``.
        date: ``<seconds since 1970> <+hhmm>``, as git stores it.
        message: subject, blank line, body: the commit's message.
        trailers: the ``Key: value`` pairs of the last paragraph.
        sha256: hash of the file.
        home: the version of its upstream in whose folder it lies; empty for the version whose
            series lists it.
        condition: the options with which it is applied, as the series has it.
    """

    name: str
    author: str
    date: str
    message: str
    trailers: tuple[tuple[str, str], ...]
    files: tuple[FileDiff, ...]
    sha256: str
    home: str = ""
    condition: Condition = ALWAYS

    @property
    def positions(self) -> dict[str, tuple[int, ...]]:
        """First old line of each hunk, by path; new files have none."""
        return {
            file.old: tuple(hunk.old_start for hunk in file.hunks)
            for file in self.files
            if file.old is not None and file.hunks
        }

    @property
    def effect(self) -> tuple[object, ...]:
        """All that it does, without line numbers and blob ids: paths, modes, lines of hunks."""
        return tuple(
            (
                *(file.old, file.new, file.old_mode, file.new_mode, file.change, file.copied),
                *(hunk.lines for hunk in file.hunks),
            )
            for file in self.files
        )

    def at(self, positions: Positions) -> Patch:
        """The same patch with its hunks at other lines.

        Raises:
            PatchError: ``positions`` is not about the same files, or as many hunks.
        """
        counts = {path: len(lines) for path, lines in self.positions.items()}
        if counts != {path: len(lines) for path, lines in positions.items()}:
            raise PatchError(f"the lines recorded for {self.name} are not about its hunks")
        files = tuple(moved(file, positions.get(file.old or "", ())) for file in self.files)
        return replace(self, files=files)

    @property
    def subject(self) -> str:
        """First line of the message."""
        return self.message.partition("\n")[0]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path it reads or writes, sorted."""
        return tuple(sorted({path for file in self.files for path in file.paths}))

    def trailer(self, key: str) -> str | None:
        """The value of the last trailer ``key``, None without one."""
        values = self.all_trailers(key)
        return values[-1] if values else None

    def all_trailers(self, key: str) -> tuple[str, ...]:
        """The values of all trailers ``key``, in order."""
        return tuple(value for name, value in self.trailers if name.lower() == key.lower())


_KEPT = 64
_parsed: dict[tuple[str, str, str], Patch] = {}


def moved(file: FileDiff, starts: Sequence[int]) -> FileDiff:
    """A file's diff with its hunks at other lines; a new file's hunk stays where it is."""
    if not starts:
        return file
    hunks, shift = [], 0
    for hunk, start in zip(file.hunks, starts, strict=True):
        there = replace(hunk, old_start=start)
        hunks.append(replace(there, new_start=there.first + shift + (hunk.new_count > 0)))
        shift += hunk.new_count - hunk.old_count
    return replace(file, hunks=tuple(hunks))


@dataclass(frozen=True)
class SeriesEntry:
    """One line of a series: a patch of its own folder, or ``../VERSION/NAME`` of a sibling's.

    Attributes:
        name: the patch's file name.
        home: the version in whose folder it lies; empty for the series' own.
        condition: the options with which it is applied: ``NAME [linux]``.
    """

    name: str
    home: str = ""
    condition: Condition = field(default=ALWAYS, compare=False)

    def __str__(self) -> str:
        place = f"../{self.home}/{self.name}" if self.home else self.name
        return f"{place} {self.condition}".rstrip()


def read_series(folder: Path) -> tuple[str, ...]:
    """The patch names of ``folder/series``, in order; none when there is no series."""
    return tuple(entry.name for entry in read_entries(folder))


def read_entries(folder: Path) -> tuple[SeriesEntry, ...]:
    """The lines of ``folder/series``, in order; none when there is no series.

    Raises:
        PatchError: a name is unsafe or twice there.
        UserError: it is not a regular file.
    """
    path = check_regular(folder / SERIES)
    if not path.exists():
        return ()
    entries: dict[str, SeriesEntry] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise PatchError(f"{path}: {error}", remedy="restore it from git, or correct it") from error
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        where = f"{path}:{number}"
        entry = parse_entry(text, where)
        if entry.name in entries or entry.home == folder.name:
            what = "is listed twice" if entry.name in entries else "is in this very folder"
            raise PatchError(f"{where}: {entry} {what}", remedy="correct or remove the line")
        entries[entry.name] = entry
    return tuple(entries.values())


def unlisted(folder: Path) -> tuple[Path, ...]:
    """The patch files of ``folder`` that its series does not list."""
    names = {entry.name for entry in read_entries(folder) if not entry.home}
    return tuple(path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.name not in names)


def parse_entry(text: str, where: str) -> SeriesEntry:
    """The entry of ``NAME`` or ``../VERSION/NAME``, and of its condition.

    ``where`` is for messages.
    """
    place, bracket, rest = text.partition(" [")
    condition = parse_condition(bracket[1:] + rest, where) if bracket else ALWAYS
    home, name = "", place.rstrip()
    if name.startswith("../"):
        home, _, name = name.removeprefix("../").partition("/")
        check_name(home, f"{where}: version")
    return SeriesEntry(check_patch_name(name, f"{where}: patch"), home, condition)


def check_patch_name(name: str, what: str) -> str:
    """Return ``name`` when it can be a patch file's, else raise."""
    if name in RESERVED:
        raise UserError(
            f"{what} {name!r} has the name of another file of its folder",
            remedy=f"give the patch another name, one that ends with {SUFFIX}",
        )
    return check_name(name, what)


def load_series(folder: Path) -> tuple[Patch, ...]:
    """Read every patch that the series of ``folder`` lists, as it lies in its folder.

    Raises:
        PatchError: one cannot be read, or lies with a version that does not have it itself; or
            there are patches, and no series.
    """
    if not (folder / SERIES).exists() and (lost := unlisted(folder)):
        raise PatchError(
            f"{folder} holds {lost[0].name}, and no {SERIES} that lists it",
            remedy=f"restore {folder / SERIES} from git, or delete the patches beside it",
        )
    patches = []
    for entry in read_entries(folder):
        home = folder.parent / (entry.home or folder.name)
        if entry.home and SeriesEntry(entry.name) not in read_entries(home):
            raise PatchError(
                f"{folder / SERIES}: {entry}: the series of {entry.home} has no patch of its own"
                " of that name",
                remedy="name the folder that holds it, or take out the line",
            )
        patch = read_patch(home / entry.name)
        patches.append(replace(patch, home=entry.home, condition=entry.condition))
    return tuple(patches)


def read_patch(path: Path) -> Patch:
    """Read one patch file.

    Raises:
        PatchError: it is missing or malformed.
        UnsafePathError: it names a path outside the tree.
    """
    return parse_patch(patch_bytes(path), path.name, str(path))


def patch_bytes(path: Path) -> bytes:
    """The bytes of a patch file.

    Raises:
        PatchError: it is missing, or cannot be read.
        UserError: it is not a regular file.
    """
    if path.is_symlink():  # what it leads to is not in the fork's history
        raise UserError(f"{path} is a symbolic link, not a file", remedy="put a file in its place")
    try:
        return check_regular(path).read_bytes()
    except OSError as error:
        raise PatchError(
            f"{path}: {error.strerror}", remedy=f"restore it, or take it out of {SERIES}"
        ) from error


def parse_patch(data: bytes, name: str, where: str = "") -> Patch:
    """Parse the bytes of a patch file called ``name``; ``where`` is for messages.

    One run asks for the same patch again: to look at its form, to apply it, to compare versions.
    What was parsed is kept by the hash of the bytes, which may be many.
    """
    key = (hashlib.sha256(data).hexdigest(), name, where or name)
    if key not in _parsed:
        if len(_parsed) == _KEPT:
            del _parsed[next(iter(_parsed))]
        try:
            _parsed[key] = _parse(data, *key)
        except UserError as error:
            if not _CRLF.search(data):
                raise
            raise PatchError(
                f"{error.what}; the lines of its diff end with CRLF",
                remedy="an editor or git (core.autocrlf) changed it: turn them into LF",
            ) from error
    return _parsed[key]


def _parse(data: bytes, sha256: str, name: str, where: str) -> Patch:
    start = diff_start(data, where)
    author, date, message = parse_head(data[:start], where)
    return Patch(
        name=name,
        author=author,
        date=date,
        message=message,
        trailers=parse_trailers(message),
        files=tuple(parse_diff(data, start, where)),
        sha256=sha256,
    )


def split_patch(data: bytes, where: str) -> tuple[bytes, bytes]:
    """The mail's head with its message, and the diff.

    Raises:
        PatchError: there is no diff.
    """
    start = diff_start(data, where)
    return data[:start], data[start:]


def diff_start(data: bytes, where: str) -> int:
    """Offset of the diff in a patch file.

    Raises:
        PatchError: there is no diff in it.
    """
    start = _DIFF_START.search(data)
    if start is None:
        raise PatchError(f"{where}: no 'diff --git' line in it", remedy="export the patch again")
    return start.start()
