# SPDX-License-Identifier: Apache-2.0
"""Patch files in git's mailbox format, and the series that orders them.

``NAME.patch [linux bsd]`` in a series is applied with at least one of these options,
``NAME.patch [!windows]`` without any of them, as in the architectures of Debian's control files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.model.diffs import FileDiff, parse_diff
from forkpatch.model.mailhead import parse_head, parse_trailers
from forkpatch.safety import check_name, check_own

SERIES = "series"
#: Names in a series' folder that are not patches.
RESERVED = frozenset({SERIES, "derived.json", "origin"})
SUFFIX = ".patch"

#: First old line of each hunk, as in the patch file, by path.
Positions = Mapping[str, tuple[int, ...]]

_DIFF_START = re.compile(rb"^diff --git ", re.MULTILINE)
_CRLF = re.compile(rb"^(?:diff --git |--- |\+\+\+ |@@ )[^\n]*\r$", re.MULTILINE)


#: The option with which every patch is applied, regardless of conditions.
EVERY = "all"


@dataclass(frozen=True)
class Condition:
    """A condition on the chosen options; without options it always holds.

    Attributes:
        options: the options in the condition.
        negated: True if the condition holds without these options, False if it holds with one of
            them.
    """

    options: tuple[str, ...] = ()
    negated: bool = False

    def __str__(self) -> str:
        sign = "!" if self.negated else ""
        return f"[{' '.join(f'{sign}{option}' for option in self.options)}]" if self.options else ""

    def holds(self, chosen: Collection[str]) -> bool:
        """Return True if the condition holds with the chosen options; with ``all``, it does."""
        if not self.options or EVERY in chosen:
            return True
        return self.negated is not any(option in chosen for option in self.options)


ALWAYS = Condition()


def parse_condition(text: str, where: str) -> Condition:
    """Return the condition of a text ``[linux bsd]`` or ``[!windows]``.

    Raises:
        PatchError: the text is not a condition, or has the option ``all``.
        UserError: an option is not a plain name.
    """
    words = text[1:-1].split() if text.startswith("[") and text.endswith("]") else []
    negated = [word.startswith("!") for word in words]
    if not words or len(set(negated)) > 1:
        raise PatchError(
            f"{where}: {text} is not a condition",
            remedy="write [ONE OTHER] for a patch that is applied with one of these options, or"
            " [!ONE !OTHER] for one that is applied with none of them",
        )
    names = tuple(check_name(word.removeprefix("!"), f"{where}: option") for word in words)
    if EVERY in names:
        raise PatchError(f"{where}: {EVERY} is not an option", remedy="it chooses every patch")
    return Condition(names, negated[0])


@dataclass(frozen=True)
class Patch:
    """A parsed patch file.

    Attributes:
        name: file name, as in the series.
        author: ``Name <email>``.
        date: ``<seconds since 1970> <+hhmm>``, as git stores it.
        message: the commit's message: subject, blank line, body.
        trailers: the ``Key: value`` pairs of the last paragraph.
        sha256: hash of the file.
        home: version whose folder holds the file; empty for the version whose series lists the
            patch.
        condition: condition on options from the series.
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
        """First old line of each hunk, by old path; without new files and files without hunks."""
        return {
            file.old: tuple(hunk.old_start for hunk in file.hunks)
            for file in self.files
            if file.old is not None and file.hunks
        }

    @property
    def effect(self) -> tuple[object, ...]:
        """The change without line numbers and blob ids: paths, modes, lines of hunks."""
        return tuple(
            (
                *(file.old, file.new, file.old_mode, file.new_mode, file.change, file.copied),
                *(hunk.lines for hunk in file.hunks),
            )
            for file in self.files
        )

    def at(self, positions: Positions) -> Patch:
        """Return the same patch with its hunks at the old lines ``positions``.

        Raises:
            PatchError: ``positions`` has other files, or other numbers of hunks.
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
        """Every path that the patch reads or writes, sorted."""
        return tuple(sorted({path for file in self.files for path in file.paths}))

    def trailer(self, key: str) -> str | None:
        """Return the value of the last trailer ``key``; None without such a trailer."""
        values = self.all_trailers(key)
        return values[-1] if values else None

    def all_trailers(self, key: str) -> tuple[str, ...]:
        """Return the values of all trailers ``key``, in order."""
        return tuple(value for name, value in self.trailers if name.lower() == key.lower())


def moved(file: FileDiff, starts: Sequence[int]) -> FileDiff:
    """Return a file's diff with its hunks at the old lines ``starts``; unchanged if it is empty."""
    if not starts:
        return file
    hunks, shift = [], 0
    for hunk, start in zip(file.hunks, starts, strict=True):
        placed = replace(hunk, old_start=start)
        hunks.append(replace(placed, new_start=placed.first + shift + (hunk.new_count > 0)))
        shift += hunk.new_count - hunk.old_count
    return replace(file, hunks=tuple(hunks))


