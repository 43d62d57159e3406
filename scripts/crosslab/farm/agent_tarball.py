# SPDX-License-Identifier: Apache-2.0
"""The agent of a real board as a tarball: its program, its Python, and a script that starts it."""

from __future__ import annotations

from pathlib import Path

from crosslab.artifact.tarball import write_tar

NAME = "mlc-rvv-board-agent-riscv64"
SCRIPTS = Path(__file__).parents[2]
# What crosslab.farm.real_board imports; a test runs it with these alone.
MODULES = (
    *("common/__init__.py", "common/errors.py", "crosslab/__init__.py", "crosslab/errors.py"),
    *(f"crosslab/farm/{name}.py" for name in ("__init__", "agent", "board_session")),
    *(f"crosslab/farm/{name}.py" for name in ("protocol", "real_board")),
)


def write_agent(program: Path, project: Path, folder: Path) -> Path:
    """Write the tarball; equal programs and sources give the same bytes.

    Args:
        program: the board's, of :func:`crosslab.farm.board_program.build_board`.
        project: the project's root, for the licence.
        folder: where the tarball goes.
    """
    members = {f"agent/{module}": SCRIPTS / module for module in MODULES}
    members |= {name: project / name for name in ("LICENSE", "NOTICE")}
    members |= {"board": program, "join.sh": Path(__file__).with_name("join.sh")}
    target = folder / f"{NAME}.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_tar(target, {f"{NAME}/{name}": file for name, file in members.items()})
    return target
