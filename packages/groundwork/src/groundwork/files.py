# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: a file is written beside its final path, then renamed into place."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW_MODE = 0o644
_SCRATCH = ".new-"
_FULL = 32 << 20


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in an error that names no file: a write to an open file does not say which."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a scratch path beside ``path`` to write to; rename it into place at the end.

    An existing file keeps its mode; missing parent folders are made. When the block raises,
    the scratch file is removed and ``path`` is as it was. At the end the content is on the disk:
    a machine that loses its power then has the old file or the new, whole.

    Raises:
        OSError: the folder or the file cannot be written.
    """
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

    A terminal, a pipe or a device is written to directly: it cannot be replaced.

    Raises:
        OSError: it cannot be written; the old content is still there.
        UnicodeEncodeError: the text has no UTF-8; the old content is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    with atomic_path(path) as scratch:
        scratch.write_bytes(data)


def full_folder(*folders: Path) -> Path | None:
    """The first of some folders, or of temporary files, on a full disk; None: none is.

    For the failure of a program that does not say so, such as pip.
    """
    places = (*folders, Path(tempfile.gettempdir()))
    return next((one for one in places if shutil.disk_usage(one).free < _FULL), None)


def remove_scratch(folder: Path, below: str = "**/", *, age: float = 0.0) -> None:
    """Remove the scratch files that killed runs of :func:`atomic_path` left below ``folder``.

    To be called where no other run can be writing, such as under a lock; else with an ``age``.

    Args:
        folder: where they lie.
        below: pattern of the folders in it; empty for ``folder`` alone.
        age: seconds since one was last written to, at least.
    """
    for path in folder.glob(f"{below}.*{_SCRATCH}????????"):
        with suppress(FileNotFoundError):  # its own run may end meanwhile
            if path.is_file() and time.time() - path.stat().st_mtime >= age:
                path.unlink()


def atomic_write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON; see :func:`atomic_write`."""
    atomic_write(path, json.dumps(value, indent=2) + "\n")


def sync_tree(folder: Path) -> None:
    """Return when all that was written below ``folder`` is on the disk, before it is renamed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # One call for the whole file system: a call for each of thousands of files takes longer.
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "syncfs") or libc.syncfs(handle):
            os.sync()
    finally:
        os.close(handle)


def sync_rename(folder: Path) -> None:
    """Return when the names in ``folder`` are on the disk, after a rename."""
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems know no such call for folders, or on what is read-only.
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
