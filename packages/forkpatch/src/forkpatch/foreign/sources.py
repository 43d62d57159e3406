# SPDX-License-Identifier: Apache-2.0
"""A series of another tool as it is on the disk: its format, its patches in order, their bytes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from forkpatch.errors import PatchError, UserError
from forkpatch.foreign.lists import ListLine, parse_list
from forkpatch.git.calls import Git
from forkpatch.model.patchfile import SERIES
from forkpatch.safety import check_regular

_PLAIN_LIST = ".patches"
_SUFFIXES = (".patch", ".diff")
_NUMBERED = re.compile(r"\d+[-_.]")


class ForeignFormat(StrEnum):
    """Layout of a series.

    Attributes:
        QUILT: a file ``series``, as quilt, Debian and ungoogled-chromium have it.
        LISTED: a file ``.patches`` with a name a line, as Electron has it.
        NUMBERED: files in the order of their numbers, as ``git format-patch`` writes them.
        LOOSE: files in no order, of which no two change the same file, as Brave has them.
        MAILBOX: one file of mails.
    """

    QUILT = "quilt"
    LISTED = "listed"
    NUMBERED = "numbered"
    LOOSE = "loose"
    MAILBOX = "mailbox"


@dataclass(frozen=True)
class ForeignPatch:
    """One patch as it is.

    Attributes:
        file: its path from the folder of the series.
        skipped: reason for which it does not belong to the series; empty when it does.
    """

    file: str
    data: bytes
    strip: int = 1
    reverse: bool = False
    skipped: str = ""


@dataclass(frozen=True)
class ForeignSeries:
    """A series as it is.

    Attributes:
        list_name: name of the file that lists the patches; empty without one.
        list_data: that file.
        unlisted: the other files of its folder, which it does not name; None is a link.
    """

    format: ForeignFormat
    patches: tuple[ForeignPatch, ...]
    list_name: str = ""
    list_data: bytes = b""
    unlisted: Mapping[str, bytes | None] = field(default_factory=dict)


def read_foreign(source: Path, guards: Collection[str] | None = None) -> ForeignSeries:
    """Read a series: a folder, or a mailbox.

    Args:
        source: the folder or file; a folder may also be that of a Debian source package.
        guards: the chosen guards; None when none was asked for.

    Raises:
        UserError: there is no series, or it has guards and none were chosen.
        PatchError: a patch that is listed cannot be read.
    """
    if source.is_file():
        return ForeignSeries(ForeignFormat.MAILBOX, _split_mailbox(source))
    folder = source / "debian/patches" if (source / "debian/patches").is_dir() else source
    for list_name, layout in ((SERIES, ForeignFormat.QUILT), (_PLAIN_LIST, ForeignFormat.LISTED)):
        path = folder / list_name
        if path.is_file():
            data = path.read_bytes()
            listed = _listed(folder, list_name, data, layout)
            files = {name: _read(folder / name) for name in listed}
            found = assemble(layout, list_name, data, files, guards, where=str(path))
            every = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
            unlisted = {
                name: None if path.is_symlink() else _read(path)
                for name, path in sorted(every.items())
                if name not in {list_name, *files} and not path.is_dir()
            }
            return replace(found, unlisted=unlisted)
    names = sorted(path.name for path in folder.glob("*") if path.suffix in _SUFFIXES)
    if not names:
        raise UserError(
            f"{folder / SERIES}: the folder has neither a series nor patches",
            remedy="name the folder that holds them, or a mailbox",
        )
    numbered = all(_NUMBERED.match(name) for name in names)
    patches = tuple(ForeignPatch(name, _read(folder / name)) for name in names)
    return ForeignSeries(ForeignFormat.NUMBERED if numbered else ForeignFormat.LOOSE, patches)


def assemble(
    layout: ForeignFormat,
    list_name: str,
    list_data: bytes,
    files: Mapping[str, bytes],
    guards: Collection[str] | None = None,
    *,
    where: str = "",
) -> ForeignSeries:
    """The series that a list and its files are.

    Raises:
        UserError: the list has guards and none were chosen, or names a patch twice.
    """
    lines = _lines(list_data, layout, where or list_name)
    guarded = next((line for line in lines if line.file and line.guarded), None)
    every = sorted({g.lstrip("+-!") for line in lines for g in (*line.before, *line.after)})
    if unknown := sorted(set(guards or ()) - set(every)):
        has = f"its guards: {', '.join(every)}" if every else "it has no guards"
        raise UserError(f"--guard {unknown[0]}: {where or list_name} has no such guard", remedy=has)
    if guarded and guards is None:
        raise UserError(
            f"{where or list_name}: {guarded.text.strip()!r} has guards: they choose patches",
            remedy=f"choose with --guard NAME, of {', '.join(every)}; or choose none: --no-guards",
        )
    patches: dict[str, ForeignPatch] = {}
    for line in lines:
        if line.file in patches:
            raise UserError(f"{where or list_name}: {line.file} is listed twice")
        if line.file:
            skipped = "" if line.chosen(guards or ()) else "its guards leave it out"
            patches[line.file] = ForeignPatch(
                line.file, files[line.file], line.strip, line.reverse, skipped
            )
    return ForeignSeries(layout, tuple(patches.values()), list_name, list_data)


def _lines(data: bytes, layout: ForeignFormat, where: str) -> tuple[ListLine, ...]:
    text = data.decode("utf-8", "surrogateescape")
    return parse_list(text, where, quilt=layout is ForeignFormat.QUILT)


def _listed(folder: Path, name: str, data: bytes, layout: ForeignFormat) -> list[str]:
    return [line.file for line in _lines(data, layout, f"{folder / name}") if line.file]


def _read(path: Path) -> bytes:
    try:
        return check_regular(path).read_bytes()
    except OSError as error:
        raise PatchError(f"{path}: {error.strerror}") from error


def _split_mailbox(path: Path) -> tuple[ForeignPatch, ...]:
    data = _read(path)
    if not data.startswith(b"From "):
        raise UserError(
            f"{path}: it is not a mailbox: its first line does not begin with 'From '",
            remedy="name the folder of the series, or a mailbox",
        )
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as name:
        Git().run("mailsplit", "--keep-cr", f"-o{name}", "--", str(path.resolve()))
        files = sorted(Path(name).iterdir())
        return tuple(ForeignPatch(f"{file.name}{_SUFFIXES[0]}", _read(file)) for file in files)
