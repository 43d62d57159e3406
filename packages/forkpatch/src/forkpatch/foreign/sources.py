# SPDX-License-Identifier: Apache-2.0
"""A series of another tool on disk: its format, its patches in order, their bytes."""

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
    """Layout of a foreign series.

    Attributes:
        QUILT: a file ``series``, as in quilt, Debian and ungoogled-chromium.
        LISTED: a file ``.patches`` with a name per line, as in Electron.
        NUMBERED: numbered files, as ``git format-patch`` writes them.
        LOOSE: files without an order, no two of which change the same file, as in Brave.
        MAILBOX: one file of mails.
    """

    QUILT = "quilt"
    LISTED = "listed"
    NUMBERED = "numbered"
    LOOSE = "loose"
    MAILBOX = "mailbox"


@dataclass(frozen=True)
class ForeignPatch:
    """A patch file of another tool.

    Attributes:
        file: path from the folder of the series.
        skipped: reason why the patch does not belong to the series; empty if it belongs.
    """

    file: str
    data: bytes
    strip: int = 1
    reverse: bool = False
    skipped: str = ""


@dataclass(frozen=True)
class ForeignSeries:
    """A series of another tool.

    Attributes:
        list_name: name of the file that lists the patches; empty without a list.
        list_data: content of the list.
        unlisted: other files of the folder, which the list does not name; None for a link.
    """

    format: ForeignFormat
    patches: tuple[ForeignPatch, ...]
    list_name: str = ""
    list_data: bytes = b""
    unlisted: Mapping[str, bytes | None] = field(default_factory=dict)


def read_foreign(source: Path, guards: Collection[str] | None = None) -> ForeignSeries:
    """Return the series in a folder or a mailbox.

    A folder may be a Debian source package; ``guards`` is None without a choice.

    Raises:
        UserError: ``source`` has no series, or the series has guards and no choice was made.
        PatchError: a listed patch cannot be read.
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
            foreign = assemble(layout, list_name, data, files, guards, where=str(path))
            paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
            unlisted = {
                name: None if path.is_symlink() else _read(path)
                for name, path in sorted(paths.items())
                if name not in {list_name, *files} and not path.is_dir()
            }
            return replace(foreign, unlisted=unlisted)
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
    """Return the series of a list and its patch files.

    Raises:
        UserError: the list has guards and no choice was made, or it names a patch twice.
    """
    lines = _lines(list_data, layout, where or list_name)
    guarded = next((line for line in lines if line.file and line.guarded), None)
    names = sorted({g.lstrip("+-!") for line in lines for g in (*line.before, *line.after)})
    if unknown := sorted(set(guards or ()) - set(names)):
        has = f"its guards: {', '.join(names)}" if names else "it has no guards"
        raise UserError(f"--guard {unknown[0]}: {where or list_name} has no such guard", remedy=has)
    if guarded and guards is None:
        raise UserError(
            f"{where or list_name}: {guarded.text.strip()!r} has guards: they choose patches",
            remedy=f"choose with --guard NAME, of {', '.join(names)}; or choose none: --no-guards",
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
    """Return the parsed lines of a list."""
    text = data.decode("utf-8", "surrogateescape")
    return parse_list(text, where, quilt=layout is ForeignFormat.QUILT)


def _listed(folder: Path, name: str, data: bytes, layout: ForeignFormat) -> list[str]:
    """Return the patch files that a list names."""
    return [line.file for line in _lines(data, layout, f"{folder / name}") if line.file]


def _read(path: Path) -> bytes:
    """Return the content of a regular file."""
    try:
        return check_regular(path).read_bytes()
    except OSError as error:
        raise PatchError(f"{path}: {error.strerror}") from error


def _split_mailbox(path: Path) -> tuple[ForeignPatch, ...]:
    """Return the mails of a mailbox as patches."""
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
