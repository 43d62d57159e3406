# SPDX-License-Identifier: Apache-2.0
"""Settings of a fork: ``[tool.forkpatch]`` of its pyproject.toml, with defaults."""

from __future__ import annotations

import os
import posixpath
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import Git
from forkpatch.model.stored import checked_table
from forkpatch.safety import check_name, check_own, check_regular

_LOCK = "VERSIONS.lock"
#: Type of each key's value.
_KEYS = {
    **dict.fromkeys(("cache", "patches", "overlays", "work", "lock"), str),
    **dict.fromkeys(("test", "builds", "with", "require"), list),
    "map": dict,
}


@dataclass(frozen=True)
class Settings:
    """The layout and the settings of a fork.

    Attributes:
        root: the fork's root, which holds all other folders except the cache.
        lock: the TOML file that pins the upstreams.
        patches: ``<patches>/<upstream>/<version>/series`` and the patch files.
        overlays: ``<overlays>/<upstream>/<path in the upstream tree>``.
        work: folder of the patched trees, ``<work>/<release>/<upstream>``.
        cache: folder of pristine trees, wheels and remembered mirrors, shared between clones.
        test: command that runs one test, whose id is appended; exit code 0: passed, 77: did not
            run, as in automake.
        builds: patterns, as in ``.gitignore``, of build outputs in the trees, which an apply keeps
            and ignores.
        combinations: options of each combination that `check` applies, separated by blanks; empty:
            no option, and each option by itself.
        require: what `check` demands of a patch's message: ``subject`` (at most 72 characters),
            ``reason`` (a paragraph), and names of trailers.
        map: settings of the applicability map, described in inspect/probe.py.
    """

    root: Path
    lock: Path
    patches: Path
    overlays: Path
    work: Path
    cache: Path
    test: tuple[str, ...]
    builds: tuple[str, ...] = ()
    combinations: tuple[str, ...] = ()
    require: frozenset[str] = frozenset()
    map: Mapping[str, Any] = field(default_factory=dict)


def find_root(start: Path) -> Path:
    """Return the fork's root: ``start`` or the nearest parent folder with a lock.

    Without a lock, the result is ``start``, which :func:`load_settings` then refuses.

    Raises:
        UserError: there is no lock, and a pyproject.toml on the way is wrong.
    """
    start, wrong = start.resolve(), None
    for folder in (start, *start.parents):
        lock = _LOCK
        try:
            lock = _table(folder / "pyproject.toml").get("lock", lock)
        except UserError as error:  # maybe a folder within a fork, such as a fixture of a test
            wrong = wrong or error
        if (folder / lock).is_file():
            return folder
    if wrong:
        raise wrong
    return start


def load_settings(root: Path, *, new: bool = False) -> Settings:
    """Return the settings of the fork at ``root``; a new fork needs no lock yet.

    Raises:
        UserError: ``root`` is not a fork; or ``[tool.forkpatch]`` has an unknown key, a value of
            another type, or a path that leaves the fork or endangers its files.
    """
    root = root.resolve()
    table = _table(root / "pyproject.toml")
    defaults = {"lock": _LOCK, "patches": "patches", "overlays": "overlays", "work": ".work"}
    paths = {key: _inside(root, key, table.get(key, value)) for key, value in defaults.items()}
    if "work" in table:
        _check_work(root, paths)
    settings = Settings(
        root=root,
        **{key: root / path for key, path in paths.items()},
        cache=platformdirs.user_cache_path(
            check_name(table.get("cache", "forkpatch"), f"{root / 'pyproject.toml'}: cache")
        )
        / "forkpatch",
        builds=tuple(table.get("builds", ())),
        combinations=tuple(table.get("with", ())),
        require=frozenset(table.get("require", ())),
        map=table.get("map", {}),
        test=tuple(table.get("test", (sys.executable, "-m", "forkpatch.runtest"))),
    )
    check_own(settings.lock)
    if not new and not settings.lock.exists():
        raise UserError(
            f"{root} is not a fork's root: it has no {settings.lock.name}",
            remedy="change to the fork's root, or give it: --root DIR; or begin one:"
            f" {typed('init URL')}",
        )
    return settings


def _inside(root: Path, key: str, value: str) -> str:
    """Return the normalized path of a setting; raise UserError if it is not below the root."""
    plain = posixpath.normpath(value)
    if value and not value.startswith("/") and plain.split("/")[0] not in (".", "..", ".git"):
        return plain
    raise UserError(
        f"{root / 'pyproject.toml'}: [tool.forkpatch] {key} = {value!r} is outside the fork",
        remedy="name a place below its root, by a relative path; or leave the key out",
    )


def _check_work(root: Path, paths: Mapping[str, str]) -> None:
    """Raise UserError when the work folder, where trees are removed, holds files of the fork."""
    work = PurePosixPath(paths["work"])
    inside = [
        path
        for path in map(PurePosixPath, (paths["lock"], paths["patches"], paths["overlays"]))
        if work in (path, *path.parents) or path in work.parents
    ]
    tracked = ("ls-files", "--", f":(literal){work}") if (root / ".git").exists() else ()
    if tracked and not inside:
        listed = Git(root / ".git", root).run(*tracked, ok=range(256)).stdout
        inside = [PurePosixPath(os.fsdecode(line)) for line in listed.splitlines()[:1]]
    if inside:
        raise UserError(
            f"{root / 'pyproject.toml'}: [tool.forkpatch] work = {paths['work']!r} holds the fork's"
            f" own files, or lies among them: {inside[0]}",
            remedy="name a folder that nothing else uses; or leave the key out: .work",
        )


def _table(pyproject: Path) -> dict[str, Any]:
    """Return the table ``[tool.forkpatch]``, empty without one; raise UserError if it is wrong."""
    if not check_regular(pyproject).exists():
        return {}
    try:
        document = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{pyproject}: {error}", remedy="correct the TOML syntax") from error
    tool = document.get("tool", {})
    table = tool.get("forkpatch", {}) if isinstance(tool, dict) else {}
    return checked_table(table, _KEYS, f"{pyproject}: [tool.forkpatch]")
