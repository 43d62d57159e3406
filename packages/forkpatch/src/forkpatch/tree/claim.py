# SPDX-License-Identifier: Apache-2.0
"""The lock file of a fork, which serializes the verbs that write.

Leftovers of an interrupted run are removed under the same lock. Without the lock, the scratch
folders of another running verb could be removed.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from fnmatch import fnmatchcase

from forkpatch.errors import UserError
from forkpatch.model.settings import Settings
from forkpatch.tree.swap import recover
from groundwork.files import atomic_write, remove_scratch
from groundwork.locks import locked

_LOCK = ".forkpatch.lock"
# Files of the work folder that verbs write, by pattern; everything in rebase/*/ is also theirs.
_WRITTEN = (".gitignore", _LOCK, "checks.json", "*.missing", "rebase-*.json")
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Claim(Enum):
    """Extent to which a verb needs the fork for itself.

    Attributes:
        NONE: writes nothing in the fork, and removes no leftovers.
        REPORT: reads without waiting; removes leftovers if no other verb is at work.
        READ: waits, and reads files that must not change meanwhile; also reads a read-only fork.
        WRITE: waits, and writes.
    """

    NONE = 0
    REPORT = 1
    READ = 2
    WRITE = 3


@contextmanager
def claimed(settings: Settings, claim: Claim) -> Iterator[None]:
    """Lock the fork during the block as ``claim`` says; remove leftovers of interrupted runs.

    The git processes started by a verb inherit the lock: they may write for a moment after the verb
    was killed.

    Raises:
        OSError: a verb that writes cannot lock the fork.
        UserError: the work folder is a file, or a file that a verb writes there is a link.
    """
    _check_links(settings)
    with ExitStack() as stack:
        try:
            if claim is Claim.WRITE:
                stack.enter_context(_begun(settings))
            if claim is not Claim.NONE and settings.work.is_dir():
                lock = locked(
                    settings.work / _LOCK,
                    str(settings.root),
                    inheritable=True,
                    wait=claim is not Claim.REPORT,
                )
                if stack.enter_context(lock):
                    _recover(settings)
                    if not (settings.work / ".gitignore").exists():  # for the fork's repository
                        atomic_write(settings.work / ".gitignore", "*\n")
        except OSError as error:
            if claim is Claim.WRITE or error.errno not in _READ_ONLY:
                raise
        yield


def _check_links(settings: Settings) -> None:
    """Raise for a link in place of a file that a verb writes: it would change a file elsewhere."""
    top = [
        path
        for path in settings.work.glob("*")
        if any(fnmatchcase(path.name, pattern) for pattern in _WRITTEN)
    ]
    for path in (*top, *settings.work.glob("rebase/*/*")):
        if path.is_symlink() and not path.is_dir():
            raise UserError(
                f"{path} is a symbolic link: a verb would write to its target",
                remedy="remove the link",
            )


@contextmanager
def _begun(settings: Settings) -> Iterator[None]:
    """Make the work folder; at the end, remove it if it is new and ``settings.lock`` is missing."""
    if settings.work.exists() and not settings.work.is_dir():
        raise UserError(
            f"{settings.work} is not a folder; the trees are built there",
            remedy="move it away; or name another folder: work of [tool.forkpatch]",
        )
    missing = [path for path in (settings.work, *settings.work.parents) if not path.exists()]
    settings.work.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if missing and not settings.lock.exists():
            shutil.rmtree(missing[-1], ignore_errors=True)


def _recover(settings: Settings) -> None:
    """Remove leftovers from every folder in which trees, series or files are written."""
    remove_scratch(settings.root, below="")  # of the lock file
    remove_scratch(settings.patches)
    for below in ("", "rebase/*/"):  # reports, and the plans of rebases
        remove_scratch(settings.work, below)
    for top in (settings.work, settings.patches):
        for folder in [top, *top.glob("*/")]:
            if folder.is_dir() and not folder.is_symlink():
                recover(folder)
