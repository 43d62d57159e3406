# SPDX-License-Identifier: Apache-2.0
"""Merges of patches in memory, for those that merge cleanly and stay where they belong.

A patch that is not merged here is merged by git in the working tree, where a person can see the
result. Both give the same result; here only the files that the patch changes are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forkpatch.git.calls import Git
from forkpatch.git.merge import ChangedLines, changed_lines, merge_data
from forkpatch.git.objects import Changes, TreeFile, list_tree, read_blobs
from forkpatch.inspect.survivors import survivors
from forkpatch.inspect.upstreamed import NewBase
from forkpatch.model.diffs import FileDiff
from forkpatch.safety import FILE_MODES
from forkpatch.symbols.placement import misplaced
from forkpatch.tree.fork import PatchStep

# Patches that are merged before the places of their changes are looked at: one git compares them,
# and where one of them is not in its place, those behind it were merged for nothing.
_TOGETHER = 16


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


@dataclass(frozen=True)
class Merge:
    """One file of a patch, merged onto others than it was made for.

    Attributes:
        diff: what the patch does to it.
        here: the file that it is merged onto; None without one.
        file: the result; None when it is gone.
    """

    diff: FileDiff
    here: TreeFile | None
    file: TreeFile | None

    @property
    def path(self) -> str:
        """The file."""
        return self.diff.new or self.diff.old or ""

    @property
    def contents(self) -> tuple[bytes, bytes]:
        """The contents of the file before and after; twice nothing when it comes or goes."""
        return (self.here.data, self.file.data) if self.here and self.file else (b"", b"")

    def is_in_place(self, step: PatchStep, base: NewBase, lines: ChangedLines) -> bool:
        """True when every change is in the place where the patch makes it."""
        if self.here is None or self.file is None:
            return True
        old = step.before[self.path], step.after[self.path]
        return not (
            misplaced(self.diff, old, self.contents, self.path, lines)
            or any(survivors(self.diff, old, self.here.data, self.path, base))
        )


def merge_patches(steps: Sequence[PatchStep], files: HeadFiles, base: NewBase) -> list[Changes]:
    """The files that patches change, merged onto others than they were made for.

    Args:
        steps: the patches.
        files: those that they are merged onto, which take in the changes.
        base: the new version, which they are of.

    Returns:
        The changes of the first patches: of those before one that does not merge cleanly, of which
        nothing is left, or that is put in another place than the patch makes it.
    """
    found: list[Changes] = []
    while len(found) < len(steps):
        some = steps[len(found) : len(found) + _TOGETHER]
        found += (good := _merge_some(some, files, base))
        if len(good) < len(some):
            break
    return found


def _merge_some(steps: Iterable[PatchStep], files: HeadFiles, base: NewBase) -> list[Changes]:
    """The same for a few patches, whose merges one git compares."""
    merged: list[tuple[PatchStep, list[Merge], Changes]] = []
    for step in steps:
        merges = [_merged(diff, step, files) for diff in step.patch.files]
        whole = [one for one in merges if one]
        changes = {one.path: one.file for one in whole if one.file != one.here}
        if len(whole) < len(merges) or not changes:
            break
        files.update(changes)
        merged.append((step, whole, changes))
    lines = iter(changed_lines([one.contents for _, merges, _ in merged for one in merges]))
    found: list[Changes] = []
    for step, whole, changes in merged:
        if not all(one.is_in_place(step, base, next(lines)) for one in whole):
            break
        found.append(changes)
    return found


def _merged(diff: FileDiff, step: PatchStep, files: HeadFiles) -> Merge | None:
    if diff.binary or diff.copied:
        return None
    if diff.old is None:
        path, mode = diff.new or "", diff.new_mode or FILE_MODES[0]
        is_plain = mode in FILE_MODES and files.has_room(path)
        return Merge(diff, None, TreeFile(mode, step.after[path])) if is_plain else None
    here, before = files.read(diff.old), step.before[diff.old]
    if here is None or here.mode not in FILE_MODES or diff.new not in (None, diff.old):
        return None
    if diff.new is None:
        return Merge(diff, here, None) if here.data == before else None
    data = merge_data(here.data, before, step.after[diff.new])
    if data is None:
        return None
    mode = diff.new_mode if diff.new_mode and diff.new_mode != diff.old_mode else here.mode
    return Merge(diff, here, TreeFile(mode, data))
