# SPDX-License-Identifier: Apache-2.0
"""Small file systems in memory, for tests of full and of read-only disks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RamDisk:
    """A file system of its own, in memory."""

    path: Path

    def grow(self, size: str) -> None:
        """Give it another size, as in ``64m``."""
        self._remount(f"size={size}")

    def freeze(self) -> None:
        """Make it read-only."""
        self._remount("ro")

    def _remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextmanager
def mounted(size: str, path: Path) -> Iterator[RamDisk]:
    """Mount a file system of a size, as in ``64k``, at a folder, which is made; unmount it then.

    Raises:
        OSError: this process may not mount one.
    """
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield RamDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
