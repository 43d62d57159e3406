# SPDX-License-Identifier: Apache-2.0
"""Another version of the upstream, compared with the version that a series was made for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from forkpatch.git.calls import Git
from forkpatch.git.objects import changed_files, list_tree, read_blobs, stream_blobs
from forkpatch.safety import FILE_MODES, SYMLINK_MODE
from forkpatch.symbols.outline import MODULE, Symbol, bare_name, outline

_KEPT = 256 << 20  # bytes of changed files that stay in memory between two searches
_FEW = 8  # questions for a line that are answered without an index of all lines
_START = 8000  # bytes in which git looks for the NUL of a binary file


class NewBase:
    """Files, renames and changed lines of the tree ``new``, compared with the tree ``old``."""

    def __init__(self, git: Git, new: str, old: str) -> None:
        self._git, self._trees = git, (old, new)
        self._old, self._new = list_tree(git, old), list_tree(git, new)
        self._contents: dict[str, bytes | None] = {}
        self._texts: list[tuple[str, bytes]] | None = None
        self._asked = 0

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None for a missing file or a link."""
        return self._content(*self._new.get(path, (SYMLINK_MODE, "")))

    def was(self, path: str) -> bytes | None:
        """Return the content that a file of the new tree had in the old one."""
        return self._content(*self._old.get(self._old_paths.get(path, path), (SYMLINK_MODE, "")))

    def _content(self, mode: str, oid: str) -> bytes | None:
        if mode == SYMLINK_MODE:
            return None
        if oid not in self._contents:
            self._contents |= read_blobs(self._git, [oid])
        return self._contents[oid]

    @cached_property
    def renames(self) -> Mapping[str, str]:
        """The new path of each renamed file, by old path."""
        command = ("diff-tree", "-r", "-z", "-M40%", "-l0", "--diff-filter=R", "--name-status")
        out = self._git.run(*command, *self._trees).stdout
        fields = out.decode("utf-8", "surrogateescape").split("\0")[:-1]
        return dict(zip(fields[1::3], fields[2::3], strict=True))

    @cached_property
    def _old_paths(self) -> Mapping[str, str]:
        return {new: old for old, new in self.renames.items()}

    def path_of(self, path: str) -> str:
        """Return the path in the new tree of a file of the old one."""
        return path if self.read(path) is not None else self.renames.get(path, path)

    def is_renamed(self, path: str) -> bool:
        """Return True for a file of the old tree that has another path in the new one."""
        return path in self._old and path in self.renames

    def namesakes(self, path: str) -> list[str]:
        """Return the other files of the same new name that upstream added."""
        added = self._added.get(path.rpartition("/")[2], [])
        return [other for other in added if other != path and other not in self._old_paths]

    @cached_property
    def _added(self) -> dict[str, list[str]]:
        """The added files whose names the old tree did not have, by name."""
        known = {PurePosixPath(path).name for path in self._old}
        found: dict[str, list[str]] = {}
        for path in self._new:
            name = path.rpartition("/")[2]
            if name not in known:
                found.setdefault(name, []).append(path)
        return found

    def find(self, *words: str) -> tuple[str, ...]:
        """Return the changed text files with all words; a word is any text of one line."""
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
        """Return the text files that have a line, blanks around it aside, more often than before.

        A file that is not in the old tree under the same path counts as new.
        """
        self._asked += 1
        if self._asked > _FEW:
            return self._more.get(line, ())
        return [
            path
            for path, data in self._files()
            if line in data and _lines(data)[line] > _lines(self._before(path))[line]
        ]

    @cached_property
    def _more(self) -> Mapping[bytes, Sequence[str]]:
        """The files that have each line more often than before."""
        found: dict[bytes, list[str]] = {}
        for path, data in self._files():
            known = _lines(self._before(path))
            for line, count in _lines(data).items():
                if count > known[line]:
                    found.setdefault(line, []).append(path)
        return found

    def _before(self, path: str) -> bytes:
        return next(stream_blobs(self._git, [self.changed[path][0]])) or b""

    def _files(self) -> Iterable[tuple[str, bytes]]:
        """Return path and content of each changed text file, from memory if read before."""
        return self._read_files() if self._texts is None else self._texts

    def _read_files(self) -> Iterator[tuple[str, bytes]]:
        texts, size = list[tuple[str, bytes]](), 0
        contents = stream_blobs(self._git, [new for _, new in self.changed.values()])
        for path, data in zip(self.changed, contents, strict=True):
            if not data or b"\0" in data[:_START]:
                continue
            yield path, data
            size += len(data)
            texts += [(path, data)] if size <= _KEPT else []
        if size <= _KEPT:
            self._texts = texts

    @cached_property
    def changed(self) -> dict[str, tuple[str, str]]:
        """Old and new object id of each file that was changed or added, by path."""
        return {
            path: (old, new)
            for path, (_, mode, old, new) in changed_files(self._git, *self._trees).items()
            if mode in FILE_MODES
        }

    def places_of(self, path: str, symbol: str) -> Iterator[tuple[str, Symbol]]:
        """Yield path and symbol of ``symbol``'s places in the new tree, likeliest first."""
        name, new_path = bare_name(symbol), self.path_of(path)
        suffix = PurePosixPath(path).suffix
        for candidate in dict.fromkeys([new_path, *self.find(name)]):
            data = self.read(candidate)
            if data is None or PurePosixPath(candidate).suffix != suffix or name == MODULE:
                continue
            symbols = outline(candidate, data).symbols
            named = (item for item in symbols.values() if bare_name(item.name) == name)
            found = sorted(named, key=lambda item: item.name != symbol)
            yield from ((candidate, item) for item in found)


def _lines(data: bytes) -> Counter[bytes]:
    """Return how often a file has each line, without blanks around it."""
    return Counter(map(bytes.strip, data.split(b"\n")))
