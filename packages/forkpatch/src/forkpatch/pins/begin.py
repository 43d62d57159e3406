# SPDX-License-Identifier: Apache-2.0
"""The verb ``init``: the lock of a new fork, with one version of one upstream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit

from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.git.calls import Git
from forkpatch.model.lock import WHOLE
from forkpatch.pins.tags import name_of_version, usual_series
from forkpatch.pins.versions import head_of, tags_of
from forkpatch.safety import check_name, check_object_id
from forkpatch.sources.repository import local_path

#: Number of tags in a message about a missing tag.
_NAMED = 5
#: Names of folders that do not tell what is in them.
_COMMON = {"repo", "repository", "clone", "mirror", "checkout", "src", "source", "upstream", "git"}


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
        url = str(path.resolve())
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
    """Return the tag ``wanted``, or the tag of the newest version, preferably not a pre-release."""
    reasons, newest = list[str](), list[str]()
    for place in places:
        try:
            known = tags_of(place)
            series = usual_series(known)
            tags = [tag for tag in known if tag.version and tag.series == series]
            head = "" if tags or wanted else head_of(place)
        except SourceError as error:
            reasons.append(error.what)
            continue
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
            remedy=f"name a tag: --tag TAG; or a commit: --commit {head}",
        )
    if newest:
        raise UserError(
            "; ".join(reasons), remedy=f"choose an existing tag: --tag {' | '.join(newest)}"
        )
    raise UserError(
        f"no repository of {name} could be asked: {'; '.join(reasons)}",
        remedy=f"give a URL or folder that git can read, or a clone of it: --mirror {name}=PATH",
    )


def is_new(lock: Path) -> None:
    """Check that the folder is not a fork yet.

    Raises:
        UserError: the lock exists.
    """
    if lock.exists():
        raise UserError(
            f"{lock} exists: this folder is a fork already",
            remedy=f"pin one more version: {typed('lock --add NAME=VERSION')};"
            " or one more upstream: add its table to the lock",
        )
