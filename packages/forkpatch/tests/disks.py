# SPDX-License-Identifier: Apache-2.0
"""Small file systems in memory, for tests of full and read-only disks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Disk:
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Makes a file system of a size named as in ``64k``, at a path; skips where it may not."""
    with ExitStack() as mounted:

        def make(size: str, path: Path = tmp_path / "disk") -> Disk:
            path.mkdir(parents=True, exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
            mounted.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            return Disk(path)

        yield make
