# SPDX-License-Identifier: Apache-2.0
"""Versions in the names of tags: ``v1.2.3``, ``curl-8_16_0``, ``REL_16_1``, ``jdk-21+35``.

A tag is a prefix and a version: numbers, joined by any of ``. _ -``, and perhaps a word for a
pre-release. A repository may have several series of tags, for a program and its parts. Tags with
the same prefix belong to the same series.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

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
    r"(?P<numbers>\d+(?:[._-]\d+)*)"
    rf"(?:[._-]?(?P<word>{'|'.join(_WORDS)})[._-]?(?P<count>\d*))?"
    r"(?P<letter>[a-z])?"
    r"(?:[._-](?:final|ga|release))?"
    r"(?:\+(?P<build>\d+(?:\.\d+)*))?",
    re.IGNORECASE,
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
    """Return the prefix of a tag without a final ``v``, which may come and go."""
    return re.sub(r"(?<![a-z])v$", "", prefix_of(name).lower())


def version_of(name: str) -> Version | None:
    """Return the version in a tag's name or a version's name; None without a version."""
    return next(filter(None, (_version(name[end:]) for end in _starts(name))), None)


def usual_series(tags: Iterable[Tag]) -> str:
    """Return the series of most tags that name a version."""
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
