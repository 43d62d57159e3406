# SPDX-License-Identifier: Apache-2.0
"""The verbs ``absorb`` and ``split``: rewrite the commits of a patched tree.

Both leave the tree's files as they are, and write no patch file: the maintainer checks the commits,
then runs ``export``. Git's reference moves last and in one step, so that a killed run leaves either
the old commits or the new commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from forkpatch.errors import IntegrityError, UserError
from forkpatch.git.calls import Git
from forkpatch.git.merge import ALGORITHM
from forkpatch.git.objects import Commit, write_commits
from forkpatch.model.diffs import FileDiff, Hunk, parse_diff
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch, moved
from forkpatch.safety import SYMLINK_MODE
from forkpatch.series.export import check_faithful, commits_of
from forkpatch.series.mailbox import export_commits, new_name, planned
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from forkpatch.tree.variants import patch_name
from forkpatch.tree.worktree import OVERLAYS_REF

_REWORKED = "refs/forkpatch/reworked"
_DIFF = (
    *("diff", "HEAD", "-U0", "--inter-hunk-context=0", f"--diff-algorithm={ALGORITHM}"),
    *("--full-index", "--binary", "--no-renames", "--no-color", "--no-ext-diff"),
    *("--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules"),
)


@dataclass(frozen=True)
class Absorbed:
    """A change of the tree that is in no commit.

    Attributes:
        line: first line in the tree; 0 for the whole file.
        patch: patch that got the change; empty if the change was left.
        reason: reason why the change was left.
    """

    path: str
    line: int
    patch: str
    reason: str = ""


@dataclass(frozen=True)
class WorkTree:
    """A patched tree with its present commits.

    Attributes:
        plan: plan of the tree that these commits give; its patches differ from the series' files.
    """

    folder: Path
    plan: TreePlan

    @property
    def git(self) -> Git:
        """The tree's git repository."""
        return Git(self.folder / ".git", self.folder)

    def move_to(self, commits: Sequence[Commit], paths: Sequence[str]) -> None:
        """Replace the commits of the patches, and update the index of the files ``paths``."""
        head, start = self.git.text("rev-parse", "HEAD", OVERLAYS_REF).splitlines()
        chain = [replace(commits[0], parent=start), *commits[1:]]
        tip = write_commits(self.git, _REWORKED, chain)[-1]
        if paths:
            stdin = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
            names = ("--pathspec-from-file=-", "--pathspec-file-nul")
            env = {"GIT_LITERAL_PATHSPECS": "1"}
            self.git.run("reset", "-q", *names, tip, stdin=stdin, env=env)
        self.git.run("update-ref", "HEAD", tip, head)
        self.git.run("update-ref", "-d", _REWORKED)


def open_work_tree(fork: Fork, release: str, upstream: Upstream) -> WorkTree:
    """Return the patched tree of a release; changes that are in no commit are allowed.

    Raises:
        UserError: the tree is missing or has no patch, or a commit cannot be a patch.
    """
    folder = fork.tree_folder(release, upstream)
    commits = commits_of(fork, release, upstream, loose=True)
    if not commits:
        raise UserError(f"{folder} has no patch", remedy="commit a change there")
    plan = planned(fork, upstream, export_commits(folder / ".git/objects", commits))
    check_faithful(plan, folder, [patch.name for patch in plan.patches])
    return WorkTree(folder, plan)


def absorb(tree: WorkTree) -> tuple[Absorbed, ...]:
    """Put the changes that are in no commit into the patches whose lines they touch.

    A change that only adds lines, or replaces no line of a patch, touches the lines beside it. A
    change stays in no commit if it touches the lines of no patch, or of several patches.

    Returns:
        every change, with its patch or the reason why it stays.

    Raises:
        UserError: a patch would no longer change anything.
    """
    changes = list(_sorted_out(tree))
    by_path: dict[str, dict[Hunk, str]] = {}
    for hunk, item in changes:
        if hunk and item.patch:
            by_path.setdefault(item.path, {})[hunk] = item.patch
    for path, hunks in by_path.items():
        tree.plan.weave.amend(path, hunks)
    if by_path:
        tree.move_to(_amended_commits(tree.plan), list(by_path))
    return tuple(item for _, item in changes)


def _sorted_out(tree: WorkTree) -> Iterator[tuple[Hunk | None, Absorbed]]:
    """Yield each change that is in no commit, with its patch or the reason to leave it."""
    data = tree.git.run(*_DIFF).stdout
    for diff in parse_diff(data, 0, str(tree.folder)) if data else ():
        path = diff.new or diff.old or ""
        if reason := _reason_against_lines(diff, tree.plan):
            yield None, Absorbed(path, 0, "", reason)
            continue
        for hunk in diff.hunks:
            patches = tree.plan.weave.touched_by(path, hunk)
            names = [patch.name for patch in tree.plan.patches if patch.name in patches]
            reason = ""
            if len(names) != 1:
                reason = f"it touches {' and '.join(names) or 'the lines of no patch'}"
            elif _renames(tree.plan, names[0], path):
                reason = f"{names[0]} renames the file, and its lines may be of a patch before"
            line = hunk.new_start
            yield hunk, Absorbed(path, line, "" if reason else names[0], reason)
    for name in tree.git.fields("ls-files", "-z", "--others", "--exclude-standard"):
        yield None, Absorbed(name, 0, "", "it is a new file")


