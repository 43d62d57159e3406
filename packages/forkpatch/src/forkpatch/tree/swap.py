# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of folders.

A new tree is built beside the old tree and exchanged with it. Linux exchanges in one call
(``renameat2`` with ``RENAME_EXCHANGE``). Other systems need two renames. A run that is killed
between the renames leaves no tree and the old tree set aside; :func:`recover` puts it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forkpatch.errors import ForkError, UserError
from groundwork.files import naming, sync_rename, sync_tree
from groundwork.locks import folder_locked

_SCRATCH = ".forkpatch-new-"
_ASIDE = ".forkpatch-old-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def scratch_beside(final: Path, prefix: str = _SCRATCH) -> Path:
    """Make and return a new empty folder beside ``final``."""
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    # mkdtemp makes private folders; a tree gets the permissions of its surroundings.
    folder.chmod(0o755)
    return folder


def check_new(final: Path) -> None:
    """Check that :func:`new_folder` may write ``final``; remove leftovers of killed runs.

    Raises:
        UserError: ``final`` exists and is not empty.
    """
    for left in final.parent.glob(f"{_scratch_of(final)}*"):
        with contextlib.suppress(OSError), folder_locked(left):
            if left.stat().st_uid == os.geteuid():
                remove_tree(left)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise UserError(f"{final} exists and is not empty", remedy="name a folder that is not")


def _scratch_of(final: Path) -> str:
    """Return the prefix of the scratch folders for ``final``."""
    return f"{_SCRATCH}{hashlib.sha256(os.fsencode(final.name)).hexdigest()[:12]}-"


@contextmanager
def scratch_folder(final: Path, prefix: str = _SCRATCH) -> Iterator[Path]:
    """Yield a new empty folder on the file system of ``final``; remove it unless it was renamed.

    The folder is locked, so that a verb that removes leftovers knows that it is in use.
    """
    with ExitStack() as stack:
        scratch = scratch_beside(final, prefix)
        with contextlib.suppress(OSError):  # some file systems have no locks of folders
            stack.enter_context(folder_locked(scratch))
        try:
            yield scratch
        finally:
            if scratch.exists():
                with contextlib.suppress(OSError):  # which recover() handles
                    remove_tree(scratch)


@contextmanager
def new_folder(final: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a scratch folder that becomes ``final`` when the block ends.

    ``final`` must be absent or empty. It may lie outside the fork, so that no lock of the fork
    guards it, and leftovers of a killed run are removed first. If ``durable``, ``final`` is on the
    disk when the block ends.

    Raises:
        UserError: ``final`` exists and is not empty.
    """
    check_new(final)
    with scratch_folder(final, _scratch_of(final)) as scratch:
        with naming(final):
            yield scratch
        if durable:
            sync_tree(scratch)
        scratch.rename(final)
        if durable:
            sync_rename(final.parent)


def swap_in(new: Path, final: Path, keep: Callable[[Path, Path], None] | None = None) -> None:
    """Replace ``final``, which may be absent, by ``new``, and remove the old folder.

    The new folder is on the disk on return. ``keep`` is called with the old and the new folder,
    which is in place, before the old folder is removed.
    """
    sync_tree(new)
    if not final.exists():
        new.rename(final)
        sync_rename(final.parent)
        return
    if not _exchange(new, final):
        aside = final.parent / f"{_ASIDE}{final.name}"
        final.rename(aside)
        new.rename(final)
        new = aside
    sync_rename(final.parent)
    if keep is not None:
        keep(new, final)
    remove_tree(new)


def recover(parent: Path) -> None:
    """Remove or put back the leftovers of an interrupted run in ``parent``, under its lock."""
    for aside in parent.glob(f"{_ASIDE}*"):
        final = parent / aside.name.removeprefix(_ASIDE)
        if final.exists():
            remove_tree(aside)
        else:
            aside.rename(final)
    for scratch in parent.glob(f"{_SCRATCH}*"):
        with ExitStack() as stack:
            try:
                stack.enter_context(folder_locked(scratch))
            except BlockingIOError:
                continue  # a running process holds it, see scratch_folder()
            except OSError:
                pass
            remove_tree(scratch)


def remove_tree(folder: Path) -> None:
    """Remove a folder; it is renamed to scratch first, in case of an interruption."""
    doomed = folder
    if not folder.name.startswith((_SCRATCH, _ASIDE)):
        doomed = scratch_beside(folder)
        folder.rename(doomed)
    try:
        shutil.rmtree(doomed)
    except (OSError, RecursionError) as error:  # Python calls itself for each level of folders
        if subprocess.run(["rm", "-rf", "--", str(doomed)], check=False).returncode:
            raise OSError(f"{doomed} cannot be removed") from error


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names at once; return False if the system cannot; else raise ForkError."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    names = (os.fsencode(first), os.fsencode(second))
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise ForkError(f"{second} cannot be replaced: {os.strerror(code)}")
