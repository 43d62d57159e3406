# SPDX-License-Identifier: Apache-2.0
"""File locks between processes with ``flock``; the system frees the locks of ended processes.

The package ``filelock`` cannot be used: the bootstrap locks before it installs packages, and
forkpatch needs locks that its git processes inherit, which ``filelock`` does not offer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from groundwork.files import naming

try:
    import fcntl
except ImportError:  # not a POSIX system: locks do nothing
    fcntl = None  # type: ignore[assignment]


def acquire(path: Path, resource: str, *, inheritable: bool = False, wait: bool = True) -> FileIO:
    """Lock the file ``path``; if another process holds the lock, report that on stderr and wait.

    Args:
        path: the lock file, made if missing; contains the process id of the holder.
        resource: name of the locked resource, for the message.
        inheritable: child processes hold the lock, too, until the last child ends.
        wait: False raises at once, without a message, if another process holds the lock.

    Returns:
        the open lock file; closing it frees the lock.

    Raises:
        BlockingIOError: another process holds the lock, and ``wait`` is False.
        OSError: the lock file cannot be written.
    """
    # Unbuffered: closing a file with a buffer would repeat a failed write; Python 3.13 prints that.
    handle = path.open("a+b", buffering=0)
    if fcntl is None:
        return handle
    os.set_inheritable(handle.fileno(), inheritable)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            handle.close()
            raise
        handle.seek(0)
        holder = handle.read().decode("ascii", "replace").strip() or "?"
        print(f"waiting: {resource} is in use by process {holder}", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    handle.seek(0)
    handle.truncate()
    with naming(path):
        handle.write(f"{os.getpid()}\n".encode())
    return handle


@contextmanager
def folder_locked(folder: Path) -> Iterator[None]:
    """Lock a folder itself during the block; child processes hold the lock, too.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the path is not a folder, is a link, or its file system has no such locks.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.set_inheritable(handle, True)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked(
    path: Path, resource: str, *, inheritable: bool = False, wait: bool = True
) -> Iterator[bool]:
    """Hold a lock as :func:`acquire` does; yield True, or False if busy and ``wait`` is False."""
    try:
        handle = acquire(path, resource, inheritable=inheritable, wait=wait)
    except BlockingIOError:
        yield False
        return
    with handle:
        yield True
