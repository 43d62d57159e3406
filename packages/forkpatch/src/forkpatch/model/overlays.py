# SPDX-License-Identifier: Apache-2.0
"""Overlays: whole new files in an upstream's tree, which never replace an upstream file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from forkpatch.errors import UnsafePathError, UserError
from forkpatch.git.objects import TreeFile
from forkpatch.model.patchfile import Patch
from forkpatch.model.stored import typed_value
from forkpatch.safety import FILE_MODES, check_no_symlink, check_path, check_regular

SHADOWS = "shadows.toml"
SHADOW_FORM = "each [[shadow]] has path, symbol, by, why; perhaps instead, defaults"
_NEW = "an overlay is a new file: give it another name, or turn it into a patch"
_UNTOUCHED = "change the overlay itself, and take the file out of the patch"
_IGNORED_FOLDERS = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
_IGNORED_SUFFIXES = {".pyc", ".orig", ".rej", ".swp"}


@dataclass(frozen=True)
class Shadow:
    """A ``[[shadow]]`` entry: an upstream function that an overlay replaces.

    Attributes:
        path: upstream's file.
        symbol: upstream's function in that file.
        by: path of the overlay with the replacement.
        instead: name of the overlay's function, if patches make upstream's callers use another
            name; empty for upstream's name.
        why: reason of the replacement, for readers.
        defaults: reason why a parameter's default differs, by parameter.
        line: line of the entry in the file, from 1.
    """

    path: str
    symbol: str
    by: str
    instead: str = ""
    why: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    line: int = 1


def read_overlays(folder: Path) -> dict[str, TreeFile]:
    """Return the overlay files of a folder, by path in the tree, without caches and shadows.toml.

    Raises:
        UnsafePathError: a file is a symbolic link, or its name is not allowed in a tree.
        UserError: a file is not a regular file.
    """
    files = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _IGNORED_FOLDERS)
        for name in sorted([*names, *(f for f in folders if (Path(parent) / f).is_symlink())]):
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            if not is_overlay(relative):
                continue
            if path.is_symlink():
                raise UnsafePathError(f"overlay {path} is a symbolic link: put a file there")
            check_path(relative, f"overlay {check_regular(path)}")
            files[relative] = _read(path)
    return files


def is_overlay(path: str) -> bool:
    """Return False for a file that is left out of the overlays: see :func:`read_overlays`."""
    one = PurePosixPath(path)
    is_cache = not _IGNORED_FOLDERS.isdisjoint(one.parts[:-1])
    return not (is_cache or one.suffix in _IGNORED_SUFFIXES or path == SHADOWS)


def equals(path: Path, file: TreeFile | None) -> bool:
    """Return True if a path has the content and mode of ``file``; for None, if nothing is there."""
    if path.is_symlink() or not path.is_file():
        return file is None and not os.path.lexists(path)
    return file == _read(path)


def _read(path: Path) -> TreeFile:
    return TreeFile(FILE_MODES[path.stat().st_mode & 0o100 != 0], path.read_bytes())


def check_collisions(
    overlays: Mapping[str, TreeFile],
    modes: Mapping[str, str],
    patches: Iterable[Patch],
    folder: Path,
    upstream: str,
) -> None:
    """Raise UserError if an overlay is at, above or below an upstream or patched file's path."""
    if not overlays:
        return
    taken = {
        path: (f"the patch {patch.name}, which touches {path}", _UNTOUCHED)
        for patch in patches
        for path in patch.paths
    }
    taken |= {path: (f"the file {path} of {upstream}", _NEW) for path in modes}
    # Thousands of files have few folders, so parents are computed once per folder.
    nearest = {path.rpartition("/")[0]: path for path in taken}
    folders = {
        name: (f"the folder {name}/ of {upstream}", _NEW) if path in modes else taken[path]
        for below, path in nearest.items()
        for name in map(str, (PurePosixPath(below), *PurePosixPath(below).parents))
    }
    for path in overlays:
        where = f"overlay {folder / path}"
        check_no_symlink(path, modes, where)
        above = map(str, PurePosixPath(path).parents)
        other = next((taken[item] for item in (path, *above) if item in taken), folders.get(path))
        if other:
            what, remedy = other
            raise UserError(f"{where} collides with {what}", remedy=remedy)


def read_shadows(folder: Path) -> tuple[Shadow, ...]:
    """Return the shadows of an overlay folder; empty without a file of shadows.

    Raises:
        UserError: the file is malformed.
    """
    path = check_regular(folder / SHADOWS)
    if not path.exists():
        return ()
    try:
        text = path.read_text("utf-8")
        lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[shadow]]"]
        shadows = typed_value(tuple[Shadow, ...], tomllib.loads(text).get("shadow", []))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: {error!r}", remedy=SHADOW_FORM) from error
    return tuple(
        replace(one, line=lines[n] if n < len(lines) else 1) for n, one in enumerate(shadows)
    )
