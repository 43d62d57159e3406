# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine before a session: free space on its disks, and missing tools."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from groundwork import apt
from groundwork.errors import FREE_SPACE, USER_MISTAKE, CommandError

GB = 10**9
#: Bytes that a session's first run writes to checkout and cache; True: it builds for RISC-V.
ROOM = {True: (GB, 3 * GB // 2), False: (GB // 4, 0)}


def check_room(root: Path, session: str, *, lab: bool) -> None:
    """Check the free space before the first run of a session.

    Args:
        root: the checkout.
        session: name of the session.
        lab: True if the session builds for RISC-V.

    Raises:
        CommandError: a disk has too little free space.
    """
    if (root / ".nox" / session).is_dir():
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    needed: dict[int, tuple[Path, int]] = {}
    for wanted, size in zip((root, cache), ROOM[lab], strict=True):
        folder = next(parent for parent in (wanted, *wanted.parents) if parent.is_dir())
        device = folder.stat().st_dev
        first, before = needed.get(device, (folder, 0))
        needed[device] = (first, before + size)
    for folder, size in needed.values():
        free = shutil.disk_usage(folder).free
        if free < size:
            raise CommandError(
                f"the disk of {folder} has {free / GB:.1f} GB free; the first run of {session} "
                f"needs {size / GB:.1f} GB there",
                remedy=FREE_SPACE,
                exit_code=USER_MISTAKE,
            )


def check_tools(doctor: Any) -> None:
    """Check that no tool is missing, unless this user can install packages.

    Args:
        doctor: module that finds missing tools for RISC-V; None for a session without RISC-V.

    Raises:
        CommandError: git is missing, or a tool that ziglang cannot replace is missing.
    """
    if not (refusal := apt.refusal()):
        return
    tools = doctor.missing_packages(doctor.examine()) if doctor else ()
    git = [] if shutil.which("git") else ["git"]
    if git or not all(tool.replaced for tool in tools):
        names = [*git, *(tool.name for tool in tools)]
        raise CommandError(
            f"missing tools: {', '.join(names)}: {refusal}",
            remedy=apt.command_line([*git, *dict.fromkeys(tool.packages[0] for tool in tools)]),
            exit_code=USER_MISTAKE,
        )
