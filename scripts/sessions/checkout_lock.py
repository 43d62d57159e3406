# SPDX-License-Identifier: Apache-2.0
"""A lock for one run at a time in a checkout: sessions share environments, trees and results.

Standard library only: the bootstrap imports this module.
"""

from __future__ import annotations

import errno
import os
import shlex
from io import FileIO
from pathlib import Path

from groundwork import locks
from groundwork.errors import USER_MISTAKE, CommandError, remedy_for

NAME = ".run.lock"
#: Set for the processes that a run starts, which work under the run's lock.
MARK = "MLC_RVV_RUN"
_held: list[FileIO] = []


def acquire(root: Path, *, inheritable: bool = False) -> None:
    """Wait until no other run works in ``root``, and lock it until this process ends.

    A process that a run in ``root`` has started works under that run's lock, and does not wait.

    Args:
        root: the checkout.
        inheritable: True if a program that replaces this process keeps the lock.

    Raises:
        CommandError: the folder cannot be written.
    """
    if os.environ.get(MARK) == str(root):
        return
    try:
        _held.append(locks.acquire(root / NAME, str(root), inheritable=inheritable))
    except OSError as error:
        raise refused(root, error) from error
    os.environ[MARK] = str(root)


def refused(root: Path, error: OSError) -> CommandError:
    """Return the error for a checkout that this user cannot write to."""
    clone = f"git clone {shlex.quote(str(root))} ~/mlc-rvv && cd ~/mlc-rvv"
    if root.stat().st_uid != os.geteuid():  # git reads no repository of another user
        safe = f"git config --global --add safe.directory {shlex.quote(str(root / '.git'))}"
        clone = f"{safe} && {clone}"
    is_denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return CommandError(
        f"{error.filename or root} cannot be written: {error.strerror or error}",
        remedy=f"make a clone of your own: {clone}" if is_denied else remedy_for(error.errno),
        exit_code=USER_MISTAKE,
    )
