# SPDX-License-Identifier: Apache-2.0
"""A tree with all patches applied, from which any subset of the patches can be taken out.

Every file is kept as a weave (the structure of SCCS, M. J. Rochkind, "The Source Code Control
System", 1975): all lines that ever were in it, each knowing which patch added it and which
removed it. Putting a patch in is exact: each hunk must find its lines at the very line it
states. Leaving a patch out afterwards needs no searching and no merging, for the lines of the
others are known by identity, not by number. The weave also tells which patch needs which.
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
    data: bytes
    added: str
    removed: str | None = None


@dataclass(eq=False)
class _FileWeave:
    """All lines of one file.

    Attributes:
        created: the patch that made the file, BASE for the upstream's.
        deleted: the patch that removed it.
        modes: the mode, and the patch that set it, in order.
    """

    lines: list[_Line]
    created: str
    modes: list[tuple[str, str]]
    touched: list[str] = field(default_factory=list)
    deleted: str | None = None

    @property
    def mode(self) -> str:
        return self.modes[-1][0]

    @property
    def data(self) -> bytes:
        return b"".join(line.data for line in self.lines if line.removed is None)

    def visible(self) -> list[int]:
        """The places of the lines that are there."""
        return [at for at, line in enumerate(self.lines) if line.removed is None]


class Weave:
    """A base tree with patches applied one after the other.

    Args:
        modes: mode by path of every file of the base tree.
        read: gives the bytes of a base file.
    """

    def __init__(self, modes: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        self._base = modes
        self._modes = dict(modes)  # with the patches so far
        self._read = read
        self._files: dict[str, list[_FileWeave]] = {}
        self._needs: dict[str, set[str]] = {}
        # The files that there ever were in each folder; None until a patch makes a file.
        self._folders: dict[str, set[str]] | None = None

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches applied so far, in order."""
        return tuple(self._needs)

    def apply(self, patch: Patch) -> None:
        """Apply ``patch``.

        Raises:
            PatchError: a hunk's lines are not exactly where it states them, or a file would take
                the place of a folder, or a folder of a file.
            UnsafePathError: it goes through a symbolic link, or makes one out of the tree.
        """
        self.begin(patch.name)
        for file in patch.files:
            self.apply_file(patch.name, file)
        self.finish(patch)

    def begin(self, name: str) -> None:
        """Begin a patch whose files are applied one by one, with :meth:`apply_file`."""
        self._needs[name] = set()

    def finish(self, patch: Patch) -> None:
        """End a patch: the files that it made must have room; see :meth:`apply`."""
        for file in patch.files:
            if file.new is not None and file.new != file.old:
                self._check_room(patch.name, file.new, f"{patch.name}:{file.patch_line}")

    def needs(self, name: str) -> frozenset[str]:
        """The earlier patches that ``name`` needs."""
        return frozenset(self._needs[name])

    def dependents(self, names: Iterable[str]) -> tuple[str, ...]:
        """The patches that need ``names``, in order, ``names`` not included."""
        gone = set(names)
        found = []
        for patch, needed in self._needs.items():
            if patch not in gone and needed & gone:
                gone.add(patch)
                found.append(patch)
        return tuple(found)

    def changes(
        self, kept: Collection[str] | None = None, *, paths: Iterable[str] | None = None
    ) -> dict[str, TreeFile | None]:
        """Changes to the base tree by the patches ``kept`` (all by default).

        Args:
            kept: names of patches.
            paths: give the changes to these files alone.

        Returns:
            The new content of each file that differs from the base; None for a removed one.

        Raises:
            PatchError: a kept patch needs one that is left out.
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
                result[path] = _render(file, chosen)
        return result

    def touched_by(self, path: str, hunk: Hunk) -> frozenset[str]:
        """The patches whose lines a change of the whole tree touches.

        These are the patches that added or removed the lines which the hunk replaces. For a hunk
        that touches lines of the base alone, or that only adds, those beside it count.
        """
        if not self._files.get(path):
            return frozenset()
        file = self._files[path][-1]
        seen, first, end = file.visible(), hunk.first, hunk.first + hunk.old_count
        low = seen[first - 1] + 1 if first else 0
        high = seen[end] if end < len(seen) else len(file.lines)
        found = _patches_of(file.lines[low:high])
        if not found or not hunk.old_count:
            found |= _patches_of(file.lines[max(low - 1, 0) : high + 1])
        return frozenset(found)

    def amend(self, path: str, hunks: Mapping[Hunk, str]) -> None:
        """Make changes of the whole tree to one file a part of the patches that are named."""
        file = self._versions(path)[-1]
        for hunk in sorted(hunks, key=lambda one: one.first, reverse=True):
            seen, end = file.visible(), hunk.first + hunk.old_count
            for at in seen[hunk.first : end]:
                file.lines[at].removed = hunks[hunk]
            place = seen[end - 1] + 1 if end else 0
            new = [_Line(data, hunks[hunk]) for kind, data in hunk.lines if kind == "+"]
            file.lines[place:place] = new

    def apply_file(self, name: str, diff: FileDiff) -> None:
        """Apply the diff of one file; see :meth:`apply`."""
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
        if diff.change is None:
            self._patch_lines(file, diff, name)
        if diff.new == diff.old and diff.change is None:
            if diff.old_mode != diff.new_mode and diff.new_mode:
                file.modes.append((diff.new_mode, name))
                self._modes[diff.old] = diff.new_mode
            self._needs[name] |= _other(file.created, name)
            file.touched.append(name)
            self._check_link(diff.old, file, where)
            return
        # A file that goes, goes elsewhere, or is replaced, takes all that was done to it along.
        self._needs[name] |= set(before) | _other(file.created, name)
        mode = diff.new_mode or file.mode
        if diff.change:
            data = diff.change.apply(file.data, where)
            moved = [_Line(data, name)] if data else []
        else:
            moved = [_Line(file.lines[at].data, name) for at in file.visible()]
        if diff.new is None and moved:
            raise PatchError(f"{where}: {diff.old} is removed, but lines of it remain")
        file.deleted = name
        file.touched.append(name)
        self._modes.pop(diff.old, None)
        if diff.new is not None:
            self._create(diff.new, moved, name, mode, where)

    def _check_mode(self, file: _FileWeave, diff: FileDiff, where: str) -> None:
        """Raise unless the file is a link, executable or neither as the patch has it."""
        stated = diff.old_mode or diff.mode
        link = SYMLINK_MODE in (file.mode, stated)
        if file.mode == GITLINK_MODE or (link and file.mode != stated):
            raise PatchError(f"{where}: {diff.old} has mode {file.mode}, the patch {stated}")

    def _check_link(self, path: str, file: _FileWeave, where: str) -> None:
        if file.mode == SYMLINK_MODE:
            check_link(path, file.data, where)

    def _create(
        self, path: str, lines: list[_Line], name: str, mode: str | None, where: str
    ) -> None:
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
        """Raise unless a new file is in nobody's place; note the patches that made room for it."""
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
        """True for a file that the base has, or a patch made, and that none has removed."""
        versions = self._files.get(path)
        if versions is None:
            return path in self._base
        return bool(versions) and versions[-1].deleted is None

    def _removers(self, path: str, name: str) -> set[str]:
        """The other patches that removed a file of this path."""
        versions = self._files.get(path, ())
        return {file.deleted for file in versions if file.deleted not in (None, name)}

    def _versions(self, path: str) -> list[_FileWeave]:
        if path not in self._files:
            self._files[path] = []
            if path in self._base:
                lines = [_Line(line, BASE) for line in split_lines(self._read(path))]
                self._files[path].append(_FileWeave(lines, BASE, [(self._base[path], BASE)]))
        return self._files[path]

    def _open(self, path: str, where: str) -> _FileWeave:
        versions = self._versions(path)
        if not versions or versions[-1].deleted is not None:
            raise PatchError(
                f"{where}: {path} is not in the tree",
                remedy=f"was it renamed upstream? rebase the series: {typed('rebase')}",
            )
        return versions[-1]

    def _patch_lines(self, file: _FileWeave, diff: FileDiff, name: str) -> None:
        """Apply all hunks of one file."""
        if not diff.hunks:
            return
        seen = file.visible()
        every = file.lines
        check_hunks([every[at].data for at in seen], diff, name)
        inserted: list[tuple[int, _Line]] = []
        for hunk in diff.hunks:
            self._needs[name] |= _weave_hunk(file, seen, hunk, name, inserted)
        lines, at = list[_Line](), 0
        for place, line in inserted:
            lines += file.lines[at:place]
            lines.append(line)
            at = place
        file.lines = lines + file.lines[at:]


