# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file is written beside its final path, then renamed to that path."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW_MODE = 0o644
_SCRATCH = ".new-"
_FULL = 32 << 20
_MOST_LINKS = 40  # as in Linux


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add ``path`` to an OSError that names no file, such as of a write to an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside ``path`` to write to; rename it to ``path`` at the end.

    An existing file keeps its mode, a symbolic link stays, and its target is written; missing
    parent folders are made. If the block raises, the scratch file is removed and ``path`` is
    unchanged. At the end the content is on the disk: after a power failure the machine has the
    complete old or new file.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a circle of links
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else NEW_MODE
    handle, name = tempfile.mkstemp(prefix=f".{path.name}{_SCRATCH}", dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        with naming(path):
            yield scratch
        scratch.chmod(mode)
        _sync(scratch)
        scratch.replace(path)
        _sync(path.parent)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a whole file, text as UTF-8; see :func:`atomic_path`.

    The function writes to a terminal, a pipe or a device directly, as these cannot be replaced. It
    writes to an open file that ``path`` names by its number, such as ``/dev/stdout``, behind what
    this process has written to it; it appends to an open file of another process.

    Raises:
        OSError: the file cannot be written; the old content remains.
        UnicodeEncodeError: the text cannot be encoded as UTF-8; the old content remains.
    """
    data = content.encode() if isinstance(content, str) else content
    if opened := open_file(path):
        _write_open(opened, data)
        return
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with atomic_path(path) as scratch:
        scratch.write_bytes(data)


def open_file(path: Path) -> Path | None:
    """Return the file in ``/proc`` that ``path`` is or leads through by links; else None."""
    for _ in range(_MOST_LINKS):
        path = Path(os.path.realpath(path.parent)) / path.name
        if path.is_relative_to("/proc") and path.parent.name == "fd":
            return path
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _write_open(path: Path, data: bytes) -> None:
    """Write to an open file, which ``path`` names below ``/proc``."""
    with naming(path):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as in a process that was started without it
                stream.flush()
        in_process = path.is_relative_to(f"/proc/{os.getpid()}")
        own = in_process and path.parent.name == "fd" and path.name.isdecimal()
        # A file opened again has a position of its own: what this process writes later to the open
        # file would overwrite the data.
        with os.fdopen(os.dup(int(path.name)), "wb") if own else path.open("ab") as file:
            file.write(data)


def full_folder(*folders: Path) -> Path | None:
    """Return the first folder whose disk has less than 32 MiB free; None without such a folder.

    The folder of temporary files comes last. For programs that report no full disk, such as pip.
    """
    candidates = (*folders, Path(tempfile.gettempdir()))
    return next((folder for folder in candidates if shutil.disk_usage(folder).free < _FULL), None)


def remove_scratch(folder: Path, below: str = "**/", *, age: float = 0.0) -> None:
    """Remove the scratch files that killed runs of :func:`atomic_path` left in ``folder``.

    Call the function under a lock that excludes other writers, or else with an ``age``.

    Args:
        folder: folder of the scratch files.
        below: pattern of subfolders; empty for ``folder`` alone.
        age: least seconds since the last write to a removed file.
    """
    for path in folder.glob(f"{below}.*{_SCRATCH}????????"):
        with suppress(FileNotFoundError):  # the file's run may remove it meanwhile
            if path.is_file() and time.time() - path.stat().st_mtime >= age:
                path.unlink()


def atomic_write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON; see :func:`atomic_write`."""
    atomic_write(path, json.dumps(value, indent=2) + "\n")


def sync_tree(folder: Path) -> None:
    """Wait until all files below ``folder`` are on the disk; call it before renaming the folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # A call for the whole file system is faster than a call for each of thousands of files.
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "syncfs") or libc.syncfs(handle):
            os.sync()
    finally:
        os.close(handle)


def sync_rename(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk; call it after a rename."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot sync folders, or read-only files.
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
