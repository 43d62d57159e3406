# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a checkout, since all sessions share environments, trees and results.

Standard library only: the bootstrap imports this.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from groundwork import locks

NAME = ".run.lock"
#: Set for the processes that a run starts: they work under its lock.
MARK = "MLC_RVV_RUN"
_held: list[FileIO] = []


def acquire(root: Path, *, inheritable: bool = False) -> None:
    """Wait until no other run works in ``root``, and lock it until this process ends.

    Args:
        root: the checkout.
        inheritable: a program that takes this process's place holds it on.

    Raises:
        OSError: the folder cannot be written.
    """
    if os.environ.get(MARK) == str(root):
        return
    _held.append(locks.acquire(root / NAME, str(root), inheritable=inheritable))
    os.environ[MARK] = str(root)