def _reason_against_lines(diff: FileDiff, plan: TreePlan) -> str:
    """Return why a file's change cannot go into a patch line by line; empty if it can."""
    if diff.old is None or diff.new is None:
        return f"it is a {'new' if diff.old is None else 'removed'} file"
    if diff.new in plan.overlays:
        return "it is an overlay; change the overlay's own file"
    if diff.binary or SYMLINK_MODE in (diff.mode, diff.old_mode, diff.new_mode):
        return "it is not a text file"
    if diff.old_mode != diff.new_mode:
        return f"its mode changes to {diff.new_mode}"
    return ""


def _renames(plan: TreePlan, name: str, path: str) -> bool:
    """Return True when the patch ``name`` renames or copies another file to ``path``."""
    patch = next(patch for patch in plan.patches if patch.name == name)
    return any(diff.new == path and diff.old not in (None, path) for diff in patch.files)


def _amended_commits(plan: TreePlan) -> Sequence[Commit]:
    """Return the commits from a plan's amended weave; raise UserError for an empty patch."""
    amended = plan.with_patches([patch.name for patch in plan.patches])
    for step in amended.steps.values():
        if step.before == step.after and all(
            one.old_mode == one.new_mode for one in step.patch.files
        ):
            raise UserError(
                f"{step.patch.name} would change nothing any more",
                remedy=f"drop the patch (git rebase -i {OVERLAYS_REF}), or undo the change",
            )
    return amended.patch_commits


@dataclass(frozen=True)
class Part:
    """A patch that a split made, with the names of its changes: ``path`` or ``path:hunk``."""

    patch: str
    changes: tuple[str, ...]


def split(
    fork: Fork, tree: WorkTree, wanted: str, *, hunks: bool, take: Sequence[str] = ()
) -> tuple[Part, ...]:
    """Replace the commit of a patch by several commits, which together make the same change.

    ``take`` has the files (``path``) and hunks (``path:2``) of a second patch; if empty, each file,
    or each hunk with ``hunks``, becomes a patch.

    Raises:
        UserError: the patch has only one change, or lacks a file or hunk of ``take``.
        PatchError: a part needs a later part.
    """
    plan = tree.plan
    name = patch_name([patch.name for patch in plan.patches], wanted)
    patch = next(patch for patch in plan.patches if patch.name == name)
    units = _units(patch, hunks=hunks or any(":" in item for item in take))
    groups = _taken(name, units, take) if take else [[unit] for unit in units]
    if len(groups) < 2 or not all(groups):
        raise UserError(
            f"{name} cannot be split so: it has {', '.join(units)}",
            remedy="split it by --hunks; or with git, by lines: git rebase -i, edit, git add -p",
        )
    names = {item.name for item in plan.patches}
    parts: list[Patch] = []
    for number, group in enumerate(groups, 1):
        new = name if number == 1 else new_name(f"{PurePosixPath(name).stem} {number}", names)
        names.add(new)
        text = patch.message.replace(patch.subject, f"{patch.subject} ({number}/{len(groups)})", 1)
        before = {unit for item in groups[: number - 1] for unit in item}
        files = tuple(_part(patch, units, group, before))
        parts.append(replace(patch, name=new, message=text, files=files))
    index = plan.patches.index(patch)
    series = (*plan.patches[:index], *parts, *plan.patches[index + 1 :])
    new_plan = plan_tree(fork, plan.upstream, plan.pristine, series)
    if new_plan.weave.changes() != plan.weave.changes():
        raise IntegrityError(f"the parts of {name} do not give what it changes")
    tree.move_to(new_plan.patch_commits, ())
    return tuple(Part(item.name, tuple(group)) for item, group in zip(parts, groups, strict=True))


def _units(patch: Patch, *, hunks: bool) -> dict[str, tuple[FileDiff, Hunk | None]]:
    """Return the changes that may be in separate patches, by name: ``path`` or ``path:hunk``.

    With ``hunks``, each hunk is a change, numbered from 1. A file that is new, removed, renamed or
    binary, or whose mode changes, is one change. The hunk of a whole file is None.
    """
    units: dict[str, tuple[FileDiff, Hunk | None]] = {}
    for diff in patch.files:
        path = diff.new or diff.old or ""
        is_whole = diff.old != diff.new or diff.old_mode != diff.new_mode or diff.binary
        if is_whole or not hunks:
            units[path] = diff, None
        else:
            units |= {f"{path}:{number}": (diff, hunk) for number, hunk in enumerate(diff.hunks, 1)}
    return units


def _taken(name: str, units: Collection[str], take: Sequence[str]) -> list[list[str]]:
    """Return the changes that stay in a patch, and the changes for its second part."""
    rest: list[str] = []
    for item in take:
        matches = [unit for unit in units if item in (unit, unit.rpartition(":")[0])]
        if not matches:
            raise UserError(f"{name} does not change {item}", remedy=f"it has {', '.join(units)}")
        rest += matches
    return [[unit for unit in units if unit not in rest], [unit for unit in units if unit in rest]]


def _part(
    patch: Patch,
    units: Mapping[str, tuple[FileDiff, Hunk | None]],
    group: Collection[str],
    before: Collection[str],
) -> Iterator[FileDiff]:
    """Yield the diffs of the changes ``group``, at their lines after the changes ``before``."""
    selected, removed = ([units[name] for name in names] for names in (group, before))
    for diff in patch.files:
        if (diff, None) in selected:
            yield diff
            continue
        hunks = [hunk for hunk in diff.hunks if (diff, hunk) in selected]
        starts = [
            hunk.old_start
            + sum(
                earlier.new_count - earlier.old_count
                for earlier in diff.hunks[: diff.hunks.index(hunk)]
                if (diff, earlier) in removed
            )
            for hunk in hunks
        ]
        if hunks:
            yield moved(replace(diff, hunks=tuple(hunks)), starts)
