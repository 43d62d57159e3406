# SPDX-License-Identifier: Apache-2.0
"""The lock: releases, and the upstream versions that they are made of, pinned by hash.

.. code-block:: toml

    default-release = "2026.08"

    [releases."2026.08"]                     # one version of each upstream
    foo = "1.2"

    [upstreams.foo]
    url = "https://example.org/foo"
    optional = true                          # may be missing; default false

    [upstreams.foo.versions."1.2"]
    tag = "v1.2"                             # where the commit was looked up; may be absent
    commit = "<40 hexadecimal digits>"       # absent: `lock` looks the tag up; or a wheel only
    include = ["python", "LICENSE"]          # files and folders of the git tree; absent: all
    exclude = ["python/*.cu"]                # globs over git paths; * also spans /
    submodules = ["3rdparty/bar"]            # those that are part of the tree; ["*"] for all
    executable = ["python/run.sh"]           # what git has as executable, of a version with a wheel
    tree = "<git tree id of the materialised tree>"

    [upstreams.foo.versions."1.2".wheel]     # may be absent
    package = "foo"
    version = "1.2.0"
    exclude = ["python/foo/_version.py"]     # git paths that only the wheel has
    map = { "foo" = "python/foo" }           # wheel prefix -> git path; the longest wins
    files = [{ name = "foo-1.2.0-py3-none-any.whl", sha256 = "<64 hexadecimal digits>" }]

Other tables of the file do not belong to the engine, and stay unchanged.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.model.stored import checked_table
from forkpatch.safety import check_name, check_object_id, check_path
from groundwork.files import atomic_write

#: The value of ``include`` for the whole tree.
WHOLE = "."
_RESTORE = "restore it from git, or correct it"
_SHA256 = re.compile("[0-9a-f]{64}")
#: A word of a requirement for pip, which is not an option.
_PIP_WORD = re.compile("[A-Za-z0-9][A-Za-z0-9._+!-]*")
#: Type of the value of each key in the lock's tables.
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("default-release", "url", "tag", "commit", "tree", "package", "version"), str),
    **dict.fromkeys(("releases", "upstreams", "versions", "wheel", "map"), dict),
    **dict.fromkeys(("include", "exclude", "submodules", "executable"), list),
    "optional": bool,
}


@dataclass(frozen=True)
class Wheel:
    """A wheel with the same files as the git tree, under other paths.

    Attributes:
        files: the sha256 of each pinned file of the release, by name.
    """

    package: str
    version: str
    files: Mapping[str, str]
    prefixes: Mapping[str, str]
    exclude: tuple[str, ...]

    def git_path(self, member: str) -> str | None:
        """Return the path in git of the wheel's ``member``; None when git has no such file."""
        for prefix in sorted(self.prefixes, key=len, reverse=True):
            if member == prefix or member.startswith(prefix + "/"):
                path = self.prefixes[prefix] + member[len(prefix) :]
                return None if _matches(path, self.exclude) else path
        return None


@dataclass(frozen=True)
class Upstream:
    """A pinned version of an upstream.

    Attributes:
        commit: the pinned commit; empty when only the wheel is known, or the tag is not looked up
            yet.
        submodules: paths of the submodules whose files are part of the tree; ``*`` for all.
        tree: git tree id of the materialised tree, which has only the included files.
    """

    name: str
    version: str
    url: str
    optional: bool
    tag: str
    commit: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    executable: frozenset[str]
    tree: str
    wheel: Wheel | None
    submodules: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """The included paths; empty for the whole tree."""
        return () if WHOLE in self.include else self.include

    def selects(self, path: str) -> bool:
        """Return True when the git path belongs to the materialised tree."""
        folders = self.folders
        included = any(path == top or path.startswith(top + "/") for top in folders)
        return (included or not folders) and not _matches(path, self.exclude)

    def has_submodule(self, path: str) -> bool:
        """Return True when the submodule at ``path``, or one inside it, is part of the tree."""
        below = any(item.startswith(f"{path}/") for item in self.submodules)
        return below or path in self.submodules or "*" in self.submodules

    @property
    def unpinned(self) -> bool:
        """True for a version whose tag or tree is not looked up yet."""
        return not self.tree or bool(self.tag and not self.commit)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Lock:
    """All releases and upstream versions of a fork."""

    path: Path
    default_release: str
    releases: Mapping[str, Mapping[str, str]]
    upstreams: Mapping[str, Mapping[str, Upstream]]

    def release(self, name: str | None = None) -> tuple[str, tuple[Upstream, ...]]:
        """Return name and upstreams of a release, or the default; raise UserError if unknown."""
        chosen = name or self.default_release
        if chosen not in self.releases:
            raise UserError(
                f"{self.path.name} has no release {chosen!r}",
                remedy=f"releases: {', '.join(self.releases) or 'none'}",
            )
        pairs = self.releases[chosen].items()
        return chosen, tuple(self.upstream(upstream, version) for upstream, version in pairs)

    def upstream(self, name: str, version: str) -> Upstream:
        """Return an upstream's version, by its name or tag; raise UserError if unknown."""
        versions = self.versions(name)
        by_tag = {item.tag: item for item in versions.values() if item.tag}
        if match := versions.get(version) or by_tag.get(version):
            return match
        raise UserError(
            f"{self.path.name} has no version {version!r} of {name}",
            remedy=f"versions: {', '.join(versions) or 'none'}",
        )

    def versions(self, name: str) -> Mapping[str, Upstream]:
        """Return all pinned versions of an upstream, by name; raise UserError if it is unknown."""
        if name not in self.upstreams:
            raise UserError(
                f"{self.path.name} has no upstream {name!r}",
                remedy=f"upstreams: {', '.join(self.upstreams) or 'none'}",
            )
        return self.upstreams[name]


