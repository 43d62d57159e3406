# SPDX-License-Identifier: Apache-2.0
"""Merges of patches, file by file and in memory, onto files that their base does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath

from forkpatch.errors import PatchError
from forkpatch.git.calls import Git
from forkpatch.git.merge import merge_data
from forkpatch.git.objects import Changes, TreeFile, list_tree, read_blobs
from forkpatch.model.diffs import FileDiff
from forkpatch.safety import FILE_MODES, SYMLINK_MODE
from forkpatch.symbols.placement import misplaced
from forkpatch.tree.fork import PatchStep

#: Function that returns a file of a version by its path; None for a missing one.
Read = Callable[[str], TreeFile | None]
#: Function that returns the files of a version below a path.
Below = Callable[[str], Iterable[str]]


class Obstacle(StrEnum):
    """A reason why a patch does not merge."""

    MISPLACED = "misplaced"
    CONFLICT = "conflict"
    MISSING = "file missing"


class MergeError(PatchError):
    """A change of a patch does not merge; ``detail`` names the file or symbol that decides."""

    def __init__(self, obstacle: Obstacle, detail: str, what: str) -> None:
        super().__init__(what)
        self.obstacle = obstacle
        self.detail = detail


def merged_patch(step: PatchStep, read: Read, below: Below) -> Changes:
    """Return the files that a patch gives, merged file by file onto those of another version.

    Raises:
        MergeError: a change conflicts, or may belong to another place.
    """
    changes: Changes = {}

    def current(path: str) -> TreeFile | None:
        return changes[path] if path in changes else read(path)

    for diff in step.patch.files:
        changes |= merged_file(diff, step, current)
    check_room(changes, read, below)
    return changes


def check_room(changes: Changes, read: Read, below: Below) -> None:
    """Raise MergeError if a new file has the path of a folder, or a path below a file."""

    def is_there(path: str) -> bool:
        return (changes[path] if path in changes else read(path)) is not None

    for path in (path for path, file in changes.items() if file and read(path) is None):
        folders = [str(folder) for folder in PurePosixPath(path).parents][:-1]
        if other := next(filter(is_there, (*folders, *below(path))), ""):
            detail = f"{other} is there already"
            what = f"{path} cannot be added: {detail}"
            raise MergeError(Obstacle.CONFLICT, detail, what)


def merged_file(diff: FileDiff, step: PatchStep, read: Read) -> Changes:
    """Return the files that a patch's change of a file gives, merged onto the files of ``read``.

    Raises:
        MergeError: the change conflicts, or may belong to another place.
    """
    if diff.old is None:
        path = diff.new or ""
        new, known = TreeFile(diff.new_mode or FILE_MODES[0], step.after[path]), read(path)
        if known is not None and known.data != new.data:
            detail = f"{path} is there already"
            raise MergeError(Obstacle.CONFLICT, detail, f"{detail}, with other content")
        return {path: new}
    path, current = diff.old, read(diff.old)
    if current is None:
        raise MergeError(Obstacle.MISSING, path, f"{path} is not there")
    if diff.new is None:
        if current.data != step.before[path]:
            what = f"{path} is removed by the patch, and changed upstream"
            raise MergeError(Obstacle.CONFLICT, path, what)
        return {path: None}
    if diff.new != path and read(diff.new) is not None:
        detail = f"{diff.new} is there already"
        raise MergeError(Obstacle.CONFLICT, detail, f"{detail}, and the patch renames {path} to it")
    kinds = {mode == SYMLINK_MODE for mode in (current.mode, diff.old_mode or diff.mode) if mode}
    if len(kinds) > 1:
        what = f"{path} is a symbolic link on one side alone"
        raise MergeError(Obstacle.CONFLICT, path, what)
    contents = step.before[path], step.after[diff.new]
    data = merge_data(current.data, *contents)
    if data is None:
        raise MergeError(Obstacle.CONFLICT, path, f"it conflicts with {path}")
    if diff.hunks and (wrong := misplaced(diff, contents, (current.data, data), path)):
        detail = wrong[0].detail
        what = f"{path}: misplaced: {detail}"
        raise MergeError(Obstacle.MISPLACED, f"{path}: {detail}", what)
    file = TreeFile(diff.new_mode or current.mode, data)
    return {diff.new: file} if diff.new == path else {path: None, diff.new: file}


class MergeTarget:
    """The files of a commit or tree, with the patches merged so far.

    Attributes:
        files: the files that patches changed; None for a removed file.
        compared: path and content of each file that got a merged change.
    """

    def __init__(self, git: Git, commit: str) -> None:
        self._git = git
        self._commit = commit
        self.files: Changes = {}
        self.compared: list[tuple[str, bytes]] = []

    def merged(self, step: PatchStep) -> Changes:
        """Return the files that a patch changes, with the patch merged, without unchanged files.

        Raises:
            PatchError: the patch does not merge cleanly.
        """
        changes = merged_patch(step, self._read, self._below)
        for diff in step.patch.files:
            if diff.old and diff.hunks and (current := self._read(diff.old)):
                self.compared.append((diff.old, current.data))
        return {path: file for path, file in changes.items() if file != self._read(path)}

    def added(self, files: Mapping[str, TreeFile]) -> Changes:
        """Return those of ``files`` that the merged tree lacks.

        Raises:
            PatchError: the tree has a file of that path with other content, or no room for it.
        """
        for path, file in files.items():
            if self._read(path) not in (None, file):
                raise PatchError(f"{path} is there already, with other content")
        check_room(dict(files), self._read, self._below)
        return {path: file for path, file in files.items() if file != self._read(path)}

    def _below(self, path: str) -> Iterator[str]:
        """Yield the files of the merged tree below a path, and some that are gone."""
        listed = {**list_tree(self._git, self._commit, path), **self.files}
        yield from (other for other in listed if other.startswith(f"{path}/"))

    def _read(self, path: str) -> TreeFile | None:
        """Return a file of the merged tree; None if it is missing."""
        if path not in self.files:
            mode, oid = list_tree(self._git, self._commit, path).get(path, ("", ""))
            data = read_blobs(self._git, [oid])[oid] if oid else None
            if oid and data is None:
                raise PatchError(f"{path} is not in the mirror, which is partial")
            self.files[path] = TreeFile(mode, data) if data is not None else None
        return self.files[path]
