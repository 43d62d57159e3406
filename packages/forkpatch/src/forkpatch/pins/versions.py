# SPDX-License-Identifier: Apache-2.0
"""Versions of an upstream: its tags, and its wheels in the package index."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from forkpatch.errors import SourceError
from forkpatch.git.calls import NETWORK, Git, GitError
from forkpatch.model.lock import Upstream
from forkpatch.pins.tags import Tag, series_of, usual_series, version_of
from forkpatch.sources.repository import PROBE_TIMEOUT, local_path, open_repository
from forkpatch.sources.wheels import pip_command

_PIP_TIMEOUT = 60.0


def tags_of(place: str) -> tuple[Tag, ...]:
    """Return all tags of the repository at ``place``, a folder or a URL, oldest version first.

    Raises:
        SourceError: it cannot be asked.
    """
    path = local_path(place)
    try:
        if path is not None:
            git = open_repository(path)
            command = ("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)")
            out = git.text(*command, "refs/tags/")
            rows = [line.split(" ") for line in out.splitlines()]
            tags = {ref: peeled or oid for oid, peeled, ref in rows}
        else:
            call = ("ls-remote", "--tags", "--", place)
            out = Git().run(*call, env=NETWORK, timeout=PROBE_TIMEOUT).stdout.decode("utf-8")
            pairs = [line.split("\t") for line in out.splitlines()]
            tags = {ref.removesuffix("^{}"): oid for oid, ref in pairs}  # ^{} lines come second
    except GitError as error:
        raise SourceError(f"{place}: {error}") from error
    tag_list = [Tag(ref.removeprefix("refs/tags/"), oid) for ref, oid in tags.items()]
    return tuple(sorted(tag_list, key=lambda tag: (tag.version or Version("0"), tag.name)))


def head_of(place: str) -> str:
    """Return the commit of HEAD of the repository at ``place``.

    Raises:
        SourceError: it cannot be asked.
    """
    path = local_path(place)
    try:
        if path is not None:
            return open_repository(path).text("rev-parse", "--verify", "HEAD^{commit}")
        command = ("ls-remote", "--", place, "HEAD")
        out = Git().run(*command, env=NETWORK, timeout=PROBE_TIMEOUT).stdout.decode("utf-8")
        return out.split("\t")[0]
    except GitError as error:
        raise SourceError(f"{place}: {error}") from error


def index_versions(package: str) -> tuple[Version, ...]:
    """Return the versions of a package in pip's index for this machine, oldest first.

    Raises:
        SourceError: the index does not answer, or lacks the package.
    """
    command = [*pip_command(), "index", "versions", "--pre", "--disable-pip-version-check", package]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_PIP_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip gave no answer within {error.timeout:.0f} s") from error
    text = done.stdout.decode("utf-8", "replace")
    listed = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    if done.returncode or not listed:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        raise SourceError(f"pip: {lines[-1].removeprefix('ERROR: ')}")
    versions = (version_of(item.strip()) for item in listed.group(1).split(","))
    return tuple(sorted(version for version in versions if version))


@dataclass(frozen=True)
class News:
    """Versions newer than the pinned version.

    Attributes:
        tags: newer tags of the pinned tag's series.
        wheels: newer versions in the package index.
        head: newest commit, if it differs from the pinned commit and no tag is followed.
        notes: repositories and indexes that did not answer, with reasons.
        tags_understood: False when the pinned tag names no version, so that newer tags are unknown.
    """

    upstream: str
    version: str
    tags: tuple[str, ...]
    wheels: tuple[str, ...]
    head: str
    notes: tuple[str, ...]
    tags_understood: bool = True


def news_of(upstream: Upstream, places: Sequence[str], *, index: bool = True) -> News:
    """Return the versions newer than the pinned version, from repositories and pip's index."""
    notes: list[str] = []
    tag = upstream.tag if version_of(upstream.tag) else ""
    pinned = version_of(upstream.wheel.version if upstream.wheel else tag)
    tags: dict[str, Version] = {}
    head = ""
    for place in places:
        try:
            known = tags_of(place)
            series = series_of(tag) if tag else usual_series(known)
            tags |= {
                item.name: item.version
                for item in known
                if item.version and pinned and item.version > pinned and item.series == series
            }
            newest = head_of(place)
        except SourceError as error:
            notes.append(error.what)
            continue
        if upstream.commit and not upstream.tag and newest != upstream.commit:
            head = newest
    wheels: tuple[str, ...] = ()
    if upstream.wheel and index:
        try:
            versions = index_versions(upstream.wheel.package)
            wheels = tuple(str(version) for version in versions if pinned and version > pinned)
        except SourceError as error:
            notes.append(error.what)
    names = tuple(sorted(tags, key=lambda name: tags[name]))
    is_known = pinned is not None or not upstream.tag
    return News(upstream.name, upstream.version, names, wheels, head, tuple(notes), is_known)
