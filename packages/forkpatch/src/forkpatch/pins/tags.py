# SPDX-License-Identifier: Apache-2.0
"""The versions that tags name: ``v1.2.3``, ``curl-8_16_0``, ``REL_16_1``, ``jdk-21+35``.

A tag is a prefix and a version: numbers, with any of ``. _ -`` between them, and perhaps a word for
a pre-release. One repository may have several series of tags, of a program and of its parts; tags
with the same prefix are of the same series.
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
    """A tag of the upstream: its name, and its commit."""

    name: str
    commit: str

    @property
    def version(self) -> Version | None:
        """The version that the tag names; None when it names none."""
        return version_of(self.name)

    @property
    def series(self) -> str:
        """What precedes the version: tags that share it are of one series."""
        return series_of(self.name)


def prefix_of(name: str) -> str:
    """What precedes the version in a tag's name; empty where nothing does."""
    return next((name[:end] for end in _starts(name) if _version(name[end:])), "")


def name_of_version(tag: str) -> str:
    """The name of a tag's version in a lock: ``8_16_0`` for ``curl-8_16_0``."""
    return tag.removeprefix(prefix_of(tag)).replace("/", "-")


def series_of(name: str) -> str:
    """The prefix of a tag as far as it tells series apart: a ``v`` may come and go."""
    return re.sub(r"(?<![a-z])v$", "", prefix_of(name).lower())


def version_of(name: str) -> Version | None:
    """The version of a tag or of a version's name; None for another name."""
    return next(filter(None, (_version(name[end:]) for end in _starts(name))), None)


def usual_series(tags: Iterable[Tag]) -> str:
    """The series of most tags that name a version."""
    counts = Counter(tag.series for tag in tags if tag.version)
    return max(counts, key=counts.__getitem__, default="")


def _starts(name: str) -> Iterable[int]:
    """The places at which a version may begin, the first of them first."""
    places = (found.start() for found in re.finditer(r"(?<!\d)\d", name))
    return (at for at in places if _PREFIX.fullmatch(name[:at]))


def _version(text: str) -> Version | None:
    found = _VERSION.fullmatch(text)
    try:
        if found is None:
            return Version(text)
        version = ".".join(re.split(r"[._-]", found["numbers"]))
        word = (found["word"] or "").lower()
        letter = found["letter"] or (word if len(word) == 1 and not found["count"] else "")
        if letter:  # 1.1.1b follows 1.1.1a, which follows 1.1.1
            version += f".post{ord(letter.lower()) - ord('a') + 1}"
        elif word:
            version += f"{_WORDS[word]}{found['count'] or 0}"
        return Version(version + (f"+{found['build']}" if found["build"] else ""))
    except InvalidVersion:
        return None
