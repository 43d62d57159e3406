# SPDX-License-Identifier: Apache-2.0
"""Merges of a series in memory: the hunks of each patch are carried to the new version's files.

A forecast is not trusted: git merges each patch, too (:mod:`forkpatch.rebase.merging`). It is made
for patches that edit, add or remove files by hunks, at a path that the new version has, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forkpatch.git.calls import Git
from forkpatch.git.merge import changed_lines, lines_between
from forkpatch.git.objects import Changes, TreeFile, list_tree, read_blobs
from forkpatch.model.diffs import FileDiff
from forkpatch.safety import FILE_MODES
from forkpatch.symbols.carrying import Carried, Versions, carried
from forkpatch.symbols.text import text
from forkpatch.tree.fork import PatchStep


@dataclass(frozen=True)
class Forecast:
    """The merge of a patch.

    Attributes:
        here: the files that the patch names, before the merge.
        after: the same files after the merge; without removed files.
        changes: the files that change.
        edits: the edits of the files that differ between both versions.
        versions: both versions of each edited file after the patch.
    """

    here: Mapping[str, bytes]
    after: Mapping[str, bytes]
    changes: Changes
    edits: Mapping[str, Carried]
    versions: Mapping[str, Versions]


class Onto:
    """The tree that patches are merged onto, one after the other.

    ``old`` is the commit that the first patch was made for.
    """

    def __init__(self, git: Git, tree: str, old: str, steps: Sequence[PatchStep]) -> None:
        listed = list_tree(git, tree)
        self._modes = {path: mode for path, (mode, _) in listed.items()}
        first = {path: step for step in reversed(steps) for path in step.patch.paths}
        ids = {path: listed[path][1] for path in first if self._modes.get(path) in FILE_MODES}
        blobs = read_blobs(git, ids.values())
        self._data = {path: blobs[oid] or b"" for path, oid in ids.items()}
        edited = [path for path in self._data if path in first[path].before]
        self._versions = {
            path: Versions.of(
                text(path, first[path].before[path]), text(path, self._data[path]), ranges
            )
            for path, ranges in lines_between(git, old, tree, edited).items()
        }

    def forecast(self, step: PatchStep) -> Forecast | None:
        """Return the merge of a patch; None when only git can merge it."""
        here = {path: self._data[path] for path in step.patch.paths if path in self._data}
        changes: Changes = {}
        edits, versions = dict[str, Carried](), dict[str, Versions]()
        for diff in step.patch.files:
            path, now = diff.new or diff.old or "", here.get(diff.old or "")
            if not _is_plain(diff) or (diff.old is None and path in self._modes):
                return None
            if diff.old is None:
                changes[path] = TreeFile(diff.new_mode or "100644", step.after[path])
            elif now is None or (diff.new is None and now != step.before[path]):
                return None
            elif diff.new is None:
                changes[path] = None
            else:
                edit = carried(diff, self._versions_of(path, step.before[path], now))
                data = edit.merged()
                if data is None:
                    return None
                versions[path] = edit.versions_after(step.after[path], data)
                if now != step.before[path]:
                    edits[path] = edit
                if data != now:
                    changes[path] = TreeFile(self._modes[path], data)
        after = here | {path: file.data for path, file in changes.items() if file}
        after = {path: data for path, data in after.items() if changes.get(path, path) is not None}
        return Forecast(here, after, changes, edits, versions)

    def _versions_of(self, path: str, old: bytes, new: bytes) -> Versions:
        """Return both versions of a file."""
        known = self._versions.get(path)
        if known is None or (known.old.data, known.new.data) != (old, new):
            return Versions.of(text(path, old), text(path, new), changed_lines([(old, new)])[0])
        return known

    def apply(self, forecast: Forecast) -> None:
        """Merge a patch as forecast."""
        self._versions |= forecast.versions
        for path, file in forecast.changes.items():
            if file is None:
                del self._modes[path], self._data[path]
            else:
                self._modes[path], self._data[path] = file.mode, file.data


def _is_plain(diff: FileDiff) -> bool:
    """Return True when a patch edits, adds or removes a text file, and does no more."""
    stays = diff.old == diff.new and diff.old_mode == diff.new_mode
    return not diff.copied and not diff.binary and (stays or None in (diff.old, diff.new))
