# SPDX-License-Identifier: Apache-2.0
"""Merges of patches by two ways that must agree, and the check that each change is in its place.

Git's ``ort`` merges the trees: by its histogram diff, with renames of files and folders. Beside it,
each hunk is carried along git's Myers diff between the old and the new file, and must find the same
place (:mod:`forkpatch.symbols.placement`). Nothing is checked out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forkpatch.git.calls import Git
from forkpatch.git.merge import changed_lines
from forkpatch.git.objects import COMMITTER, list_tree, read_blobs
from forkpatch.inspect.newbase import NewBase
from forkpatch.model.diffs import FileDiff
from forkpatch.symbols.carrying import carry
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.symbols.placement import Misplacement, misplaced
from forkpatch.tree.fork import PatchStep

# Number of patches that are merged before one git call compares their files.
# After a misplaced patch, the later merges of the batch are wasted.
_TOGETHER = 16
_NO_FILE = "0" * 40
_AUTHOR = {"GIT_AUTHOR_NAME": "forkpatch", "GIT_AUTHOR_EMAIL": "forkpatch@localhost"}
# Later than every commit: git then finds the merge base without a walk through the history.
_DATE = "@4102444800 +0000"
_DATES = {"GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE}
_IDENTITY = {**COMMITTER, **_AUTHOR, **_DATES}
MERGE_OPTIONS = ("-c", "merge.directoryRenames=true", "-c", "merge.renames=true")


@dataclass(frozen=True)
class FileMove:
    """A file that a patch edits: before and after the patch, and before and after the merge."""

    diff: FileDiff
    path: str
    old: tuple[bytes, bytes]
    new: tuple[bytes, bytes]


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
                yield FileMove(diff, path, old, (self.here[path], self.after.get(now, b"")))

    def file_errors(self, base: NewBase) -> Iterator[tuple[str, Misplacement]]:
        """Yield path and message for each file that the merge adds or removes at a wrong place."""
        expected = set()
        for diff in self.step.patch.files:
            path = _path_in(self.here, diff.old, base) if diff.old else diff.new or ""
            expected |= {path, diff.new or path}
            if diff.old is None:
                others = (
                    [] if self.here.get(path) == self.step.after[path] else base.namesakes(path)
                )
                if others:
                    yield path, Misplacement(MODULE, f"upstream adds {others[0]}")
            elif path not in self.here:
                others = base.namesakes(diff.old)
                where = f"; {others[0]} is new" if others else ""
                if diff.new is not None or others:
                    yield path, Misplacement(MODULE, f"{diff.old} is gone{where}")
            elif diff.new is None and path != diff.old:
                yield path, Misplacement(MODULE, f"upstream renamed {diff.old} to {path}")
        for path in self._changed():
            if path not in expected and not self._is_followed(path):
                yield path, Misplacement(MODULE, "the merge changes it, and the patch does not")

    def _changed(self) -> list[str]:
        """Return the paths that the merge changes."""
        paths = sorted({*self.here, *self.after})
        return [path for path in paths if self.here.get(path) != self.after.get(path)]

    def _is_followed(self, path: str) -> bool:
        """Return True for a new file that git puts into a folder that upstream renamed."""
        name = path.rpartition("/")[2]
        added = (diff.new for diff in self.step.patch.files if diff.old is None and diff.new)
        data = [self.step.after[new] for new in added if new.rpartition("/")[2] == name]
        return self.after.get(path) in data and path not in self.here


def _path_in(here: Mapping[str, bytes], path: str, base: NewBase) -> str:
    """Return the path that a file of the old version has in the new one."""
    return path if path in here else base.renames.get(path, path)


def misplacements(moves: Sequence[Move], base: NewBase) -> list[list[tuple[str, Misplacement]]]:
    """Return path and message for each change of some merges that may be at a wrong place."""
    files = [list(move.files(base)) for move in moves]
    pairs = [(item.old[0], item.new[0]) for each in files for item in each]
    lines = iter(changed_lines(pairs))
    found = []
    for move, each in zip(moves, files, strict=True):
        errors = list(move.file_errors(base))
        for item in each:
            args = item.diff, item.old, item.new, item.path, next(lines)
            errors += [(item.path, error) for error in misplaced(*args, elsewhere=base.elsewhere)]
        found.append(errors)
    return found


def merge_tree(git: Git, ours: str, original: str) -> str:
    """Return the tree of a patch's commit merged onto a tree; empty with a conflict."""
    commit = ("commit-tree", ours, "-p", f"{original}^", "-m", "ours")
    here = git.run(*commit, env=_IDENTITY).stdout.decode("ascii").strip()
    command = (*MERGE_OPTIONS, "merge-tree", "--write-tree", "-z", "--no-messages")
    done = git.run(*command, here, original, ok=(0, 1))
    return "" if done.returncode else done.stdout.split(b"\0")[0].decode("ascii").strip()


