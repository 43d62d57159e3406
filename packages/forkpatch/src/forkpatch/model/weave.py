# SPDX-License-Identifier: Apache-2.0
"""A tree with all patches applied, from which any subset of the patches can be removed.

Every file is kept as a weave (the structure of SCCS, M. J. Rochkind, "The Source Code Control
System", 1975): all lines that ever were in the file, each with the patch that added it and the
patch that removed it. A patch is applied exactly: each hunk must find its lines at its stated line.
To leave a patch out later needs no search and no merge, because the other patches' lines are known
by identity, not by number. The weave also tells which patch needs which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from forkpatch.command import typed
from forkpatch.errors import PatchError
from forkpatch.git.objects import TreeFile
from forkpatch.model.diffs import FileDiff, Hunk, check_hunks, split_lines
from forkpatch.model.patchfile import Patch
from forkpatch.safety import (
    FILE_MODES,
    GITLINK_MODE,
    SYMLINK_MODE,
    check_link,
    check_no_symlink,
)

BASE = ""


@dataclass(eq=False, slots=True)
class _Line:
    """A line of a file, with the patch that added it and the patch that removed it."""

    data: bytes
    added: str
    removed: str | None = None


@dataclass(eq=False)
class _FileWeave:
    """All lines that a file ever had.

    Attributes:
        created: the patch that made the file; BASE for a file of upstream.
        deleted: the patch that removed the file.
        modes: each mode of the file with the patch that set it, in order.
    """

    lines: list[_Line]
    created: str
    modes: list[tuple[str, str]]
    touched: list[str] = field(default_factory=list)
    deleted: str | None = None

    @property
    def mode(self) -> str:
        """The mode with all patches applied so far."""
        return self.modes[-1][0]

    @property
    def data(self) -> bytes:
        """The content with all patches applied so far."""
        return b"".join([line.data for line in self.lines if line.removed is None])

    def visible(self) -> list[int]:
        """Return the indexes of the present lines."""
        return [index for index, line in enumerate(self.lines) if line.removed is None]


class Weave:
    """A base tree with patches applied in order.

    ``read`` returns the bytes of a base file.
    """

    def __init__(self, modes: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        self._base = modes
        self._modes = dict(modes)  # with the patches so far
        self._read = read
        self._files: dict[str, list[_FileWeave]] = {}
        self._needs: dict[str, set[str]] = {}
        # All files that each folder ever had; None until a patch makes a file.
        self._folders: dict[str, set[str]] | None = None

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches applied so far, in order."""
        return tuple(self._needs)

    def apply(self, patch: Patch) -> None:
        """Apply ``patch``.

        Raises:
            PatchError: a hunk's lines are not exactly at its stated line; a file is missing, or of
                another kind (link, submodule); a new file's path is a file or folder already.
            UnsafePathError: a path goes through a symbolic link, or a link leads out of the tree.
        """
        self.begin(patch.name)
        for file in patch.files:
            self.apply_file(patch.name, file)
        self.finish(patch)

    def begin(self, name: str) -> None:
        """Begin a patch whose files are applied one by one, with :meth:`apply_file`."""
        self._needs[name] = set()

    def finish(self, patch: Patch) -> None:
        """End a patch: check the paths of the files that it made; see :meth:`apply`."""
        for file in patch.files:
            if file.new is not None and file.new != file.old:
                self._check_room(patch.name, file.new, f"{patch.name}:{file.patch_line}")

    def needs(self, name: str) -> frozenset[str]:
        """Return the earlier patches that the patch ``name`` directly needs to apply."""
        return frozenset(self._needs[name])

    def dependents(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the patches that need ``names``, directly or not, in order, without ``names``."""
        gone = set(names)
        result = []
        for patch, needed in self._needs.items():
            if patch not in gone and needed & gone:
                gone.add(patch)
                result.append(patch)
        return tuple(result)

    def changes(
        self, kept: Collection[str] | None = None, *, paths: Iterable[str] | None = None
    ) -> dict[str, TreeFile | None]:
        """Return the changes to the base tree by the patches ``kept``, at ``paths`` (default: all).

        Returns:
            The new content of each file that differs from the base; None for a removed file.

        Raises:
            PatchError: a kept patch needs a patch that is left out.
        """
        chosen = set(self.patches if kept is None else kept)
        for patch in chosen:
            if lacking := self._needs[patch] - chosen:
                raise PatchError(
                    f"{patch} cannot be without {', '.join(sorted(lacking))}",
                    remedy=f"leave out {patch} too",
                )
        result: dict[str, TreeFile | None] = {}
        for path in self._files if paths is None else paths:
            versions = self._files.get(path, [])
            file = _alive(versions, chosen)
            if file is None:
                if versions and path in self._base:
                    result[path] = None
            elif file.created != BASE or chosen.intersection(file.touched):
                is_whole = len(chosen) == len(self._needs)
                result[path] = TreeFile(file.mode, file.data) if is_whole else _render(file, chosen)
        return result

    def touched_by(self, path: str, hunk: Hunk) -> frozenset[str]:
        """Return the patches whose lines ``hunk``, a change of the tree with all patches, touches.

        These patches added or removed the lines that the hunk replaces. For a hunk that only adds
        lines, or touches only lines of the base, the patches of the neighbouring lines count.
        """
        if not self._files.get(path):
            return frozenset()
        file = self._files[path][-1]
        visible, first, end = file.visible(), hunk.first, hunk.first + hunk.old_count
        low = visible[first - 1] + 1 if first else 0
        high = visible[end] if end < len(visible) else len(file.lines)
        patches = _patches_of(file.lines[low:high])
        if not patches or not hunk.old_count:
            patches |= _patches_of(file.lines[max(low - 1, 0) : high + 1])
        return frozenset(patches)

    def amend(self, path: str, hunks: Mapping[Hunk, str]) -> None:
        """Add each of ``hunks``, changes of the file with all patches, to the hunk's patch."""
        file = self._versions(path)[-1]
        for hunk in sorted(hunks, key=lambda one: one.first, reverse=True):
            visible, end = file.visible(), hunk.first + hunk.old_count
            for index in visible[hunk.first : end]:
                file.lines[index].removed = hunks[hunk]
            position = visible[end - 1] + 1 if end else 0
            new = [_Line(data, hunks[hunk]) for kind, data in hunk.lines if kind == "+"]
            file.lines[position:position] = new

    def apply_file(self, name: str, diff: FileDiff) -> None:
        """Apply the diff of a file of the patch ``name``; see :meth:`begin` and :meth:`apply`."""
        where = f"{name}:{diff.patch_line}"
        if diff.copied or (diff.binary and diff.change is None):
            how = "by copying" if diff.copied else "as binary, and the patch does not say how"
            raise PatchError(
                f"{where}: {diff.new or diff.old} is changed {how}",
                remedy="export it again: git format-patch --binary --full-index --no-renames",
            )
        for path in diff.paths:
            check_no_symlink(path, self._modes, where, itself=False)
        if diff.old is None:
            lines = [_Line(line.data, name) for hunk in diff.hunks for line in hunk.lines]
            if diff.change:
                lines = [_Line(diff.change.apply(None, where), name)]
            self._create(diff.new or "", lines, name, diff.new_mode, where)
            return
        file = self._open(diff.old, where)
        self._check_mode(file, diff, where)
        before = list(file.touched)
        if diff.hunks and diff.change is None:
            self._patch_lines(file, diff, name)
        if diff.new == diff.old and diff.change is None:
            if diff.old_mode != diff.new_mode and diff.new_mode:
                file.modes.append((diff.new_mode, name))
                self._modes[diff.old] = diff.new_mode
            self._needs[name] |= _other(file.created, name)
            file.touched.append(name)
            self._check_link(diff.old, file, where)
            return
        # A removed, renamed or replaced file depends on all patches that touched it.
        self._needs[name] |= set(before) | _other(file.created, name)
        mode = diff.new_mode or file.mode
        if diff.change:
            data = diff.change.apply(file.data, where)
            new_lines = [_Line(data, name)] if data else []
        else:
            new_lines = [_Line(file.lines[at].data, name) for at in file.visible()]
        if diff.new is None and new_lines:
            raise PatchError(f"{where}: {diff.old} is removed, but lines of it remain")
        file.deleted = name
        file.touched.append(name)
        self._modes.pop(diff.old, None)
        if diff.new is not None:
            self._create(diff.new, new_lines, name, mode, where)

    def _check_mode(self, file: _FileWeave, diff: FileDiff, where: str) -> None:
        """Raise PatchError unless the file's kind, link or not, is the kind the patch states."""
        # A patch states no mode for a file that only gets another name.
        stated = diff.old_mode or diff.mode or (None if diff.hunks else file.mode)
        link = SYMLINK_MODE in (file.mode, stated)
        if file.mode == GITLINK_MODE or (link and file.mode != stated):
            raise PatchError(f"{where}: {diff.old} has mode {file.mode}, the patch {stated}")

    def _check_link(self, path: str, file: _FileWeave, where: str) -> None:
        """Raise UnsafePathError when a symbolic link leads out of the tree."""
        if file.mode == SYMLINK_MODE:
            check_link(path, file.data, where)

    def _create(
        self, path: str, lines: list[_Line], name: str, mode: str | None, where: str
    ) -> None:
        """Add a new file to the weave; raise PatchError if its path has a file."""
        versions = self._versions(path)
        if versions and versions[-1].deleted is None:
            raise PatchError(f"{where}: {path} cannot be created: it exists already")
        if versions:
            self._needs[name] |= _other(versions[-1].deleted or BASE, name)
        file = _FileWeave(lines, name, [(mode or FILE_MODES[0], name)], [name])
        self._check_link(path, file, where)
        versions.append(file)
        self._modes[path] = file.mode

    def _check_room(self, name: str, path: str, where: str) -> None:
        """Raise PatchError unless a new file's path is free; note the patches that freed it."""
        for parent in PurePosixPath(path).parents:
            folder = parent.as_posix()
            if self._is_there(folder):
                raise PatchError(
                    f"{where}: {path} cannot be created: {folder} is a file",
                    remedy="remove or rename that file in the same patch, or in one before it",
                )
            self._needs[name] |= self._removers(folder, name)
        if self._folders is None:
            self._folders = {}
            for known in {*self._base, *self._files}:
                self._file_in_folders(known)
        self._file_in_folders(path)
        for inside in self._folders.get(path, ()):
            if self._is_there(inside):
                raise PatchError(
                    f"{where}: {path} cannot be created: it is the folder of {inside}",
                    remedy="remove or rename what is in it in the same patch, or in one before it",
                )
            self._needs[name] |= self._removers(inside, name)

    def _file_in_folders(self, path: str) -> None:
        assert self._folders is not None
        folder = path
        while folder:
            folder = folder.rpartition("/")[0]
            self._folders.setdefault(folder, set()).add(path)

    def _is_there(self, path: str) -> bool:
        """Return True for a file of the base or of a patch that no patch removed."""
        versions = self._files.get(path)
        if versions is None:
            return path in self._base
        return bool(versions) and versions[-1].deleted is None

    def _removers(self, path: str, name: str) -> set[str]:
        """Return the other patches that removed a file of this path."""
        versions = self._files.get(path, ())
        return {file.deleted for file in versions if file.deleted not in (None, name)}

    def _versions(self, path: str) -> list[_FileWeave]:
        """Return the weaves of a path: of the base's file, and of each file made later."""
        if path not in self._files:
            self._files[path] = []
            if path in self._base:
                lines = [_Line(line, BASE) for line in split_lines(self._read(path))]
                self._files[path].append(_FileWeave(lines, BASE, [(self._base[path], BASE)]))
        return self._files[path]

    def _open(self, path: str, where: str) -> _FileWeave:
        """Return the present file at a path; raise PatchError without one."""
        versions = self._versions(path)
        if not versions or versions[-1].deleted is not None:
            raise PatchError(
                f"{where}: {path} is not in the tree",
                remedy=f"was it renamed upstream? rebase the series: {typed('rebase')}",
            )
        return versions[-1]

    def _patch_lines(self, file: _FileWeave, diff: FileDiff, name: str) -> None:
        """Mark the lines that a patch removes, insert its new ones, and note what it needs."""
        lines, seen = file.lines, file.visible()

        def shown(first: int, last: int) -> list[bytes]:
            return [lines[at].data for at in seen[first:last]]

        check_hunks(shown, len(seen), diff, name)
        needs, inserted = self._needs[name], list[tuple[int, _Line]]()
        for hunk in diff.hunks:
            at, gap = hunk.first, -1  # indexes into seen
            for kind, data in hunk.lines:
                if kind == "+":
                    inserted.append((seen[at - 1] + 1 if at else 0, _Line(data, name)))
                    if gap != at:
                        gap = at
                        # The place of an inserted line is certain only while both neighbours are
                        # present and no line comes back between them.
                        low = seen[at - 1] if at else 0
                        high = seen[at] + 1 if at < len(seen) else len(lines)
                        needs |= _patches_of(lines[low:high]) - {name}
                    continue
                if kind == "-":
                    lines[seen[at]].removed = name
                    needs |= _other(lines[seen[at]].added, name)
                at += 1
        file.lines, start = [], 0
        for index, line in inserted:
            file.lines += [*lines[start:index], line]
            start = index
        file.lines += lines[start:]


def _patches_of(lines: Iterable[_Line]) -> set[str]:
    return {by for line in lines for by in (line.added, line.removed) if by} - {BASE}


def _other(patch: str, name: str) -> set[str]:
    """Return a patch as a set; empty for BASE or the patch ``name`` itself."""
    return set() if patch in (BASE, name) else {patch}


def _alive(versions: list[_FileWeave], chosen: set[str]) -> _FileWeave | None:
    """Return the version of a file that exists with the chosen patches; None without one."""
    for file in reversed(versions):
        if file.created in chosen or file.created == BASE:
            return None if file.deleted in chosen else file
    return None


def _render(file: _FileWeave, chosen: set[str]) -> TreeFile:
    """Return a file's content and mode with the chosen patches."""
    present = {*chosen, BASE}
    data = b"".join(
        [line.data for line in file.lines if line.added in present and line.removed not in chosen]
    )
    mode = next(mode for mode, by in reversed(file.modes) if by in chosen or by == BASE)
    return TreeFile(mode, data)
