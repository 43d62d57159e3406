# SPDX-License-Identifier: Apache-2.0
"""Reproducible tar archives, and checks of an archive from an unknown source.

There is no compression: weights hardly shrink, and compressors' output differs between versions.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from groundwork.files import atomic_path

MAXIMUM_MEMBERS = 10_000
PROGRAM, PLAIN = 0o755, 0o644


def write_tar(target: Path, members: Mapping[str, Path]) -> None:
    """Write ``members`` (file by name in the archive) to a tar archive, atomically.

    Members are sorted by name, without owner, dated at the epoch. Of a file's mode, only the
    owner's execute permission is kept.
    """
    with (
        atomic_path(target) as scratch,
        tarfile.open(scratch, "w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in sorted(members.items()):
            status = file.stat()
            mode = PROGRAM if status.st_mode & 0o100 else PLAIN
            with file.open("rb") as stream:
                archive.addfile(_header(name, status.st_size, mode), stream)


def _header(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info


def normalised_tar(source: Path) -> bytes:
    """Return the bytes of a tar of object files without owners and times; the order is kept.

    Raises:
        tarfile.TarError: the file is not a tar archive.
    """
    out = io.BytesIO()
    with (
        tarfile.open(source) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in old:
            if stream := old.extractfile(member):
                new.addfile(_header(member.name, member.size, PLAIN), stream)
    return out.getvalue()


def member_problem(member: tarfile.TarInfo, top: str) -> str:
    """Return why :func:`write_tar` would not write a member; empty without a problem.

    Args:
        member: member of the archive.
        top: the only folder in the archive.
    """
    parts = PurePosixPath(member.name).parts
    if not member.isreg() or member.issparse():
        return "it is not a plain file"
    if member.name.startswith("/") or ".." in parts or "\\" in member.name:
        return "its path leaves the folder"
    if member.name != "/".join(parts) or not member.name.isprintable():
        return "its path is not written plainly"
    if len(parts) < 2 or parts[0] != top:
        return f"it lies outside {top}/"
    if member.mode not in (PROGRAM, PLAIN):
        return f"its mode is {member.mode:o}"
    return ""


def is_canonical(member: tarfile.TarInfo, raw: IO[bytes], start: int) -> bool:
    """True if header and padding are the bytes that :func:`write_tar` writes.

    Args:
        member: member of the archive.
        raw: bytes of the archive.
        start: offset of the end of the previous member.
    """
    header = _header(member.name, member.size, member.mode).tobuf(tarfile.PAX_FORMAT)
    raw.seek(start)
    if raw.read(member.offset_data - start) != header:
        return False
    raw.seek(member.offset_data + member.size)
    return not raw.read(-member.size % tarfile.BLOCKSIZE).strip(b"\0")


def end_of(member: tarfile.TarInfo) -> int:
    """Return the offset of the end of a member, with padding."""
    return member.offset_data + member.size + -member.size % tarfile.BLOCKSIZE


def has_content(raw: IO[bytes], start: int) -> bool:
    """True if bytes other than zero follow the offset ``start``."""
    raw.seek(start)
    return any(block.strip(b"\0") for block in iter(lambda: raw.read(1 << 20), b""))


def plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, up to MAXIMUM_MEMBERS.

    Raises:
        tarfile.TarError: the archive is damaged, or has too many members.
    """
    for number, member in enumerate(archive):
        if number >= MAXIMUM_MEMBERS:
            raise tarfile.ReadError(f"it holds more than {MAXIMUM_MEMBERS} members")
        yield member
