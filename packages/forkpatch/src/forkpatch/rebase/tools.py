# SPDX-License-Identifier: Apache-2.0
"""Merge programs of the user for conflicts: ``git mergetool``, and the syntax merge mergiraf.

Their results are checked like git's own merge: every change of the patch must be in its place.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from forkpatch.errors import ForkError, UserError
from forkpatch.git.objects import read_blobs, read_index, tree_id
from forkpatch.output import warn
from forkpatch.rebase.conflicts import files_after, placed_wrongly
from forkpatch.rebase.plan import RebaseStep
from forkpatch.rebase.workspace import Rebase
from forkpatch.safety import FILE_MODES
from forkpatch.symbols.outline import outline

_MERGIRAF = "mergiraf"
_PATIENCE = 60  # seconds per file
_STAGES = ("1", "2", "3")


def run_merge_tool(rebase: Rebase) -> None:
    """Run ``git mergetool`` with the user's configuration on the conflicting files.

    Raises:
        UserError: git's index has no conflicts.
        ForkError: a file still has conflicts.
    """
    if not _unmerged(rebase):
        raise UserError(
            "no file has a conflict that a merge tool can show",
            remedy=f"resolve it in {rebase.tree}, then go on with --continue",
        )
    # No backup: forkpatch would add the copy to the patch as a new file.
    command = ("git", "-C", str(rebase.tree), "-c", "mergetool.keepBackup=false", "mergetool")
    subprocess.run(command, check=False)
    if left := sorted(_unmerged(rebase)):
        raise ForkError(
            f"{', '.join(left)}: the merge tool left conflicts",
            remedy=f"type the same command again, or resolve them in {rebase.tree}",
        )


def merge_by_syntax(rebase: Rebase, step: RebaseStep) -> str:
    """Return the tree in which mergiraf resolved every conflict; empty without a proven merge."""
    program = shutil.which(_MERGIRAF)
    if program is None:
        return ""
    index = read_index(rebase.git)
    files = {path: held["0"] for path, held in index.items() if "0" in held}
    for path in _unmerged(rebase):
        data = _merged(rebase, program, path, index[path])
        if data is None:
            return ""
        blob = rebase.git.text("hash-object", "-w", "--no-filters", "--stdin", stdin=data)
        files[path] = index[path]["2"][0], blob
    tree = tree_id(rebase.git, files)
    if reason := _not_proved(rebase, step, tree):
        warn(f"{step.patch}: the merge by {_MERGIRAF} is not used: {reason}")
        return ""
    return tree


def _not_proved(rebase: Rebase, step: RebaseStep, tree: str) -> str:
    """Return why a merge is not proven: a misplaced change, or a symbol without its change."""
    now = files_after(rebase, step.patch, tree)
    if wrong := placed_wrongly(rebase, step.patch, now):
        return wrong[0].detail
    before = files_after(rebase, step.patch, rebase.plan.head)
    for place in rebase.record.patches[step.patch]:
        path = rebase.base.path_of(place.path)
        bodies = [outline(path, files.get(path, b"")).body(place.symbol) for files in (before, now)]
        if bodies[0] == bodies[1]:
            return f"{path}: {place.symbol} lacks its change"
    return ""


def _unmerged(rebase: Rebase) -> set[str]:
    """Return the paths with conflicts in git's index."""
    return {path for path, held in read_index(rebase.git).items() if set(held) & set(_STAGES)}


def _merged(
    rebase: Rebase, program: str, path: str, held: Mapping[str, tuple[str, str]]
) -> bytes | None:
    """Return a file merged by its syntax; None if conflicts remain or a side lacks the file."""
    if set(held) != set(_STAGES) or any(mode not in FILE_MODES for mode, _ in held.values()):
        return None
    blobs = read_blobs(rebase.git, (oid for _, oid in held.values()))
    with tempfile.TemporaryDirectory(prefix="forkpatch-") as folder:
        inputs = [Path(folder, f"{stage}{PurePosixPath(path).suffix}") for stage in _STAGES]
        for input_file, stage in zip(inputs, _STAGES, strict=True):
            input_file.write_bytes(blobs[held[stage][1]] or b"")
        command = [program, "merge", *map(str, inputs), "--path-name", path]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None if done.returncode else done.stdout