def _weave_hunk(
    file: _FileWeave,
    seen: list[int],
    hunk: Hunk,
    name: str,
    inserted: list[tuple[int, _Line]],
) -> set[str]:
    """Mark the lines that a checked hunk removes, and note those that it inserts.

    Args:
        file: the file, whose lines keep their places.
        seen: places of the lines that are there before the patch.
        hunk: the hunk.
        name: the patch.
        inserted: gets each new line, and the place before which it goes.

    Returns:
        The patches that it needs.
    """
    needs: set[str] = set()
    at = hunk.first  # index into seen
    gap = -1
    for kind, data in hunk.lines:
        if kind == " ":
            at += 1
        elif kind == "-":
            old = file.lines[seen[at]]
            old.removed = name
            needs |= _other(old.added, name)
            at += 1
        else:
            inserted.append((seen[at - 1] + 1 if at else 0, _Line(data, name)))
            if gap != at:
                gap = at
                needs |= _neighbours(file, seen, at, name)
    return needs


def _neighbours(file: _FileWeave, seen: list[int], at: int, name: str) -> set[str]:
    """The patches that added or removed lines beside the gap before ``seen[at]``.

    A line put between two lines has its place for certain only while both are there and
    nothing else comes back between them.
    """
    low = seen[at - 1] if at else 0
    high = seen[at] + 1 if at < len(seen) else len(file.lines)
    return _patches_of(file.lines[low:high]) - {name}


def _patches_of(lines: Iterable[_Line]) -> set[str]:
    """The patches that added or removed lines."""
    return {by for line in lines for by in (line.added, line.removed) if by} - {BASE}


def _other(patch: str, name: str) -> set[str]:
    return set() if patch in (BASE, name) else {patch}


def _alive(versions: list[_FileWeave], chosen: set[str]) -> _FileWeave | None:
    for file in reversed(versions):
        if file.created in chosen or file.created == BASE:
            return None if file.deleted in chosen else file
    return None


def _render(file: _FileWeave, chosen: set[str]) -> TreeFile:
    there = {*chosen, BASE}
    data = b"".join(
        [line.data for line in file.lines if line.added in there and line.removed not in chosen]
    )
    mode = next(mode for mode, by in reversed(file.modes) if by in chosen or by == BASE)
    return TreeFile(mode, data)
