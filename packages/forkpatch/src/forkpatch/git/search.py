# SPDX-License-Identifier: Apache-2.0
"""Search for words in what one tree has and another has not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from forkpatch.git.calls import Git
from forkpatch.git.objects import changed_files, stream_blobs
from forkpatch.safety import FILE_MODES

_KEPT = 256 << 20  # bytes of files that stay in memory between two searches
_FEW = 8  # questions for a line that are answered without an index of all lines
_START = 8000  # bytes in which git looks for the NUL of a binary file


def _lines(data: bytes) -> Counter[bytes]:
    """How often a file has each line, without blanks around it."""
    return Counter(map(bytes.strip, data.split(b"\n")))


class ChangedFiles:
    """The files that the tree ``new`` has otherwise than ``old``, or in addition."""

    def __init__(self, git: Git, old: str, new: str) -> None:
        self._git = git
        self._trees = old, new
        self._texts: list[tuple[str, bytes]] | None = None
        self._asked = 0

    def find(self, *words: str) -> tuple[str, ...]:
        """The paths of the text files that contain all words; one may be any text of one line."""
        wanted = [word.encode("utf-8", "surrogateescape") for word in words]
        alone = [
            re.compile(rb"(?<![A-Za-z0-9_])%b(?![A-Za-z0-9_])" % re.escape(word)) for word in wanted
        ]
        return tuple(
            path
            for path, data in self._files()
            if all(word in data for word in wanted) and all(one.search(data) for one in alone)
        )

    def having_more(self, line: bytes) -> Sequence[str]:
        """The paths of the text files that have a line, blanks around it aside, more often."""
        self._asked += 1
        if self._asked > _FEW:
            return self._more.get(line, ())
        return [
            path
            for path, data in self._files()
            if line in data and _lines(data)[line] > _lines(self._old(path))[line]
        ]

    @cached_property
    def _more(self) -> Mapping[bytes, Sequence[str]]:
        """The files that have each line more often than before."""
        found: dict[bytes, list[str]] = {}
        for path, data in self._files():
            known = _lines(self._old(path))
            for line, count in _lines(data).items():
                if count > known[line]:
                    found.setdefault(line, []).append(path)
        return found

    def _old(self, path: str) -> bytes:
        """The content that a file had before; empty for a new file."""
        return next(stream_blobs(self._git, [self._ids[path][0]])) or b""

    def _files(self) -> Iterable[tuple[str, bytes]]:
        """Path and content of each text file."""
        return self._read() if self._texts is None else self._texts

    def _read(self) -> Iterator[tuple[str, bytes]]:
        """Path and content of each text file; all are kept unless they are very many."""
        texts, size = list[tuple[str, bytes]](), 0
        contents = stream_blobs(self._git, [new for _, new in self._ids.values()])
        for path, data in zip(self._ids, contents, strict=True):
            if not data or b"\0" in data[:_START]:
                continue
            yield path, data
            size += len(data)
            texts += [(path, data)] if size <= _KEPT else []
        if size <= _KEPT:
            self._texts = texts

    @cached_property
    def _ids(self) -> dict[str, tuple[str, str]]:
        """Old and new object id by path."""
        return {
            path: (old, new)
            for path, (_, mode, old, new) in changed_files(self._git, *self._trees).items()
            if mode in FILE_MODES
        }