@dataclass(frozen=True)
class SeriesEntry:
    """A line of a series: ``NAME`` of its own folder, or ``../VERSION/NAME`` of another version.

    Attributes:
        name: file name of the patch.
        home: version whose folder holds the patch; empty for the series' own folder.
        condition: condition on options: ``NAME [linux]``.
    """

    name: str
    home: str = ""
    condition: Condition = field(default=ALWAYS, compare=False)

    def __str__(self) -> str:
        path = f"../{self.home}/{self.name}" if self.home else self.name
        return f"{path} {self.condition}".rstrip()


def read_entries(folder: Path) -> tuple[SeriesEntry, ...]:
    """Return the entries of ``folder/series``, in order; empty without a series.

    Raises:
        PatchError: a name is listed twice, or as another version's though it is this folder's; or
            the series is not UTF-8.
        UserError: the series is not a regular file, or a name is unsafe.
    """
    path = check_own(folder / SERIES)
    if not path.exists():
        return ()
    entries: dict[str, SeriesEntry] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(f"{path}: {error}", remedy="restore it from git, or correct it") from error
    for number, (_, entry) in enumerate(series_lines(text, path), 1):
        if entry and (entry.name in entries or entry.home == folder.name):
            what = "is listed twice" if entry.name in entries else "is in this very folder"
            raise PatchError(
                f"{path}:{number}: {entry} {what}", remedy="correct or remove the line"
            )
        entries |= {entry.name: entry} if entry else {}
    return tuple(entries.values())


def series_lines(text: str, path: Path) -> Iterator[tuple[str, SeriesEntry | None]]:
    """Yield the lines of a series, with their ends, and their entries; None for a comment."""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        entry = line.partition("#")[0].strip()
        yield line, parse_entry(entry, f"{path}:{number}") if entry else None


def unlisted(folder: Path) -> tuple[Path, ...]:
    """Return the patch files of ``folder`` that its series does not list."""
    names = {entry.name for entry in read_entries(folder) if not entry.home}
    return tuple(path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.name not in names)


def parse_entry(text: str, where: str) -> SeriesEntry:
    """Return the entry of ``NAME`` or ``../VERSION/NAME`` with an optional condition.

    An unsafe name is a UserError with the place ``where``.
    """
    path, bracket, rest = text.partition(" [")
    condition = parse_condition(bracket[1:] + rest, where) if bracket else ALWAYS
    home, name = "", path.rstrip()
    if name.startswith("../"):
        home, _, name = name.removeprefix("../").partition("/")
        check_name(home, f"{where}: version")
    return SeriesEntry(check_patch_name(name, f"{where}: patch"), home, condition)


def check_patch_name(name: str, what: str) -> str:
    """Return ``name`` if a patch may have it, else raise UserError, beginning with ``what``."""
    if name in RESERVED:
        raise UserError(
            f"{what} {name!r} has the name of another file of its folder",
            remedy=f"give the patch another name, one that ends with {SUFFIX}",
        )
    return check_name(name, what)


def load_series(folder: Path) -> tuple[Patch, ...]:
    """Return every patch that the series of ``folder`` lists, at the lines of its file.

    Raises:
        PatchError: a patch cannot be read, or the other version's series lacks the patch; or the
            folder has patches but no series.
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
    """Return the patch of a file.

    Raises:
        PatchError: the file is missing or malformed.
        UnsafePathError: a path is outside the tree.
    """
    return parse_patch(patch_bytes(path), path.name, str(path))


def patch_bytes(path: Path) -> bytes:
    """Return the bytes of a patch file.

    Raises:
        PatchError: the file is missing or cannot be read.
        UserError: the path is not a regular file.
    """
    try:
        return check_own(path).read_bytes()
    except OSError as error:
        raise PatchError(
            f"{path}: {error.strerror}", remedy=f"restore it, or take it out of {SERIES}"
        ) from error


def parse_patch(data: bytes, name: str, where: str = "") -> Patch:
    """Return the patch of a file's bytes; raise as :func:`read_patch`, with the place ``where``."""
    try:
        return _parse(data, name, where or name)
    except UserError as error:
        if not _CRLF.search(data):
            raise
        raise PatchError(
            f"{error.what}; the lines of its diff end with CRLF",
            remedy="an editor or git (core.autocrlf) changed it: turn them into LF",
        ) from error


@lru_cache(maxsize=512)  # one run parses a patch to check its form, to apply it, to compare it
def _parse(data: bytes, name: str, where: str) -> Patch:
    head = split_patch(data, where)[0]
    author, date, message = parse_head(head, where)
    return Patch(
        name=name,
        author=author,
        date=date,
        message=message,
        trailers=parse_trailers(message),
        files=tuple(parse_diff(data, len(head), where)),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def split_patch(data: bytes, where: str) -> tuple[bytes, bytes]:
    """Return the mail's head with its message, and the diff.

    Raises:
        PatchError: the file has no diff.
    """
    start = _DIFF_START.search(data)
    if start is None:
        raise PatchError(f"{where}: no 'diff --git' line in it", remedy="export the patch again")
    return data[: start.start()], data[start.start() :]
