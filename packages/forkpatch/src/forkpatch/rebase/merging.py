# SPDX-License-Identifier: Apache-2.0
"""Merges of patches in memory, for patches that merge cleanly and stay in their places.

Git merges all other patches in the working tree, where a person can see the result. Both ways give
the same result; a merge in memory reads only the files that the patch changes.
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

# Number of patches that are merged before one git call compares the places of their changes.
# After a misplaced patch, the later merges of the batch are wasted.
_TOGETHER = 16


class HeadFiles:
    """The files of a commit, with the changes of the patches merged onto it.

    Args:
        git: the repository.
        commit: the commit.
        paths: files that will be read; one call of git reads them in advance.
    """

    def __init__(self, git: Git, commit: str, paths: Iterable[str] = ()) -> None:
        self._git = git
        self._listed = list_tree(git, commit)
        self._folders = {path.rpartition("/")[0] for path in self._listed}
        self._changed: Changes = {}
        blob_ids = {path: self._listed[path][1] for path in paths if path in self._listed}
        self._blobs = read_blobs(git, blob_ids.values())

    def read(self, path: str) -> TreeFile | None:
        """Return a file; None if no file has that path."""
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
        """Apply the changes of a patch to the files."""
        self._changed |= changes

    def has_room(self, path: str) -> bool:
        """Return True when a new file ``path`` collides with no file and no folder."""
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        inside = any(folder.startswith(f"{path}/") for folder in self._folders)
        return not inside and path not in self._folders and not any(map(self._has, above))

    def _has(self, path: str) -> bool:
        """Return True when the files include a file at a path."""
        return self._changed[path] is not None if path in self._changed else path in self._listed


@dataclass(frozen=True)
class Merge:
    """A merge of a file's changes onto another version of the file.

    Attributes:
        diff: the patch's diff of the file.
        here: the file before the merge; None for a new file.
        file: the file after the merge; None for a removed file.
    """

    diff: FileDiff
    here: TreeFile | None
    file: TreeFile | None

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.diff.new or self.diff.old or ""

    @property
    def contents(self) -> tuple[bytes, bytes]:
        """The file's contents before and after the merge; both empty if it is new or removed."""
        return (self.here.data, self.file.data) if self.here and self.file else (b"", b"")

    def is_in_place(self, step: PatchStep, base: NewBase, lines: ChangedLines) -> bool:
        """Return True when every change is at the place where the patch makes it."""
        if self.here is None or self.file is None:
            return True
        old = step.before[self.path], step.after[self.path]
        return not (
            misplaced(self.diff, old, self.contents, self.path, lines)
            or any(survivors(self.diff, old, self.here.data, self.path, base))
        )


def merge_patches(steps: Sequence[PatchStep], files: HeadFiles, base: NewBase) -> list[Changes]:
    """Merge patches, up to the first that does not merge, onto the files of a commit.

    Args:
        steps: the patches.
        files: the files that the patches are merged onto; they get the changes.
        base: files and renames of the new version.

    Returns:
        The changed files of each patch before the first that does not merge cleanly, changes
        nothing, or is misplaced.
    """
    results: list[Changes] = []
    while len(results) < len(steps):
        batch = steps[len(results) : len(results) + _TOGETHER]
        results += (merged := _merge_some(batch, files, base))
        if len(merged) < len(batch):
            break
    return results


def _merge_some(steps: Iterable[PatchStep], files: HeadFiles, base: NewBase) -> list[Changes]:
    """Merge a batch of patches as :func:`merge_patches` does, and compare all with a git call."""
    merged: list[tuple[PatchStep, list[Merge], Changes]] = []
    for step in steps:
        merges = [_merged(diff, step, files) for diff in step.patch.files]
        clean = [item for item in merges if item]
        changes = {item.path: item.file for item in clean if item.file != item.here}
        if len(clean) < len(merges) or not changes:
            break
        files.update(changes)
        merged.append((step, clean, changes))
    lines = iter(changed_lines([item.contents for _, merges, _ in merged for item in merges]))
    results: list[Changes] = []
    for step, clean, changes in merged:
        if not all(item.is_in_place(step, base, next(lines)) for item in clean):
            break
        results.append(changes)
    return results


def _merged(diff: FileDiff, step: PatchStep, files: HeadFiles) -> Merge | None:
    """Return the merge of a file; None when it does not merge cleanly in memory."""
    if diff.binary or diff.copied:
        return None
    if diff.old is None:
        path, mode = diff.new or "", diff.new_mode or FILE_MODES[0]
        is_plain = mode in FILE_MODES and files.has_room(path)
        return Merge(diff, None, TreeFile(mode, step.after[path])) if is_plain else None
    current, before = files.read(diff.old), step.before[diff.old]
    if current is None or current.mode not in FILE_MODES or diff.new not in (None, diff.old):
        return None
    if diff.new is None:
        return Merge(diff, current, None) if current.data == before else None
    data = merge_data(current.data, before, step.after[diff.new])
    if data is None:
        return None
    mode = diff.new_mode if diff.new_mode and diff.new_mode != diff.old_mode else current.mode
    return Merge(diff, current, TreeFile(mode, data))
