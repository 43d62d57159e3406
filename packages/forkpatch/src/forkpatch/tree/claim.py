# SPDX-License-Identifier: Apache-2.0
"""The lock file of a fork, which each verb that writes holds, so that two never write at once.

Leftovers of an interrupted run are cleaned up under the same lock: a run that cleaned up
without it could remove the scratch folders of another run that is at work.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path

from forkpatch.errors import UserError
from forkpatch.model.settings import Settings
from forkpatch.tree.swap import recover
from groundwork.files import atomic_write, remove_scratch
from groundwork.locks import locked

_LOCK = ".forkpatch.lock"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Claim(Enum):
    """Extent to which a verb needs the fork for itself.

    Attributes:
        NONE: it writes nothing in the fork, and puts nothing in order.
        REPORT: it reads, and waits for nobody; it puts things in order when nobody is at work.
        READ: it reads what must not change meanwhile, and waits; a fork that cannot be written
            is read all the same.
        WRITE: it writes, and waits.
    """

    NONE = 0
    REPORT = 1
    READ = 2
    WRITE = 3


@contextmanager
def claimed(settings: Settings, claim: Claim) -> Iterator[None]:
    """Hold the fork as a verb claims it, leftovers of interrupted runs cleared away.

    The git processes of this one inherit the lock: one of them may go on writing for a moment
    after this process was killed.

    Raises:
        OSError: a verb that writes cannot lock the fork.
        UserError: the work folder is a file.
    """
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
                    _ignore(settings.work)
        except OSError as error:
            if claim is Claim.WRITE or error.errno not in _READ_ONLY:
                raise
        yield


@contextmanager
def _begun(settings: Settings) -> Iterator[None]:
    """Make the work folder; a fork that could not be begun, and has no lock, is left without."""
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


def _ignore(work: Path) -> None:
    """Let the fork's own git repository ignore the work folder, whatever its .gitignore says."""
    if not (work / ".gitignore").exists():
        atomic_write(work / ".gitignore", "*\n")


def _recover(settings: Settings) -> None:
    """Put in order every folder in which trees or series are swapped in, or files written."""
    remove_scratch(settings.root, below="")  # of the lock
    remove_scratch(settings.patches)
    for below in ("", "rebase/*/"):  # reports, and the plans of rebases
        remove_scratch(settings.work, below)
    for top in (settings.work, settings.patches):
        for folder in [top, *top.glob("*/")]:
            if folder.is_dir() and not folder.is_symlink():
                recover(folder)