def read_lock(path: Path) -> Lock:
    """Read and validate the lock.

    Raises:
        UserError: the lock is not TOML, lacks a field, or has an unsafe name or path.
    """
    try:
        return parse_lock(path.read_text(encoding="utf-8"), path)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: {error}", remedy=_RESTORE) from error


def write_lock(path: Path, text: str) -> Lock:
    """Write the lock's new text, after a check that it can be read; return the lock.

    Raises:
        UserError: ``text`` is not a valid lock; the file is unchanged.
    """
    lock = parse_lock(text, path)
    try:
        atomic_write(path, text)
    except UnicodeEncodeError as error:
        part = text[max(0, error.start - 40) : error.end]
        raise UserError(
            f"{path}: TOML cannot hold {part!r}: it is not UTF-8",
            remedy="rename the folder or the file",
        ) from error
    return lock


def parse_lock(text: str, path: Path) -> Lock:
    """Return the lock that ``text`` describes; ``path`` is its present or future file.

    Raises:
        UserError: the lock is not TOML, lacks a field, or has an unsafe name or path.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}", remedy=_RESTORE) from error
    if not document:
        raise UserError(
            f"{path} is empty", remedy=f"restore it from git, or begin: {typed('init')}"
        )
    try:
        return _parse(document, path)
    except KeyError as error:
        raise UserError(f"{path}: the key {error} is missing", remedy=_RESTORE) from error


def _parse(document: Mapping[str, Any], path: Path) -> Lock:
    _checked(document, path.name)
    upstreams: dict[str, dict[str, Upstream]] = {}
    for name, entries in document["upstreams"].items():
        check_name(name, f"{path.name}: upstream")
        table = _checked(entries, f"{path.name}: {name}")
        upstreams[name] = {
            check_name(version, f"{path.name}: version of {name}"): _upstream(
                name, version, table, entry, f"{path.name}: {name} {version}"
            )
            for version, entry in table["versions"].items()
        }
    releases = {
        check_name(name, f"{path.name}: release"): _texts(table, f"{path.name}: release {name}")
        for name, table in document["releases"].items()
    }
    default = document.get("default-release") or next(reversed(releases), "")
    return Lock(path, default, releases, upstreams)


def _checked(table: object, where: str) -> dict[str, Any]:
    """Return a table after a check of the values whose types are known; else raise UserError."""
    return checked_table(table, _KINDS, where, _RESTORE, closed=False)


def _texts(table: object, where: str) -> dict[str, str]:
    """Return a table of texts; raise UserError for another value."""
    keys = table if isinstance(table, dict) else ()
    return checked_table(table, dict.fromkeys(keys, str), where, _RESTORE)


def _upstream(
    name: str, version: str, table: Mapping[str, Any], entry: Mapping[str, Any], where: str
) -> Upstream:
    _checked(entry, where)
    include = entry.get("include", [WHOLE])
    if not include:
        raise UserError(
            f"{where}: include names no file and no folder, so nothing is pinned",
            remedy='name what the fork needs: include = ["src", "LICENSE"]; without the key it'
            " is the whole tree",
        )
    url = table["url"]
    if url.startswith("-") or "::" in url:  # git would take it for an option or a remote helper
        raise UserError(f"{where}: url = {url!r} is not a plain URL", remedy=_RESTORE)
    wheel = _wheel(entry["wheel"], f"{where}: wheel") if "wheel" in entry else None
    wheel_only = wheel is not None and not {"commit", "tag"} & entry.keys()
    later = bool(entry.get("tag")) and not entry.get("commit")
    return Upstream(
        name=name,
        version=version,
        url=url,
        optional=bool(table.get("optional", False)),
        tag=entry.get("tag", ""),
        commit="" if later or wheel_only else check_object_id(entry["commit"], f"{where}: commit"),
        include=tuple(item if item == WHOLE else check_path(item, where) for item in include),
        exclude=tuple(entry.get("exclude", ())),
        executable=frozenset(entry.get("executable", ())),
        tree=check_object_id(entry["tree"], f"{where}: tree") if entry.get("tree") else "",
        wheel=wheel,
        submodules=tuple(
            item if item == "*" else check_path(item, where) for item in entry.get("submodules", ())
        ),
    )


def _wheel(entry: Mapping[str, Any], where: str) -> Wheel:
    _checked(entry, where)
    listed = entry["files"] if isinstance(entry["files"], list) else [entry["files"]]
    files = {
        item["name"]: item["sha256"] for item in (_texts(one, f"{where} files") for one in listed)
    }
    for sha256 in files.values():
        if not _SHA256.fullmatch(sha256):  # it names a folder of the cache
            raise UserError(
                f"{where}: files: sha256 = {sha256!r}: it must be 64 hexadecimal digits",
                remedy=_RESTORE,
            )
    for key in ("package", "version"):
        if not _PIP_WORD.fullmatch(entry[key]):
            raise UserError(f"{where}: {key} = {entry[key]!r} is not a plain name", remedy=_RESTORE)
    prefixes = _texts(entry["map"], f"{where} map")
    return Wheel(
        package=entry["package"],
        version=entry["version"],
        files=files,
        prefixes={prefix: check_path(to, f"{where}: map") for prefix, to in prefixes.items()},
        exclude=tuple(entry.get("exclude", ())),
    )


def _matches(path: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)
