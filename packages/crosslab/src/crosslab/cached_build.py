# SPDX-License-Identifier: Apache-2.0
"""Cached build steps: a directory per hash of inputs, made once, and renamed when complete.

A file next to it has the hash of every file in it. A changed build is made again, not reused.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from rich.console import Console
from rich.markup import escape

from crosslab.errors import UserError
from groundwork.files import atomic_write_json
from groundwork.hashing import sha256_by_path, sha256_of
from groundwork.locks import locked

_console = Console(stderr=True, highlight=False)
#: Builds that this process made or hashed, with their files' times then.
whole_builds: dict[Path, object] = {}
_reused: list[str] = []  # names for :func:`show_reused`


def default_cache() -> Path:
    """Folder of finished builds that clones share."""
    return user_cache_path("mlc-rvv") / "crosslab"


# Compilers and emulators run in other folders, so that a relative path is resolved at once.
CACHE_OPTION: dict[str, Any] = {
    "type": lambda text: Path(text).resolve(),
    "default": default_cache(),
    "help": "folder of finished builds",
}


def cached_build(
    root: Path,
    name: str,
    key: str,
    make: Callable[[Path], None],
    *,
    known: Mapping[str, str] | None = None,
    resumable: bool = False,
    again: bool = False,
) -> Path:
    """Return ``root/name-key``; call ``make(scratch)`` if it is missing.

    ``make`` fills a scratch directory beside the final one, which is renamed when it is
    complete: an interruption leaves nothing that a later run would take for a result.
    Two processes that want the same build wait for each other. What is there is read once a
    process against the hashes recorded when it was made; a damaged one is reported, and made again.

    Args:
        root: folder of all stages.
        name: of the build, for messages.
        key: hash of all its inputs.
        make: fills the scratch directory.
        known: path in the build to sha256, for files with a pinned hash.
        resumable: ``make`` is given what an interrupted or failed run of the same inputs left, and
            checks itself what of it is whole; inputs that it refuses leave nothing.
        again: make it even if it is there; the earlier build is removed first.
    """
    final = root / f"{name}-{key}"
    if not again and final.is_dir():
        if whole_builds.get(final) == _times(final):
            return final
        if not _damage(final, known):
            whole_builds[final] = _times(final)
            note_reused(name)
            return final
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f".{name}-{key}.lock", f"{name} ({key})"):
        if final.is_dir() and not again:
            damage = escape(_damage(final, known))
            if not damage:
                whole_builds[final] = _times(final)
                note_reused(name)
                return final
            _console.print(f"[yellow]{name}: damaged in the cache:[/] {damage}; building it again")
        else:
            _console.print(f"{name}: building ({key})")
            # With again: if make fails, no later run reuses the earlier build.
            _remove(final)
        scratch = root / f".{name}-{key}-part"
        if not resumable:
            for left in root.glob(f".{name}-{key}-*"):  # of a killed run: the lock is ours
                shutil.rmtree(left, ignore_errors=True)
        scratch.mkdir(exist_ok=resumable)
        try:
            make(scratch)
            _remove(final)
            _record(final, scratch)
            scratch.rename(final)
            whole_builds[final] = _times(final)
        except BaseException as error:
            if not resumable or isinstance(error, UserError):
                shutil.rmtree(scratch, ignore_errors=True)
            else:
                _console.print(f"{name}: finished parts are kept for the next run in", scratch)
            raise
    return final


def note_reused(name: str) -> None:
    """Note a result of an earlier run for :func:`show_reused`."""
    if name not in _reused:
        _reused.append(name)


def show_reused() -> None:
    """Print one line with the results of earlier runs that this run took since the last call."""
    if _reused:
        _console.print(f"[dim]reused: {', '.join(_reused)}[/]", soft_wrap=True)
        _reused.clear()


def _times(folder: Path) -> list[tuple[Path, int, int]]:
    """Path, size and time of change of each file: equal while nobody writes to them."""
    paths = [*sorted(folder.rglob("*")), _sums_of(folder)]
    found = ((path, path.stat()) for path in paths if path.is_file())
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]


def _remove(folder: Path) -> None:
    """Remove a folder, if there is one, at once: no process finds half of it."""
    if not folder.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix=".gone-", dir=folder.parent) as gone:
        folder.rename(Path(gone) / "build")


def _sums_of(final: Path) -> Path:
    return final.with_name(f".{final.name}.sums")


def _record(final: Path, content: Path) -> None:
    """Write the hash of every file in ``content``, which becomes ``final``."""
    atomic_write_json(_sums_of(final), sha256_by_path(content))


def _damage(final: Path, known: Mapping[str, str] | None) -> str:
    """Return the first damage of a finished build; empty for a whole build.

    If the hashes are missing, check only the ``known`` files, and record the hashes.
    """
    try:
        sums = json.loads(_sums_of(final).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Made before hashes were kept, or by a run that was killed: accept it unchecked.
        sums = {}
    for name, sha256 in {**sums, **(known or {})}.items():
        path = final / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256_of(path) != sha256:
            return f"{name} is not the file that was made"
    if not sums:
        _record(final, final)
    return ""
