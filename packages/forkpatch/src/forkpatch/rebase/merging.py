# SPDX-License-Identifier: Apache-2.0
"""Merges of patches in memory, for those that merge cleanly and stay where they belong.

A patch that is not merged here is merged by git in the working tree, where a person can see the
result. Both give the same result; here only the files that the patch changes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from forkpatch.git.calls import Git
from forkpatch.git.merge import merge_data
from forkpatch.git.objects import Changes, TreeFile, list_tree, read_blobs
from forkpatch.inspect.survivors import survivors
from forkpatch.inspect.upstreamed import NewBase
from forkpatch.model.diffs import FileDiff
from forkpatch.safety import FILE_MODES
from forkpatch.symbols.placement import misplaced
from forkpatch.tree.fork import PatchStep

Read = Callable[[str], TreeFile | None]


class HeadFiles:
    """The files of a commit, and of the commits that are to follow it.

    Args:
        git: the repository.
        commit: the commit.
        paths: files that will be read, which one call reads in advance.
    """

    def __init__(self, git: Git, commit: str, paths: Iterable[str] = ()) -> None:
        self._git = git
        self._listed = list_tree(git, commit)
        self._folders = {path.rpartition("/")[0] for path in self._listed}
        self._changed: Changes = {}
        wanted = {path: self._listed[path][1] for path in paths if path in self._listed}
        self._blobs = read_blobs(git, wanted.values())

    def read(self, path: str) -> TreeFile | None:
        """A file; None without a file at that path."""
        if path not in self._changed:
            if path not in self._listed:
                return None
            mode, oid = self._listed[path]
            if mode not in FILE_MODES:
                return TreeFile(mode, b"")
            if oid not in self._blobs:
                self._blobs |= read_blobs(self._git, [oid])
            self._changed[path] = TreeFile(mode, self._blobs[oid] or b"")
        return self._changed[path]

    def update(self, changes: Mapping[str, TreeFile | None]) -> None:
        """Take in the changes of a patch."""
        self._changed |= changes

    def has_room(self, path: str) -> bool:
        """True when neither the path, nor a folder of it, is a file, and it is not a folder."""
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        inside = any(folder.startswith(f"{path}/") for folder in self._folders)
        return not inside and path not in self._folders and not any(map(self._has, above))

    def _has(self, path: str) -> bool:
        return self._changed[path] is not None if path in self._changed else path in self._listed


def merge_patch(step: PatchStep, files: HeadFiles, base: NewBase) -> Changes | None:
    """The files that a patch changes, merged onto others than it was made for.

    Args:
        step: the patch.
        files: those that it is merged onto.
        base: the new version, which they are of.

    Returns:
        None unless all of it merges cleanly, something is left of it, and every change is in the
        place where the patch makes it.
    """
    changes: Changes = {}
    for diff in step.patch.files:
        merged = None if diff.binary or diff.copied else _merged(diff, step, files, base)
        if merged is None:
            return None
        changes |= merged
    return changes or None


def _merged(diff: FileDiff, step: PatchStep, files: HeadFiles, base: NewBase) -> Changes | None:
    if diff.old is None:
        path, mode = diff.new or "", diff.new_mode or FILE_MODES[0]
        is_plain = mode in FILE_MODES and files.has_room(path)
        return {path: TreeFile(mode, step.after[path])} if is_plain else None
    here, before = files.read(diff.old), step.before[diff.old]
    if here is None or here.mode not in FILE_MODES:
        return None
    if diff.new is None:
        return {diff.old: None} if here.data == before else None
    if diff.new != diff.old:
        return None
    after = step.after[diff.new]
    data = merge_data(here.data, before, after)
    if (
        data is None
        or misplaced(diff, (before, after), (here.data, data), diff.old)
        or any(survivors(diff, (before, after), here.data, diff.old, base))
    ):
        return None
    changed = diff.new_mode is not None and diff.old_mode != diff.new_mode
    file = TreeFile(diff.new_mode if changed and diff.new_mode else here.mode, data)
    return {} if file == here else {diff.new: file}
