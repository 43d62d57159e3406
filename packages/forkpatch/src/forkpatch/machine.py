# SPDX-License-Identifier: Apache-2.0
"""Requirements on the machine: a usable git, and free space on its disks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from forkpatch.errors import UserError
from groundwork.errors import remedy_for

#: Older versions cannot merge trees that are given on standard input.
OLDEST_GIT = (2, 39)
#: Free bytes below which a disk is full; git fails before the last block is used.
FULL = 64 << 10


def require_git() -> None:
    """Check that git is installed and recent enough.

    Raises:
        UserError: git is missing or too old.
    """
    wanted = ".".join(map(str, OLDEST_GIT))
    remedy = f"install git {wanted} or newer, and put it first on PATH"
    try:
        done = subprocess.run(["git", "version"], capture_output=True, check=False)
    except OSError as error:
        raise UserError(
            f"git cannot be run: {os.strerror(error.errno or 0)}", remedy=remedy
        ) from error
    version = re.search(rb"(\d+)\.(\d+)[.\d]*", done.stdout)
    if done.returncode or not version:
        raise UserError("git does not print its version", remedy=remedy)
    if (int(version[1]), int(version[2])) < OLDEST_GIT:
        raise UserError(f"git is version {version[0].decode()}, too old", remedy=remedy)


def full(folders: Iterable[Path]) -> str:
    """Return a remedy that names the first folder without free space; empty without one.

    Git itself does not always report a full disk.
    """
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if shutil.disk_usage(existing).free < FULL:
            return f"{existing}: No space left on device; {remedy_for(errno.ENOSPC)}"
    return ""
