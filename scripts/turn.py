# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a checkout: environments, trees and results are shared by all sessions.

Standard library only, on any system: where there is no ``flock``, runs are not kept apart.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

NAME = ".run.lock"
#: Set for the processes that a run starts: they work under its lock.
MARK = "MLC_RVV_RUN"
_held: list[IO[str]] = []


def take(root: Path) -> None:
    """Wait until no other run works in ``root``, and hold it until this process ends.

    Raises:
        OSError: the folder cannot be written.
    """
    if fcntl is None or os.environ.get(MARK) == str(root):
        return
    handle = (root / NAME).open("a+", encoding="ascii")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        other = handle.read().strip() or "?"
        print(f"waiting: process {other} works in {root}", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    handle.seek(0)
    handle.truncate()
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    _held.append(handle)
    os.environ[MARK] = str(root)
