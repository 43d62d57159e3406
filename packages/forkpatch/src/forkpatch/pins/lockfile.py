# SPDX-License-Identifier: Apache-2.0
"""The lock's text: of a new fork, with an added version, with renewed pins.

These functions write no file: the lock is written once, when every pin is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import Git
from forkpatch.model.lock import WHOLE, Lock, Upstream
from forkpatch.pins.versions import (
    name_of_version,
    prefix_of,
    series_of,
    tags_of,
    usual_series,
    version_of,
)
from forkpatch.safety import check_name, check_object_id
from forkpatch.sources.repository import asked, local_path

#: Number of tags in a message about a missing tag.
_NAMED = 5
#: Names of folders that do not tell what is in them.
_COMMON = {"repo", "repository", "clone", "mirror", "checkout", "src", "source", "upstream", "git"}


@dataclass(frozen=True)
class NewVersion:
    """A version that is added to a lock.

    Attributes:
        name: its name, or its whole tag of the other versions' scheme, which is shortened.
        tag: its tag; empty: found by the name and the other version's prefix.
        commit: its commit, if it has no tag.
        wheel_only: True when the commit of the wheel is unknown.
    """

    name: str
    tag: str = ""
    commit: str = ""
    wheel_only: bool = False


def add_version(
    text: str, lock: Lock, like: Upstream, new: NewVersion, places: Sequence[str]
) -> str:
    """Return a lock's text with a version of an upstream, whose tree is not looked up yet.

    The layout is that of the version ``like``; ``places`` are searched for the tag.

    Raises:
        UserError: the lock has the version already, no repository has the tag, or the upstream
            has no wheel for ``wheel_only``.
    """
    version, tag, commit = new.name, new.tag, new.commit
    if not (tag or commit) and like.tag and prefix_of(version) == prefix_of(like.tag):
        version = name_of_version(version)
    check_name(version, "version")
    if version in lock.versions(like.name):
        raise UserError(f"the lock has {like.name} {version} already")
    if new.wheel_only:
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
    if new.wheel_only:  # without git; a wheel does not store executable bits
        entry["executable"] = sorted(like.executable)
    head = tomlkit.key(["upstreams", like.name, "versions", version]).as_string()
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
    """Return name and commit of ``tag``, or a tag that names the version; else raise UserError."""
    named = (f"{prefix_of(like.tag)}{version}", f"v{version}", version)
    wanted = version_of(version)
    errors = list[str]()
    for place, refs in asked(places, errors):
        known = {item.name: item for item in tags_of(refs)}
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


def with_pins(text: str, upstreams: tuple[Upstream, ...]) -> str:
    """Return the text of a lock with the pins of ``upstreams``; the rest is unchanged."""
    document = tomlkit.parse(text)
    tables: Any = document["upstreams"]
    for upstream in upstreams:
        entry = tables[upstream.name]["versions"][upstream.version]
        if upstream.commit:
            entry["commit"] = upstream.commit
        entry["tree"] = upstream.tree
        runs = tomlkit.array().multiline(len(upstream.executable) > 1)
        runs.extend(sorted(upstream.executable))
        _set(entry, "executable", runs)
        if upstream.wheel:
            files = tomlkit.array().multiline(True)
            for name, sha256 in upstream.wheel.files.items():
                item = tomlkit.inline_table()
                item.update({"name": name, "sha256": sha256})
                files.append(item)
            _set(entry["wheel"], "files", files)
    return tomlkit.dumps(document)


def with_release(text: str, lock: Lock, upstream: Upstream) -> tuple[str, str]:
    """Return a lock's text with a release that has this upstream version, and the release's name.

    If no release has it, a new one has the other upstreams' versions of the default release.
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
    if isinstance(table[name], tomlkit.items.Table):  # an inline table has one line
        table[name].add(tomlkit.nl())
    return tomlkit.dumps(document), name


def _set(entry: Any, key: str, value: Any) -> None:
    """Set a key, unless it has that value already, so that its layout is kept."""
    empty = not value and key not in entry
    if not empty and (key not in entry or entry[key].unwrap() != value.unwrap()):
        entry[key] = value


def first_lock(
    url: str,
    *,
    name: str,
    tag: str,
    commit: str,
    include: Sequence[str],
    submodules: Sequence[str],
    places: Sequence[str],
) -> str:
    """Return the text of a new fork's lock, whose tree is not looked up yet.

    Args:
        url: the upstream's repository, a URL or a folder.
        name: the upstream's name; empty: that of a clone's origin, or the end of the URL.
        tag: tag to pin; empty: the newest version, unless ``commit`` is given.
        commit: commit to pin; empty: the tag's.
        include: files and folders to include; empty for the whole tree.
        submodules: submodules to include.
        places: repositories that are searched for tags.

    Raises:
        UserError: the upstream has no valid name, or no version or tag was found.
    """
    path = local_path(url)
    if path is not None:
        path = path.resolve()
        url = str(path)
    name = name or _name_of(url, path)
    check_name(name, "upstream")
    version = ""
    if commit:
        version = check_object_id(commit, "--commit")[:12]
    else:
        tag = _tag(places, name, tag)
        version = name_of_version(tag)
    check_name(version, "version")
    entry: dict[str, Any] = {"tag": tag} if tag else {"commit": commit}
    if tuple(include) not in ((), (WHOLE,)):
        entry["include"] = list(include)
    if submodules:
        entry["submodules"] = list(submodules)
    document: dict[str, Any] = {
        "default-release": version,
        "releases": {version: {name: version}},
        "upstreams": {name: {"url": url, "versions": {version: {**entry, "tree": ""}}}},
    }
    return tomlkit.dumps(document)


def _name_of(url: str, path: Path | None) -> str:
    """Return the name of a repository: that of a clone's origin, else the end of its URL."""
    if path is not None:
        origin = Git().run("-C", str(path), "config", "remote.origin.url", ok=range(129)).stdout
        url = origin.decode("utf-8", "replace").strip() or url
    parts = [re.sub(r"\.git$", "", part) for part in re.split("[/:]", url)]
    named = [part for part in parts if part and part.lower() not in _COMMON]
    return (named or parts)[-1]


def _tag(places: Sequence[str], name: str, wanted: str) -> str:
    """Return the tag ``wanted``, or the newest version's, if possible final; or raise UserError."""
    reasons, newest = list[str](), list[str]()
    for place, refs in asked(places, reasons):
        known = tags_of(refs)
        series = usual_series(known)
        tags = [tag for tag in known if tag.version and tag.series == series]
        if wanted in [tag.name for tag in known]:
            return wanted
        if wanted:
            reasons.append(f"{place} has no tag {wanted}")
            newest += [tag.name for tag in reversed(tags or known)][:_NAMED]
            continue
        final = [tag for tag in tags if tag.version and not tag.version.is_prerelease]
        if tags:
            return (final or tags)[-1].name
        raise UserError(
            f"{place} has no tag that names a version",
            remedy=f"name a tag: --tag TAG; or a commit: --commit {refs.get('HEAD', 'ID')}",
        )
    if newest:
        raise UserError(
            "; ".join(reasons), remedy=f"choose an existing tag: --tag {' | '.join(newest)}"
        )
    raise UserError(
        f"no repository of {name} could be asked: {'; '.join(reasons)}",
        remedy=f"give a URL or folder that git can read, or a clone of it: --mirror {name}=PATH",
    )
