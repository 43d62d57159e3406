# SPDX-License-Identifier: Apache-2.0
"""Another version of the upstream, compared with the version that a series was made for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from glob import escape
from pathlib import PurePosixPath
from posixpath import dirname, join, normpath

from forkpatch.git.calls import Git
from forkpatch.git.merge import file_diffs, has_more
from forkpatch.git.objects import blob_id, list_tree, read_blobs
from forkpatch.safety import SYMLINK_MODE
from forkpatch.symbols.outline import MODULE, Symbol, bare_name, outline
from forkpatch.symbols.text import plain, said, says_something, text

_SHORT = 3  # lines of a text that many files have, such as an empty ``__init__.py``
_LONGEST = 100_000  # bytes of a line that is searched; Linux takes arguments of 128 KB
_LIKE = 2 / 3  # share of a file's lines in a file that is like it
# Suffixes of files that share the names of functions, and the head of such a function.
_SHARING = (".c", ".go")
_SHARED = re.compile(rb"(?!static\b)[A-Za-z_][^;=#]*\([^;]*[{,)]\s*$")


class NewBase:
    """Files, renames and changed lines of the tree ``new``, compared with the tree ``old``."""

    def __init__(self, git: Git, new: str, old: str) -> None:
        self._git, self.trees = git, (old, new)
        self.old, self.new = list_tree(git, old), list_tree(git, new)
        self._contents: dict[str, bytes | None] = {}
        self._grown: dict[bytes, Sequence[str]] = {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None for a missing file or a link."""
        return self._content(*self.new.get(path, (SYMLINK_MODE, "")))

    def was(self, path: str) -> bytes | None:
        """Return the content that a file of the new tree had in the old one; None without it."""
        return self._content(*self.old.get(self.old_path(path), (SYMLINK_MODE, "")))

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
        fields = self._git.fields(*command, *self.trees)
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

    def namesakes(self, path: str) -> list[str]:
        """Return the other files of the same name that upstream added, if no old file has it."""
        added = self._added.get(path.rpartition("/")[2], [])
        return [other for other in added if other != path and other not in self._old_paths]

    def having(self, path: str, data: bytes) -> list[str]:
        """Return the files that upstream added with a file's content, or with most of its lines.

        Empty for a short content, or if a file of the old tree with its suffix is as like.
        """
        lines = {line for line in map(plain, data.split(b"\n")) if says_something(line)}
        if len(lines) < _SHORT:
            return []
        oid, telling = blob_id(data), sorted(sorted(lines), key=len)[-_SHORT:]
        paths = {other for other, (_, known) in self.new.items() if known == oid}
        paths |= {other for line in telling for other in self.having_more(line)}
        added = sorted(paths - self.old.keys())
        found = [other for other in added if _is_like(self.read(other), lines)]
        known = self._known(_kind(path)[1], *telling) if found else ()
        if any(_is_like(self._content(*self.old[other]), lines) for other in known):
            return []
        return [other for other in found if other not in self._old_paths]

    def _known(self, suffix: str, *lines: bytes) -> list[str]:
        """Return the text files of the old tree with a suffix that have one of some lines.

        Lines that cannot be an argument of a command are left out.
        """
        usable = [line for line in lines if b"\0" not in line and len(line) < _LONGEST]
        if not usable:
            return []
        texts = (line.decode("utf-8", "surrogateescape") for line in usable)
        words = (word for line in texts for word in ("-e", line))
        place = self.trees[0], "--", f"*{escape(suffix)}"
        found = self._git.fields("grep", "-lzIF", *words, *place, ok=(0, 1))
        return [path.removeprefix(f"{self.trees[0]}:") for path in found]

    @cached_property
    def _added(self) -> dict[str, list[str]]:
        """The added files whose names the old tree did not have, by name."""
        known = {PurePosixPath(path).name for path in self.old}
        found: dict[str, list[str]] = {}
        for path in self.new:
            name = path.rpartition("/")[2]
            if name not in known:
                found.setdefault(name, []).append(path)
        return found

    def having_more(self, line: bytes) -> Sequence[str]:
        """Return the text files that have a line more often than before.

        A file that is not in the old tree under the same path counts as new.
        """
        if line not in self._grown:
            having = ((path, diff) for path, diff in self.diffs.items() if line in diff)
            self._grown[line] = [path for path, diff in having if has_more(diff, line)]
        return self._grown[line]

    def standing(self, run: Sequence[bytes], but: str) -> Iterator[tuple[str, int]]:
        """Yield the files but ``but`` that have some lines in addition, and the row of one line.

        Fewer than three lines that say something may stand in any file. The head of a function
        that the old tree lacks may stand in one file of a folder.
        """
        lines, size, (folder, suffix) = {*filter(says_something, said(run))}, len(run), _kind(but)
        wanted = [(lines, "")] if len(lines) >= _SHORT else []
        heads = [plain(line) for line in run if suffix in _SHARING and _SHARED.match(line)]
        came = (line for line in heads if self.having_more(line) and not self._known(suffix, line))
        wanted += [({line}, folder) for line in came]
        for some, place in wanted:
            line = max(sorted(some), key=len)
            for path in self.having_more(line):
                if path == but or (place and _kind(path) != (place, suffix)):
                    continue
                now = text(path, self.read(path) or b"")
                for row in now.rows(line):
                    if some <= {*now.lines[max(row - size, 0) : row + size]}:
                        yield path, row
                        break

    @cached_property
    def diffs(self) -> Mapping[str, bytes]:
        """The diff, without context, of each text file that differs, by path."""
        return file_diffs(self._git, *self.trees)

    @cached_property
    def links(self) -> Mapping[str, str]:
        """The targets of the links that upstream added or changed, by path."""
        links = {path: oid for path, (mode, oid) in self.new.items() if mode == SYMLINK_MODE}
        changed = {path: oid for path, oid in links.items() if oid not in self.old.get(path, ())}
        found = read_blobs(self._git, changed.values())
        return {path: target_of(path, found[oid] or b"") for path, oid in changed.items()}

    def find(self, word: str) -> list[str]:
        """Return the text files in which upstream added or removed a line with a word."""
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


def target_of(path: str, link: bytes) -> str:
    """Return the path in the tree that a link points to."""
    return normpath(join(dirname(path), link.decode("utf-8", "surrogateescape")))


def _kind(path: str) -> tuple[str, str]:
    """Return a file's folder and suffix."""
    return str(PurePosixPath(path).parent), PurePosixPath(path).suffix


def _is_like(data: bytes | None, lines: Set[bytes]) -> bool:
    """Return True when a file has at least two thirds of some lines."""
    return len(lines & {*map(plain, (data or b"").split(b"\n"))}) >= _LIKE * len(lines)
