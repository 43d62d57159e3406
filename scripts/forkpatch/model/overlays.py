# SPDX-License-Identifier: Apache-2.0
"""Overlays: whole new files laid into an upstream's tree, never over a file of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

from forkpatch.errors import UnsafePathError, UserError
from forkpatch.git.objects import TreeFile
from forkpatch.model.patchfile import Patch
from forkpatch.safety import FILE_MODES, check_no_symlink, check_path

SHADOWS = "shadows.toml"
_IGNORED_FOLDERS = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
_IGNORED_SUFFIXES = {".pyc", ".orig", ".rej", ".swp"}


def read_overlays(folder: Path) -> dict[str, TreeFile]:
    """All overlay files of one upstream, by their path in its tree.

    Raises:
        UnsafePathError: a file is a symbolic link, or its name is not allowed in a tree.
    """
    files = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _IGNORED_FOLDERS)
        for name in sorted([*names, *(f for f in folders if (Path(place) / f).is_symlink())]):
            path = Path(place, name)
            relative = path.relative_to(folder).as_posix()
            if path.suffix in _IGNORED_SUFFIXES or relative == SHADOWS:
                continue
            if path.is_symlink():
                raise UnsafePathError(f"overlay {path} is a symbolic link: put a file there")
            check_path(relative, f"overlay {path}")
            mode = FILE_MODES[1] if path.stat().st_mode & 0o100 else FILE_MODES[0]
            files[relative] = TreeFile(mode, path.read_bytes())
    return files


def check_collisions(
    overlays: Mapping[str, TreeFile],
    modes: Mapping[str, str],
    patches: Iterable[Patch],
    folder: Path,
    upstream: str,
) -> None:
    """Raise when an overlay takes the place of an upstream file, or a patch touches one.

    Args:
        overlays: the overlay files by path.
        modes: mode by path of the upstream's files.
        patches: the series.
        folder: the overlays' folder, for the message.
        upstream: name and version, for the message.
    """
    folders = {parent.as_posix() for path in modes for parent in PurePosixPath(path).parents}
    touched = {path: patch.name for patch in patches for path in patch.paths}
    below = {parent.as_posix(): path for path in touched for parent in PurePosixPath(path).parents}
    for path in overlays:
        where = f"overlay {folder / path}"
        check_no_symlink(path, modes, where)
        blocker = _blocker(path, modes, folders)
        if blocker:
            raise UserError(
                f"{where} collides with {blocker} of {upstream}",
                remedy="an overlay is a new file: give it another name, or turn it into a patch",
            )
        above = (parent.as_posix() for parent in PurePosixPath(path).parents)
        hit = next((one for one in (path, *above) if one in touched), below.get(path))
        if hit:
            raise UserError(
                f"{where} collides with the patch {touched[hit]}, which touches {hit}",
                remedy="change the overlay itself, and take the file out of the patch",
            )


def _blocker(path: str, files: Collection[str], folders: Collection[str]) -> str:
    """The upstream file or folder that excludes a new file at ``path``; empty without one."""
    if path in files:
        return f"the file {path}"
    if path in folders:
        return f"the folder {path}/"
    above = [parent.as_posix() for parent in PurePosixPath(path).parents]
    return next((f"the file {parent}" for parent in above if parent in files), "")
