# SPDX-License-Identifier: Apache-2.0
"""Changes to the lock's text: renewed pins, an added version; the rest is unchanged.

These functions write no file: the lock is written once, when every pin is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tomlkit

from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.model.lock import Lock, Upstream
from forkpatch.pins.tags import name_of_version, prefix_of, series_of, version_of
from forkpatch.pins.versions import tags_of
from forkpatch.safety import check_name, check_object_id


def add_version(
    text: str,
    lock: Lock,
    like: Upstream,
    version: str,
    *,
    tag: str,
    commit: str,
    wheel_only: bool,
    places: Sequence[str],
) -> str:
    """Append a version of an upstream to a lock, with the layout of another version.

    Args:
        text: present text of the lock.
        lock: present content of the lock.
        like: version whose paths, globs and wheel layout are copied.
        version: the new version's name. A whole tag of the other version's scheme is shortened to
            its version, as :func:`forkpatch.pins.begin.first_lock` does.
        tag: tag of the new version; empty: found by the version and the other version's prefix.
        commit: commit of the new version, if it has no tag.
        wheel_only: True when the commit of the wheel is unknown.
        places: repositories that are searched for the tag.

    Returns:
        The text with the new version, whose tree is not looked up yet.

    Raises:
        UserError: the lock has the version already, no repository has the tag, or the upstream
            has no wheel for ``wheel_only``.
    """
    if not (tag or commit) and like.tag and prefix_of(version) == prefix_of(like.tag):
        version = name_of_version(version)
    check_name(version, "version")
    if version in lock.versions(like.name):
        raise UserError(f"the lock has {like.name} {version} already")
    if wheel_only:
        if tag or commit or not (like.wheel and version_of(version)):
            raise UserError(
                f"{like.name} {version} cannot be pinned as a wheel only",
                remedy="give neither --tag nor --commit, and a version like that of a wheel",
            )
    elif commit:
        check_object_id(commit, "--commit")
    else:
        tag, commit = _first_tag(tag, version, places, like)
    entry: dict[str, Any] = {"tag": tag} if tag else {}
    entry |= {"commit": commit} if commit else {}
    chosen = {"include": like.folders, "exclude": like.exclude, "submodules": like.submodules}
    entry |= {key: list(value) for key, value in chosen.items() if value}
    if wheel_only:  # without git; a wheel does not store executable bits
        entry["executable"] = sorted(like.executable)
    head = f"upstreams.{_key(like.name)}.versions.{_key(version)}"
    added = f"\n[{head}]\n{tomlkit.dumps({**entry, 'tree': ''})}"
    if like.wheel and version_of(version):
        prefixes = tomlkit.inline_table()
        prefixes.update(like.wheel.prefixes)
        wheel = {
            "package": like.wheel.package,
            "version": version,
            "exclude": list(like.wheel.exclude),
            "map": prefixes,
            "files": [],
        }
        added += f"\n[{head}.wheel]\n{tomlkit.dumps(wheel)}"
    return text.rstrip("\n") + "\n" + added


def _first_tag(tag: str, version: str, places: Sequence[str], like: Upstream) -> tuple[str, str]:
    """Return name and commit of the tag ``tag``, or of a tag that names the version."""
    named = (f"{prefix_of(like.tag)}{version}", f"v{version}", version)
    wanted = version_of(version)
    errors = []
    for place in places:
        try:
            known = {item.name: item for item in tags_of(place)}
        except SourceError as error:
            errors.append(error.what)
            continue
        same = [
            item.name
            for item in known.values()
            if wanted and item.version == wanted and item.series == series_of(like.tag)
        ]
        match = next((name for name in ([tag] if tag else (*named, *same)) if name in known), "")
        if match:
            return match, known[match].commit
        errors.append(f"{place} has none")
    names = tag or " or ".join(dict.fromkeys(named))
    remedy = f"name it: --tag TAG, or --commit ID; or a repository: --mirror {like.name}=PATH"
    if like.wheel:
        alone = typed(f"lock --add {like.name}={version} --wheel-only")
        remedy += f"; or, if the commit of its wheel is not known: {alone}"
    raise UserError(f"no tag {names} of {like.name} was found: {'; '.join(errors)}", remedy=remedy)


def _key(name: str) -> str:
    """Return a name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def with_pins(text: str, upstreams: tuple[Upstream, ...]) -> str:
    """Return the text of a lock with the pins of ``upstreams``; the rest is unchanged."""
    document = tomlkit.parse(text)
    tables: Any = document["upstreams"]
    for upstream in upstreams:
        entry = tables[upstream.name]["versions"][upstream.version]
        if upstream.commit:
            entry["commit"] = upstream.commit
        entry["tree"] = upstream.tree
        _set(entry, "executable", _array(sorted(upstream.executable)))
        if upstream.wheel:
            files = tomlkit.array().multiline(True)
            for file in upstream.wheel.files:
                item = tomlkit.inline_table()
                item.update({"name": file.name, "sha256": file.sha256})
                files.append(item)
            _set(entry["wheel"], "files", files)
    return tomlkit.dumps(document)


def with_release(text: str, lock: Lock, upstream: Upstream) -> tuple[str, str]:
    """Return a lock's text with a release that has this upstream version, and the release.

    A new release has the other upstreams' versions of the default release.
    """
    named = (
        name for name, pins in lock.releases.items() if pins.get(upstream.name) == upstream.version
    )
    if match := next(named, ""):
        return text, match
    taken = upstream.version in lock.releases
    name = f"{upstream.name}-{upstream.version}" if taken else upstream.version
    document = tomlkit.parse(text)
    entries = {**lock.releases.get(lock.default_release, {}), upstream.name: upstream.version}
    table: Any = document["releases"]
    table[name] = entries
    table[name].add(tomlkit.nl())
    return tomlkit.dumps(document), name


def _set(entry: Any, key: str, value: Any) -> None:
    """Set a key, unless it has that value already, so that its layout is kept."""
    empty = not value and key not in entry
    if not empty and (key not in entry or entry[key].unwrap() != value.unwrap()):
        entry[key] = value


def _array(values: list[str]) -> Any:
    """Return an array of TOML."""
    array = tomlkit.array().multiline(len(values) > 1)
    array.extend(values)
    return array
