# SPDX-License-Identifier: Apache-2.0
"""The agent of a real board as a tarball: its program, its Python modules, and its start script."""

from __future__ import annotations

from pathlib import Path

import crosslab
import groundwork
from crosslab.artifact.tarball import write_tar

NAME = "mlc-rvv-board-agent-riscv64"
# The modules that boardfarm.real_board imports; a test runs it with only these.
MODULES = {
    "groundwork": (Path(groundwork.__file__).parent, ("__init__", "errors")),
    "crosslab": (Path(crosslab.__file__).parent, ("__init__", "address", "errors")),
    "boardfarm": (
        Path(__file__).parent,
        ("__init__", "agent", "board_session", "protocol", "real_board"),
    ),
}


def write_agent(program: Path, project: Path, folder: Path) -> Path:
    """Write the agent's tarball and return its path; equal programs and sources give equal bytes.

    Args:
        program: the board's program, from :func:`boardfarm.board_program.build_board`.
        project: the project's root, for the licence.
        folder: folder of the tarball.
    """
    members = {
        f"agent/{package}/{name}.py": package_folder / f"{name}.py"
        for package, (package_folder, names) in MODULES.items()
        for name in names
    }
    members |= {name: project / name for name in ("LICENSE", "NOTICE")}
    members |= {"board": program, "join.sh": Path(__file__).with_name("join.sh")}
    target = folder / f"{NAME}.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tar(target, {f"{NAME}/{name}": file for name, file in members.items()})
    return target
