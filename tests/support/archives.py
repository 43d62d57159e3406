# SPDX-License-Identifier: Apache-2.0
"""Tarballs unpacked in tests by GNU tar: Python has a safe filter since 3.11.4 only."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(tarball: Path, folder: Path) -> None:
    """Unpack a tarball into a folder, which is made where it is missing.

    GNU tar keeps every member inside: it drops a leading ``/`` and refuses ``..``.

    Raises:
        subprocess.CalledProcessError: it is no tarball, or a member is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["tar", "--extract", "--no-same-owner", f"--file={tarball}", f"--directory={folder}"]
    subprocess.run(command, check=True)
