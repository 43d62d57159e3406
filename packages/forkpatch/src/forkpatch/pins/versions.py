# SPDX-License-Identifier: Apache-2.0
"""Versions of an upstream: its tags, and its wheels in the package index.

A tag is a prefix and a version: numbers, joined by any of ``. _ -``, and perhaps a word for a
pre-release, as in ``v1.2.3``, ``curl-8_16_0``, ``REL_16_1``, ``jdk-21+35``. A repository may have
several series of tags, for a program and its parts: tags with the same prefix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from forkpatch.errors import SourceError
from forkpatch.model.lock import Upstream
from forkpatch.sources.repository import asked
from forkpatch.sources.wheels import pip_error, run_pip

_PIP_TIMEOUT = 60.0
# A prefix with a digit ends in a separator, as in log4j-2.17.1.
_PREFIX = re.compile(r"(?:\D*|.*[-_/.])v?", re.IGNORECASE)
_WORDS = {
    **dict.fromkeys(("a", "alpha", "m", "milestone", "ea"), "a"),
    **dict.fromkeys(("b", "beta"), "b"),
    **dict.fromkeys(("rc", "c", "cr", "pre", "preview"), "rc"),
    **dict.fromkeys(("p", "post", "patch"), ".post"),
    "dev": ".dev",
}
_VERSION = re.compile(
    r"(?P<numbers>\d+(?:[._]\d+)*(?:-\d+)*)"  # no 2-1.4: lib2-1.4 is version 1.4
    rf"(?:[._-]?(?P<word>{'|'.join(_WORDS)})[._-]?(?P<count>\d*))?"
    r"(?P<letter>[a-z])?"
    r"(?:[._-](?:final|ga|release))?"
    r"(?:\+(?P<build>\d+(?:\.\d+)*))?",
    re.IGNORECASE,
)


def tags_of(refs: Mapping[str, str]) -> tuple[Tag, ...]:
    """Return the tags among the references of a repository, oldest version first."""
    start = "refs/tags/"
    tags = [Tag(ref.removeprefix(start), oid) for ref, oid in refs.items() if ref.startswith(start)]
    return tuple(sorted(tags, key=lambda tag: (tag.version or Version("0"), tag.name)))


def index_versions(package: str) -> tuple[Version, ...]:
    """Return the versions of a package in pip's index for this machine, oldest first.

    Raises:
        SourceError: the index does not answer, or lacks the package.
    """
    done = run_pip("index", "versions", "--pre", package, timeout=_PIP_TIMEOUT)
    text = done.stdout.decode("utf-8", "replace")
    listed = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    if done.returncode or not listed:
        raise pip_error(done)
    versions = (version_of(item.strip()) for item in listed.group(1).split(","))
    return tuple(sorted(version for version in versions if version))


@dataclass(frozen=True)
class News:
    """Versions newer than the pinned version.

    Attributes:
        tags: newer tags of the pinned tag's series, the oldest first.
        releases: of the tags that are no pre-releases, the name of the version in a lock, by tag.
        wheels: newer versions in the package index.
        head: newest commit, if it differs from the pinned commit and no tag is followed.
        notes: repositories and indexes that did not answer, with reasons.
        tags_understood: False when the pinned tag names no version, so that newer tags are unknown.
    """

    upstream: str
    version: str
    tags: tuple[str, ...]
    releases: Mapping[str, str]
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
    for place, refs in asked(places, notes):
        known, newest = tags_of(refs), refs.get("HEAD", "")
        series = series_of(tag) if tag else usual_series(known)
        tags |= {
            item.name: item.version
            for item in known
            if item.version and pinned and item.version > pinned and item.series == series
        }
        if place == upstream.url or not head:  # a mirror may be old
            head = newest or head
    wheels: tuple[str, ...] = ()
    if upstream.wheel and index:
        try:
            versions = index_versions(upstream.wheel.package)
            wheels = tuple(str(version) for version in versions if pinned and version > pinned)
        except SourceError as error:
            notes.append(error.what)
    if upstream.tag or head == upstream.commit or not upstream.commit:
        head = ""
    names = tuple(sorted(tags, key=lambda name: tags[name]))
    releases = {name: name_of_version(name) for name in names if not tags[name].is_prerelease}
    is_known = pinned is not None or not upstream.tag
    return News(
        *(upstream.name, upstream.version, names, releases, wheels, head, tuple(notes)),
        tags_understood=is_known,
    )


@dataclass(frozen=True)
class Tag:
    """A tag of the upstream: name and commit."""

    name: str
    commit: str

    @property
    def version(self) -> Version | None:
        """The version in the tag's name; None without a version."""
        return version_of(self.name)

    @property
    def series(self) -> str:
        """The series of the tag: its prefix before the version."""
        return series_of(self.name)


def prefix_of(name: str) -> str:
    """Return the part of a tag's name before the version; empty without such a part."""
    return next((name[:end] for end in _starts(name) if _version(name[end:])), "")


def name_of_version(tag: str) -> str:
    """Return the name of a tag's version in a lock: ``8_16_0`` for ``curl-8_16_0``."""
    return tag.removeprefix(prefix_of(tag)).replace("/", "-")


def series_of(name: str) -> str:
    """Return the prefix of a tag in lower case, without a final ``v``, which may come and go."""
    return re.sub(r"(?<![a-z])v$", "", prefix_of(name).lower())


def version_of(name: str) -> Version | None:
    """Return the version in a tag's name or a version's name; None without a version."""
    return next(filter(None, (_version(name[end:]) for end in _starts(name))), None)


def usual_series(tags: Iterable[Tag]) -> str:
    """Return the most frequent series of the tags that name a version; empty without such tags."""
    counts = Counter(tag.series for tag in tags if tag.version)
    return max(counts, key=counts.__getitem__, default="")


def _starts(name: str) -> Iterable[int]:
    """Return the offsets at which a version may begin in a name, in order."""
    offsets = (match.start() for match in re.finditer(r"(?<!\d)\d", name))
    return (offset for offset in offsets if _PREFIX.fullmatch(name[:offset]))


def _version(text: str) -> Version | None:
    """Return the version that a text names; None if it names no version."""
    match = _VERSION.fullmatch(text)
    try:
        if match is None:
            return Version(text)
        version = ".".join(re.split(r"[._-]", match["numbers"]))
        word = (match["word"] or "").lower()
        letter = match["letter"] or (word if len(word) == 1 and not match["count"] else "")
        if letter:  # 1.1.1b follows 1.1.1a, which follows 1.1.1
            version += f".post{ord(letter.lower()) - ord('a') + 1}"
        elif word:
            version += f"{_WORDS[word]}{match['count'] or 0}"
        return Version(version + (f"+{match['build']}" if match["build"] else ""))
    except InvalidVersion:
        return None
