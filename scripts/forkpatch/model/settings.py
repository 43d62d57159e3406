# SPDX-License-Identifier: Apache-2.0
"""Settings of a fork: ``[tool.forkpatch]`` of its pyproject.toml, with defaults."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from forkpatch.errors import UserError

_LOCK = "VERSIONS.lock"
_KEYS = {"cache", "patches", "overlays", "work", "lock", "test", "map", "builds"}


@dataclass(frozen=True)
class Settings:
    """The layout of one fork.

    Attributes:
        root: the fork's root; everything else but the cache lies under it.
        lock: the TOML file that pins the upstreams.
        patches: ``<patches>/<upstream>/<version>/series`` and the patch files.
        overlays: ``<overlays>/<upstream>/<path in the upstream tree>``.
        work: folder of patched trees, ``<work>/<release>/<upstream>``.
        cache: pristine trees, wheels and remembered mirrors, shared between clones.
        test: the command that runs one test; the test's id is appended. It exits with 0 when
            the test passed and with 77 when it did not run, as for automake.
        builds: patterns, as in ``.gitignore``, of what is built inside of the trees: it does not
            make an apply refuse, and stays.
        map: settings of the applicability map; inspect/applicability.py describes them.
    """

    root: Path
    lock: Path
    patches: Path
    overlays: Path
    work: Path
    cache: Path
    test: tuple[str, ...]
    builds: tuple[str, ...] = ()
    map: Mapping[str, Any] = field(default_factory=dict)


def find_root(start: Path) -> Path:
    """The fork's root: ``start`` or the nearest folder above it that has a lock.

    Where there is none it is ``start``, about which :func:`load_settings` complains.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / _table(folder / "pyproject.toml").get("lock", _LOCK)).is_file():
            return folder
    return start


def load_settings(root: Path, *, new: bool = False) -> Settings:
    """Read the settings of the fork at ``root``; of a new one, which has no lock yet.

    Raises:
        UserError: ``root`` is no fork, or ``[tool.forkpatch]`` holds something unknown.
    """
    root = root.resolve()
    table = _table(root / "pyproject.toml")
    if unknown := sorted(set(table) - _KEYS):
        raise UserError(
            f"{root / 'pyproject.toml'}: [tool.forkpatch] has unknown keys: {', '.join(unknown)}",
            remedy=f"the keys are: {', '.join(sorted(_KEYS))}",
        )
    settings = Settings(
        root=root,
        lock=root / table.get("lock", _LOCK),
        patches=root / table.get("patches", "patches"),
        overlays=root / table.get("overlays", "overlays"),
        work=root / table.get("work", ".work"),
        cache=platformdirs.user_cache_path(table.get("cache", "forkpatch")) / "forkpatch",
        builds=tuple(table.get("builds", ())),
        map=table.get("map", {}),
        test=tuple(table.get("test", (sys.executable, "-m", "forkpatch.runtest"))),
    )
    if not new and not settings.lock.is_file():
        raise UserError(
            f"{root} is not a fork's root: it has no {settings.lock.name}",
            remedy="change to the fork's root, or give it: --root DIR; or begin one:"
            " forkpatch init URL",
        )
    return settings


def _table(pyproject: Path) -> dict[str, Any]:
    if not pyproject.is_file():
        return {}
    try:
        document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{pyproject}: {error}", remedy="correct the TOML syntax") from error
    table: dict[str, Any] = document.get("tool", {}).get("forkpatch", {})
    return table
