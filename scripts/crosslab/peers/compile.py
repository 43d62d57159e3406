# SPDX-License-Identifier: Apache-2.0
"""Building peers: the compiler that they are built with, and its errors."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import CompilerKind, Toolchain, find_cross


def require_clang(peer: str) -> Toolchain:
    """Clang for riscv64.

    Raises:
        UserError: it is not here.
    """
    toolchain = find_cross()
    if toolchain.kind is not CompilerKind.CLANG:
        raise UserError(
            f"{peer} is built with clang, which is missing",
            remedy="type: uv run crosslab prepare",
        )
    return toolchain


def run_build(peer: str, command: Sequence[str]) -> None:
    """Run a command of a build.

    Raises:
        LabError: it fails; its last lines are in the message.
    """
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        last = "\n".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-20:])
        raise LabError(f"building {peer} failed at {Path(command[0]).name}:\n{last}")