@dataclass(frozen=True)
class Merges:
    """The merges of a series.

    Attributes:
        moves: the merges up to the first that has conflicts or may be misplaced.
        errors: path and message of that merge's misplacements; empty for a conflict.
    """

    moves: list[Move]
    errors: list[tuple[str, Misplacement]]


def merge_patches(
    git: Git, head: str, steps: Sequence[tuple[PatchStep, str]], base: NewBase
) -> Merges:
    """Merge patches onto a commit, up to the first that has conflicts or may be misplaced.

    Args:
        git: the repository.
        head: the commit.
        steps: the patches, with their commits on the old base.
        base: files and renames of the new version.
    """
    results: list[Move] = []
    commit, tree = git.text("rev-parse", head, f"{head}^{{tree}}").split()
    files = list_tree(git, commit)
    while len(results) < len(steps):
        batch = steps[len(results) : len(results) + _TOGETHER]
        moves = _merge_some(git, tree, files, batch, base)
        for move, errors in zip(moves, misplacements(moves, base), strict=True):
            if errors:
                return Merges(results, errors)
            results.append(move)
        if len(moves) < len(batch):
            break
        tree = moves[-1].tree
    return Merges(results, [])


def _merge_some(
    git: Git,
    tree: str,
    files: dict[str, tuple[str, str]],
    steps: Sequence[tuple[PatchStep, str]],
    base: NewBase,
) -> list[Move]:
    """Merge patches up to the first conflict; ``files`` of the tree get the changes."""
    trees = [tree]
    for _, original in steps:
        if not (merged := merge_tree(git, trees[-1], original)):
            break
        trees.append(merged)
    named, ids = [], set[str]()
    for (step, _), changed in zip(steps, _changes(git, trees), strict=False):
        paths = {*step.patch.paths, *changed}
        paths |= {base.renames[path] for path in step.patch.paths if _is_renamed(path, files, base)}
        before = {path: files[path][1] for path in paths if path in files}
        for path, entry in changed.items():
            if entry[1] == _NO_FILE:
                del files[path]
            else:
                files[path] = entry
        after = {path: files[path][1] for path in paths if path in files}
        named.append((before, after))
        ids |= {*before.values(), *after.values()}
    blobs = read_blobs(git, ids)
    return [
        Move(
            step,
            onto,
            merged,
            *({path: blobs[oid] or b"" for path, oid in side.items()} for side in both),
        )
        for (step, _), onto, merged, both in zip(steps, trees, trees[1:], named, strict=False)
    ]


def _is_renamed(path: str, files: Mapping[str, object], base: NewBase) -> bool:
    """Return True when upstream renamed a file; renames are searched only for a missing file."""
    return path not in files and base.was(path) is not None and path in base.renames


def _changes(git: Git, trees: Sequence[str]) -> list[dict[str, tuple[str, str]]]:
    """Return mode and id of each file that differs between a tree and the next one."""
    pairs = "".join(f"{old} {new}\n" for old, new in pairwise(trees))
    command = ("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-abbrev", "--no-renames")
    out = git.run(*command, stdin=pairs.encode("ascii")).stdout
    found: list[dict[str, tuple[str, str]]] = []
    fields = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    for field in fields:
        *heads, change = field.split("\n")  # a line names each pair of trees
        found += [{} for _ in heads]
        if change:
            _, mode, _, oid, _ = change.split(" ")
            found[-1][next(fields)] = mode, oid
    return found
