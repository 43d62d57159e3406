# SPDX-License-Identifier: Apache-2.0
"""The agent of a real board as a tarball: its program, its Python, and a script that starts it."""

from __future__ import annotations

from pathlib import Path

import crosslab
import groundwork
from crosslab.artifact.tarball import write_tar

NAME = "mlc-rvv-board-agent-riscv64"
# What boardfarm.real_board imports; a test runs it with these alone.
MODULES = {
    "groundwork": (Path(groundwork.__file__).parent, ("__init__", "errors")),
    "crosslab": (Path(crosslab.__file__).parent, ("__init__", "address", "errors")),
    "boardfarm": (
        Path(__file__).parent,
        ("__init__", "agent", "board_session", "protocol", "real_board"),
    ),
}


def write_agent(program: Path, project: Path, folder: Path) -> Path:
    """Write the tarball; equal programs and sources give the same bytes.

    Args:
        program: the board's, of :func:`boardfarm.board_program.build_board`.
        project: the project's root, for the licence.
        folder: where the tarball goes.
    """
    members = {
        f"agent/{package}/{name}.py": place / f"{name}.py"
        for package, (place, names) in MODULES.items()
        for name in names
    }
    members |= {name: project / name for name in ("LICENSE", "NOTICE")}
    members |= {"board": program, "join.sh": Path(__file__).with_name("join.sh")}
    target = folder / f"{NAME}.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tar(target, {f"{NAME}/{name}": file for name, file in members.items()})
    return target
