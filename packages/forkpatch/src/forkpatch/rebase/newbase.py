# SPDX-License-Identifier: Apache-2.0
"""Another version of the upstream, compared with the version that a series was made for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath

from forkpatch.git.calls import Git
from forkpatch.git.merge import file_diffs, has_more
from forkpatch.git.objects import blob_id, list_tree, read_blobs
from forkpatch.safety import SYMLINK_MODE
from forkpatch.symbols.outline import MODULE, Symbol, bare_name, outline
from forkpatch.symbols.text import says_something, text

_SHORT = 3  # lines of a text that many files have, such as an empty ``__init__.py``


class NewBase:
    """Files, renames and changed lines of the tree ``new``, compared with the tree ``old``."""

    def __init__(self, git: Git, new: str, old: str) -> None:
        self._git, self.trees = git, (old, new)
        self._old, self._new = list_tree(git, old), list_tree(git, new)
        self._contents: dict[str, bytes | None] = {}
        self._grown: dict[bytes, Sequence[str]] = {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None for a missing file or a link."""
        return self._content(*self._new.get(path, (SYMLINK_MODE, "")))

    def was(self, path: str) -> bytes | None:
        """Return the content that a file of the new tree had in the old one."""
        return self._content(*self._old.get(self.old_path(path), (SYMLINK_MODE, "")))

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
        out = self._git.run(*command, *self.trees).stdout
        fields = out.decode("utf-8", "surrogateescape").split("\0")[:-1]
        return dict(zip(fields[1::3], fields[2::3], strict=True))

    @cached_property
    def _old_paths(self) -> Mapping[str, str]:
        return {new: old for old, new in self.renames.items()}

    def old_path(self, path: str) -> str:
        """Return the path in the old tree of a file of the new one."""
        return self._old_paths.get(path, path)

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

    def having(self, data: bytes) -> list[str]:
        """Return the files that upstream added with some content, which is not a short one."""
        oid = blob_id(data) if data.count(b"\n") >= _SHORT else ""
        paths = (path for path, (_, known) in self._new.items() if known == oid)
        return [path for path in paths if path not in self._old and path not in self._old_paths]

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

    def having_more(self, line: bytes) -> Sequence[str]:
        """Return the text files that have a line, blanks around it aside, more often than before.

        A file that is not in the old tree under the same path counts as new.
        """
        if line not in self._grown:
            self._grown[line] = [path for path, diff in self.diffs.items() if has_more(diff, line)]
        return self._grown[line]

    def standing(self, run: Sequence[bytes], but: str) -> Iterator[tuple[str, int]]:
        """Yield the other files that have some lines in addition, and the row of one of them.

        Fewer than three lines that say something may stand in any file.
        """
        lines, size = set(filter(says_something, run)), len(run)
        if len(lines) < _SHORT:
            return
        line = max(sorted(lines), key=len)
        for path in self.having_more(line):
            if path == but:
                continue
            now = text(path, self.read(path) or b"")
            for row in now.rows(line):
                if lines <= {*now.lines[max(row - size, 0) : row + size]}:
                    yield path, row
                    break

    @cached_property
    def diffs(self) -> Mapping[str, bytes]:
        """The diff of each text file."""
        return file_diffs(self._git, *self.trees)

    def find(self, word: str) -> list[str]:
        """Return the text files of which upstream changed a line with a word."""
        text = word.encode("utf-8", "surrogateescape")
        alone = re.compile(rb"(?<![A-Za-z0-9_])%b(?![A-Za-z0-9_])" % re.escape(text))
        return [path for path, diff in self.diffs.items() if text in diff and alone.search(diff)]

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
