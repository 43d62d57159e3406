# SPDX-License-Identifier: Apache-2.0
"""Calls of compilers and linkers."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from crosslab.errors import LabError

FIRST_LINES = 25


def shared_linker(command: Sequence[str], triple: str) -> Callable[..., None]:
    """Return a link function for TVM's ``export_library``, which by itself calls g++.

    Args:
        command: compiler command, perhaps of several words.
        triple: target triple of what is linked.
    """

    def link(output: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        line = [*command, "-shared", "-fPIC", "-o", output, *objects, *options]
        run_compiler("linking a model", line, Path(output).parent)

    link.get_target_triple = lambda: triple  # type: ignore[attr-defined]
    return link


def run_compiler(doing: str, command: Sequence[str], folder: Path) -> None:
    """Run a compiler, a linker or a build tool in a folder.

    Args:
        doing: name of the step, for the error.
        command: with all its options.
        folder: working folder of the program.

    Raises:
        LabError: the program fails; the error has the first lines that it printed.
    """
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        first = "\n  ".join(said.splitlines()[:FIRST_LINES])
        raise LabError(f"{doing} failed:\n  {shlex.join(command)}\n  {first}")
