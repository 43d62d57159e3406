# SPDX-License-Identifier: Apache-2.0
"""Small file systems in memory, for tests of full and of read-only disks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class RamDisk:
    """A mounted file system in memory."""

    path: Path

    def grow(self, size: str) -> None:
        """Change the size of the file system to ``size``, as in ``64m``."""
        self._remount(f"size={size}")

    def freeze(self) -> None:
        """Mount the RAM disk again, read-only."""
        self._remount("ro")

    def _remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextmanager
def mounting(default: Path, refuse: Callable[[str], NoReturn]) -> Iterator[Callable[..., RamDisk]]:
    """Yield a function that mounts file systems in memory; unmount all of them at the end.

    The function's arguments are a size, as in ``64k``, and optionally a folder, which it makes.

    Args:
        default: the folder if the call names none.
        refuse: called with the reason if this process may not mount; raises, as a test's skip does.
    """
    with ExitStack() as mounted:

        def mount(size: str, path: Path = default) -> RamDisk:
            path.mkdir(parents=True, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                refuse(f"no file system can be mounted here: {done.stderr.strip()}")
            mounted.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            return RamDisk(path)

        yield mount
