# SPDX-License-Identifier: Apache-2.0
"""File locks between processes, held with ``flock``; the system frees them with their holder.

The package ``filelock`` is not used: the bootstrap locks before anything is installed, and
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
except ImportError:  # not a POSIX system: processes are not kept apart
    fcntl = None  # type: ignore[assignment]


def acquire(path: Path, resource: str, *, inheritable: bool = False, wait: bool = True) -> FileIO:
    """Lock the file ``path``; when another process holds it, say so on stderr and wait.

    Args:
        path: the lock file, made when it is missing; it holds the process id of its holder.
        resource: name of what is locked, for the message.
        inheritable: child processes hold the lock as well, until the last of them ends.
        wait: False raises at once, in silence, when another process holds it.

    Returns:
        the open lock file; closing it frees the lock.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is False.
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
    """Hold a lock on a folder itself during the block; child processes hold it as well.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it is no folder, is a link, or its file system has no such locks.
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
    """Hold the lock file ``path`` during the block; False when it is not held, see ``wait``."""
    try:
        handle = acquire(path, resource, inheritable=inheritable, wait=wait)
    except BlockingIOError:
        yield False
        return
    with handle:
        yield True
