# SPDX-License-Identifier: Apache-2.0
"""Merges of patches by two ways that must agree, and the check that each change is in its place.

Git's ``ort`` merges the trees: by its histogram diff, with renames of files and folders. Beside it,
each hunk is carried along git's Myers diff between the old and the new file, and must find the same
place (:mod:`forkpatch.symbols.placement`). Nothing is checked out.

The carried hunks forecast the trees of a whole series; one call of git then merges all patches,
each onto its forecast. A forecast is made for patches that edit, add or remove files by hunks, at a
path that the new version has, too. Any other patch is merged by itself, and so is one whose merge
is not as forecast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import NamedTuple

from forkpatch.git.calls import Git
from forkpatch.git.merge import changed_lines, file_diffs, ranges_of
from forkpatch.git.objects import (
    Changes,
    Commit,
    TreeFile,
    changed_files,
    list_tree,
    read_blobs,
    write_commits,
)
from forkpatch.model.diffs import FileDiff
from forkpatch.safety import FILE_MODES, SYMLINK_MODE
from forkpatch.symbols.carrying import Carried, Versions, carried, carry, edits_of
from forkpatch.symbols.newbase import NewBase, target_of
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.symbols.placement import Misplacement, misplaced, rivalled
from forkpatch.symbols.text import is_outermost, text
from forkpatch.tree.fork import PatchStep

# Number of patches that are merged together: after one that is not as forecast, the rest is wasted.
_TOGETHER = 128
_FEW = 8  # patches whose files alone are compared: the lines of more are searched in all files
# Later than every commit: git then finds the merge base without a walk through the history.
_LATE = b"4102444800 +0000"
_REF = "refs/forkpatch/merging"
_NO_FILE = "0" * 40
#: Path and message of each change that may be at a wrong place.
Errors = list[tuple[str, Misplacement]]
MERGE_OPTIONS = ("-c", "merge.directoryRenames=true", "-c", "merge.renames=true")


class FileMove(NamedTuple):
    """A file that a patch edits, as :func:`misplaced` takes it."""

    diff: FileDiff
    old: tuple[bytes, bytes]
    new: tuple[bytes, bytes]
    path: str


@dataclass(frozen=True)
class Move:
    """A patch that git merges onto another commit without a conflict.

    Attributes:
        onto: the tree before the merge.
        tree: the tree after it.
        here: the files before the merge that the patch names or the merge changes.
        after: the same files after the merge; without removed files.
    """

    step: PatchStep
    onto: str
    tree: str
    here: Mapping[str, bytes]
    after: Mapping[str, bytes]

    @property
    def is_done(self) -> bool:
        """True when the merge changes nothing: the new version has every change at its place."""
        return self.tree == self.onto

    def done_at(self, base: NewBase) -> Iterator[str]:
        """Yield path and symbol of each change that the new version has already."""
        for item in self.files(base):
            symbols = outline(item.path, item.new[0])
            for place in filter(None, carry(item.diff, item.old[0], item.new[0], item.path).places):
                yield f"{item.path}: {symbols.at(place.rows[0] + 1).name}"

    def files(self, base: NewBase) -> Iterator[FileMove]:
        """Yield the files whose lines the patch edits."""
        for diff in self.step.patch.files:
            if diff.old is None or diff.new is None or not diff.hunks or diff.copied:
                continue
            path = _path_in(self.here, diff.old, base)
            now = path if diff.new == diff.old else diff.new
            if path in self.here:
                old = self.step.before[diff.old], self.step.after[diff.new]
                yield FileMove(diff, old, (self.here[path], self.after.get(now, b"")), path)

    def file_errors(
        self, base: NewBase, paths: Collection[str]
    ) -> Iterator[tuple[str, Misplacement]]:
        """Yield path and message for each change beyond edits that may be at a wrong place.

        Upstream may have moved a file, link to it, or add the same file or lines elsewhere.
        ``paths`` are the files of the tree before the merge.
        """
        expected = set()
        for diff in self.step.patch.files:
            path = _path_in(self.here, diff.old, base) if diff.old else diff.new or ""
            expected |= {path, diff.new or path}
            given = self._given(diff, path)
            now = path if diff.new == diff.old else diff.new or path
            if given is not None and self.after.get(now, given) != given:
                what = "the merge gives it other lines than the patch: git takes it for renamed"
                yield now, Misplacement(MODULE, what)
                continue
            if diff.old is None:
                data = self.step.after[path]
                # An empty file, such as an ``__init__.py``, is no copy of another one.
                is_same = not data or self.here.get(path) == data
                others = [] if is_same else [*base.namesakes(path), *base.having(path, data)]
                if others:
                    yield path, Misplacement(MODULE, f"upstream adds {others[0]}")
                    continue
            elif path not in self.here:
                others = base.namesakes(diff.old)
                where = f"; {others[0]} is new" if others else ""
                if diff.new is not None or others:
                    yield path, Misplacement(MODULE, f"{diff.old} is gone{where}")
            elif diff.new is None and path != diff.old:
                yield path, Misplacement(MODULE, f"upstream renamed {diff.old} to {path}")
            is_changed = self.here.get(path) != self.after.get(diff.new or path)
            edits = edits_of(diff) if is_changed else ()
            # Blocks inside of functions may be alike.
            runs = (edit.new for edit in edits if is_outermost(edit.new))
            for other, row in islice((at for run in runs for at in base.standing(run, path)), 1):
                what = f"upstream adds the same lines to {other}, at line {row + 1}"
                yield path, Misplacement(MODULE, what)
        yield from self._broken_links(base, paths)
        for path in sorted({*self.here, *self.after} - expected):
            if self.here.get(path) != self.after.get(path) and not self._is_followed(path):
                yield path, Misplacement(MODULE, "the merge changes it, and the patch does not")

    def _given(self, diff: FileDiff, path: str) -> bytes | None:
        """Return the content that a patch gives a file as a whole; None for edits of lines.

        Git may merge another file's change into it, as if one of both were the other, renamed.
        """
        if diff.new is None:
            return None
        if diff.old is None or diff.copied or diff.binary:
            return self.step.after[diff.new]
        return None if diff.hunks else self.here.get(path)

    def _broken_links(
        self, base: NewBase, paths: Collection[str]
    ) -> Iterator[tuple[str, Misplacement]]:
        """Yield path and message for each new link of one side to what the other side removes.

        The target may be a file, or a folder of which no file is left.
        """
        files = self.step.patch.files
        links = [file for file in files if SYMLINK_MODE in (file.new_mode, file.mode)]
        removed = {file.old for file in files if file.old and file.old not in self.after}
        theirs = base.links.items() if removed else ()
        left = {*paths} - removed | self.after.keys() if links or theirs else set[str]()
        for link in links:
            if (path := link.new) is None:
                continue
            data = self.step.after[path]
            # From another folder, a link points elsewhere.
            place = _path_in(self.here, path, base) if link.old == path else path
            target, there = (_entry(target_of(one, data), base.old) for one in (path, place))
            was = _first_at(target, base.old)
            if was and not _first_at(there, base.new) and not _first_at(there, left):
                if place != path:
                    what = f"as {place} it links to {there}, which is not there"
                    yield path, Misplacement(MODULE, what)
                    continue
                now = base.renames.get(was)
                what = f"renamed {was} to {now}" if now else f"removed {target}"
                yield path, Misplacement(MODULE, f"upstream {what}, to which it links")
        for path, target in theirs:
            was = _first_at(target, sorted(removed))
            if was and not _first_at(target, left):
                yield was, Misplacement(MODULE, f"upstream links {path} to {target}")

    def _is_followed(self, path: str) -> bool:
        """Return True if ``path`` is new in the merge, with name and content of an added file."""
        name = path.rpartition("/")[2]
        added = (diff.new for diff in self.step.patch.files if diff.old is None and diff.new)
        data = [self.step.after[new] for new in added if new.rpartition("/")[2] == name]
        return self.after.get(path) in data and path not in self.here


def _path_in(here: Mapping[str, bytes], path: str, base: NewBase) -> str:
    """Return the path that a file of the old version has in the new one."""
    return path if path in here else base.renames.get(path, path)


def _entry(target: str, paths: Iterable[str]) -> str:
    """Return the submodule or link that a target is below, whose files no tree lists; or it."""
    return next((path for path in paths if target.startswith(f"{path}/")), target)


def _first_at(target: str, paths: Iterable[str]) -> str:
    """Return the first path that is ``target`` or is below it; empty without such a path."""
    return next((path for path in paths if path == target or path.startswith(f"{target}/")), "")


def _misplacements(move: Move, base: NewBase, paths: Collection[str]) -> Errors:
    """Return path and message for each change of a merge that may be at a wrong place."""
    errors = list(move.file_errors(base, paths))
    for item in move.files(base):
        errors += [(item.path, error) for error in misplaced(*item, elsewhere=base)]
    return errors


def merge_patches(
    git: Git, head: str, steps: Sequence[tuple[PatchStep, str]], base: NewBase
) -> tuple[list[Move], Errors]:
    """Merge patches, each with its old commit, up to the first in conflict or perhaps misplaced.

    Returns:
        The merges before that one, and its misplacements; none for a conflict.
    """
    moves: list[Move] = []
    tree = git.text("rev-parse", f"{head}^{{tree}}")
    while len(moves) < len(steps):
        batch = steps[len(moves) : len(moves) + _TOGETHER]
        forecasts, errors = _forecasts(git, tree, batch, base)
        merged = _as_forecast(git, tree, forecasts, batch)
        moves += merged
        tree = moves[-1].tree if moves else tree
        if errors and len(merged) == len(forecasts):
            return moves, errors
        if len(merged) < len(batch):
            move = _merged(git, tree, *batch[len(merged)], base)
            if move is None:
                return moves, []
            if errors := _misplacements(move, base, list_tree(git, tree)):
                return moves, errors
            moves.append(move)
            tree = move.tree
    return moves, []


def _forecasts(
    git: Git, tree: str, steps: Sequence[tuple[PatchStep, str]], base: NewBase
) -> tuple[list[Forecast], Errors]:
    """Return the forecasts up to a patch without one, or one with errors; and these errors."""
    every, found = [step for step, _ in steps], list[Forecast]()
    onto = Onto(git, tree, f"{steps[0][1]}^", every, base)
    for step in every:
        forecast = onto.forecast(step)
        if forecast is None:
            break
        move = Move(step, "", "", forecast.here, forecast.after)
        errors = list(move.file_errors(base, onto.paths))
        for path, edits in forecast.edits.items():
            wrong = rivalled(edits, step.after[path], base)
            errors += [(path, error) for error in wrong]
        if errors:
            return found, errors
        onto.apply(forecast)
        # Both versions of each edited file, line by line: they would fill the memory.
        found.append(replace(forecast, edits={}, versions={}))
    return found, []


def _as_forecast(
    git: Git, tree: str, forecasts: Sequence[Forecast], steps: Sequence[tuple[PatchStep, str]]
) -> list[Move]:
    """Return git's merges up to the first that is not as forecast."""
    if not forecasts:
        return []
    first = Commit(b"", tree=tree)
    commits = [first, *(Commit(b"", changes=one.changes) for one in forecasts)]
    ids = write_commits(git, _REF, commits, brief=True)
    written = read_blobs(git, ids)
    trees = [(written[oid] or b"")[len("tree ") :].split(b"\n")[0].decode("ascii") for oid in ids]
    pairs = list(zip(trees, (original for _, original in steps), strict=False))[:-1]
    merged = _merge_trees(git, pairs)
    agreed = takewhile(lambda both: both[0] == both[1], zip(merged, trees[1:], strict=False))
    return [
        Move(step, onto, after, forecast.here, forecast.after)
        for (after, _), onto, (step, _), forecast in zip(
            agreed, trees, steps, forecasts, strict=False
        )
    ]


def merge_tree(git: Git, ours: str, original: str) -> str:
    """Return the tree of a patch's commit merged onto a tree; empty with a conflict."""
    return next(iter(_merge_trees(git, [(ours, original)])), "")


def _merge_trees(git: Git, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the trees of patches' commits merged onto trees, up to the first conflict."""
    commits = [
        Commit(b"", tree=ours, parent=f"{original}^", date=_LATE) for ours, original in pairs
    ]
    heads = write_commits(git, _REF, commits, chained=False, brief=True)
    text = "".join(f"{head} {original}\n" for head, (_, original) in zip(heads, pairs, strict=True))
    command = (*MERGE_OPTIONS, "merge-tree", "--write-tree", "--stdin", "-z", "--no-messages")
    fields = git.run(*command, stdin=text.encode("ascii")).stdout.decode("ascii", "replace")
    found = []
    for record in zip(*[iter(fields.split("\0"))] * 3, strict=False):
        if record[0] != "1":  # what follows lists the conflicts
            break
        found.append(record[1])
    return found


def _merged(git: Git, tree: str, step: PatchStep, original: str, base: NewBase) -> Move | None:
    """Return git's merge of a single patch; None with a conflict."""
    merged = merge_tree(git, tree, original)
    if not merged:
        return None
    files = list_tree(git, tree)
    changed = changed_files(git, tree, merged)
    paths = {*step.patch.paths, *changed}
    # Renames are searched for a missing file only.
    missing = [path for path in step.patch.paths if path not in files]
    paths |= {base.renames.get(path, path) for path in missing if path in base.old}
    before = {path: files[path][1] for path in paths if path in files}
    after = before | {path: oid for path, (_, _, _, oid) in changed.items()}
    after = {path: oid for path, oid in after.items() if oid != _NO_FILE}
    blobs = read_blobs(git, {*before.values(), *after.values()})
    sides = ({path: blobs[oid] or b"" for path, oid in side.items()} for side in (before, after))
    return Move(step, tree, merged, *sides)


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

    def __init__(
        self, git: Git, tree: str, old: str, steps: Sequence[PatchStep], base: NewBase
    ) -> None:
        listed = list_tree(git, tree)
        self._modes = {path: mode for path, (mode, _) in listed.items()}
        first = {path: step for step in reversed(steps) for path in step.patch.paths}
        ids = {path: listed[path][1] for path in first if self._modes.get(path) in FILE_MODES}
        blobs = read_blobs(git, ids.values())
        self._data = {path: blobs[oid] or b"" for path, oid in ids.items()}
        edited = [path for path in self._data if path in first[path].before]
        names = (f"{one}^{{tree}}" for one in (old, *base.trees))
        was, *versions = git.text("rev-parse", *names).split()
        is_whole = len(steps) > _FEW and versions == [was, tree]
        diffs = base.diffs if is_whole else file_diffs(git, old, tree, *edited) if edited else {}
        self._versions = {
            path: Versions.of(
                text(path, first[path].before[path]),
                text(path, self._data[path]),
                [*ranges_of(diffs[path])],
            )
            for path in edited
            if path in diffs
        }

    @property
    def paths(self) -> Collection[str]:
        """The files of the tree."""
        return self._modes.keys()

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
