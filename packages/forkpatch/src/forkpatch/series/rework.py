# SPDX-License-Identifier: Apache-2.0
"""The verbs ``absorb`` and ``split``: the commits of a patched tree written again.

Both leave the files of the tree as they are, and write no patch file: ``export`` does, when the
maintainer has looked at the commits. Git's reference moves last and in one step, so that a run
that is killed leaves the old commits or the new ones.
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
    """A change that is in no commit.

    Attributes:
        line: its first line in the tree; 0 for the whole file.
        patch: the patch that it was put into; empty if it was left.
        reason: why it was left.
    """

    path: str
    line: int
    patch: str
    reason: str = ""


@dataclass(frozen=True)
class WorkTree:
    """A patched tree with the commits that are in it now.

    Attributes:
        plan: the tree that these commits give; its patches are not those of the series' files.
    """

    folder: Path
    plan: TreePlan

    @property
    def git(self) -> Git:
        """Its repository."""
        return Git(self.folder / ".git", self.folder)

    def move_to(self, commits: Sequence[Commit], paths: Sequence[str]) -> None:
        """Replace the commits of the patches; the index has the new files of ``paths`` before."""
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


def open_work_tree(fork: Fork, release: str, upstream: Upstream, *, loose: bool) -> WorkTree:
    """The patched tree of a release.

    Args:
        fork: the fork.
        release: the release.
        upstream: the upstream.
        loose: changes that are in no commit are allowed.

    Raises:
        UserError: there is no tree, or its commits cannot be patches.
    """
    folder = fork.tree_folder(release, upstream)
    commits = commits_of(fork, release, upstream, loose=loose)
    if not commits:
        raise UserError(f"{folder} has no patch", remedy="commit a change there")
    plan = planned(fork, upstream, export_commits(folder / ".git/objects", commits))
    check_faithful(fork, plan, folder, [patch.name for patch in plan.patches])
    return WorkTree(folder, plan)


def absorb(tree: WorkTree) -> tuple[Absorbed, ...]:
    """Put the changes that are in no commit into the patches whose lines they touch.

    A change that touches the lines of no patch, or of several, stays as it is.

    Raises:
        UserError: a patch would change nothing any more.
    """
    found = list(_sorted_out(tree))
    taken = [(diff, hunk, one.patch) for diff, hunk, one in found if hunk and one.patch]
    by_path: dict[str, dict[Hunk, str]] = {}
    for diff, hunk, patch in taken:
        by_path.setdefault(diff.new or "", {})[hunk] = patch
    for path, hunks in by_path.items():
        tree.plan.weave.amend(path, hunks)
    if by_path:
        tree.move_to(_commits_again(tree.plan), list(by_path))
    return tuple(one for _, _, one in found)


def _sorted_out(tree: WorkTree) -> Iterator[tuple[FileDiff, Hunk | None, Absorbed]]:
    """Each change that is in no commit, with its patch or the reason to leave it."""
    data = tree.git.run(*_DIFF).stdout
    for diff in parse_diff(data, 0, str(tree.folder)) if data else ():
        path = diff.new or diff.old or ""
        if reason := _not_of_lines(diff, tree.plan):
            yield diff, None, Absorbed(path, 0, "", reason)
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
            yield diff, hunk, Absorbed(path, line, "" if reason else names[0], reason)
    others = tree.git.run("ls-files", "-z", "--others", "--exclude-standard").stdout
    for name in others.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        nothing = FileDiff(None, name, None, None, False, False, (), 0)
        yield nothing, None, Absorbed(name, 0, "", "it is a new file")


def _not_of_lines(diff: FileDiff, plan: TreePlan) -> str:
    """Reason for which a change of a file cannot be put into a patch line by line."""
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
    """True when a patch makes ``path`` of a file of another name, all of whose lines are its."""
    patch = next(patch for patch in plan.patches if patch.name == name)
    return any(diff.new == path and diff.old not in (None, path) for diff in patch.files)


def _commits_again(plan: TreePlan) -> Sequence[Commit]:
    """The commits of a plan's patches, as its amended weave gives them.

    Raises:
        UserError: one changes nothing.
    """
    again = plan.with_patches([patch.name for patch in plan.patches])
    for step in again.steps():
        if step.before == step.after and not _changes_mode(step.patch):
            raise UserError(
                f"{step.patch.name} would change nothing any more",
                remedy=f"drop the patch (git rebase -i {OVERLAYS_REF}), or undo the change",
            )
    return again.patch_commits


def _changes_mode(patch: Patch) -> bool:
    return any(diff.old_mode != diff.new_mode for diff in patch.files)


@dataclass(frozen=True)
class Part:
    """A patch that a split made, and the names of the changes in it: ``path`` or ``path:hunk``."""

    patch: str
    changes: tuple[str, ...]


def split(
    fork: Fork, tree: WorkTree, wanted: str, *, hunks: bool, take: Sequence[str] = ()
) -> tuple[Part, ...]:
    """Replace the commit of a patch by several, which together change the same.

    Args:
        fork: the fork.
        tree: its tree.
        wanted: the patch.
        hunks: make a patch of each hunk, not of each file.
        take: make two patches, the second of these files (``path``) and hunks (``path:2``).

    Raises:
        UserError: there is nothing to split, or the patch has no such file or hunk.
        PatchError: a part cannot be without one that comes later.
    """
    plan = tree.plan
    name = patch_name([patch.name for patch in plan.patches], wanted)
    patch = next(patch for patch in plan.patches if patch.name == name)
    units = _units(patch, hunks=hunks or any(":" in one for one in take))
    groups = _taken(name, units, take) if take else [[unit] for unit in units]
    if len(groups) < 2 or not all(groups):
        raise UserError(
            f"{name} cannot be split so: it has {', '.join(units)}",
            remedy="split it by --hunks; or with git, by lines: git rebase -i, edit, git add -p",
        )
    taken = {one.name for one in plan.patches}
    parts: list[Patch] = []
    for number, group in enumerate(groups, 1):
        new = name if number == 1 else new_name(f"{PurePosixPath(name).stem} {number}", taken)
        taken.add(new)
        text = patch.message.replace(patch.subject, f"{patch.subject} ({number}/{len(groups)})", 1)
        before = {unit for one in groups[: number - 1] for unit in one}
        files = tuple(_part(patch, units, group, before))
        parts.append(replace(patch, name=new, message=text, files=files))
    at = plan.patches.index(patch)
    series = (*plan.patches[:at], *parts, *plan.patches[at + 1 :])
    again = plan_tree(fork, plan.upstream, plan.pristine, series)
    if again.weave.changes() != plan.weave.changes():
        raise IntegrityError(f"the parts of {name} do not give what it changes")
    tree.move_to(again.patch_commits, ())
    return tuple(Part(one.name, tuple(group)) for one, group in zip(parts, groups, strict=True))


def _units(patch: Patch, *, hunks: bool) -> dict[str, tuple[FileDiff, Hunk | None]]:
    """The changes that may be in patches of their own, by name."""
    found: dict[str, tuple[FileDiff, Hunk | None]] = {}
    for diff in patch.files:
        path = diff.new or diff.old or ""
        is_whole = diff.old != diff.new or diff.old_mode != diff.new_mode or diff.binary
        if is_whole or not hunks:
            found[path] = diff, None
        else:
            found |= {f"{path}:{at}": (diff, hunk) for at, hunk in enumerate(diff.hunks, 1)}
    return found


def _taken(name: str, units: Collection[str], take: Sequence[str]) -> list[list[str]]:
    """The changes that stay in a patch, and those that are taken out of it."""
    out: list[str] = []
    for one in take:
        known = [unit for unit in units if one in (unit, unit.rpartition(":")[0])]
        if not known:
            raise UserError(f"{name} does not change {one}", remedy=f"it has {', '.join(units)}")
        out += known
    return [[unit for unit in units if unit not in out], [unit for unit in units if unit in out]]


def _part(
    patch: Patch,
    units: Mapping[str, tuple[FileDiff, Hunk | None]],
    group: Collection[str],
    before: Collection[str],
) -> Iterator[FileDiff]:
    """The diffs of one part of a patch, at the lines where they are after the parts before it."""
    mine, gone = ([units[one] for one in names] for names in (group, before))
    for diff in patch.files:
        if (diff, None) in mine:
            yield diff
            continue
        there = [hunk for hunk in diff.hunks if (diff, hunk) in mine]
        starts = [
            hunk.old_start
            + sum(
                one.new_count - one.old_count
                for one in diff.hunks[: diff.hunks.index(hunk)]
                if (diff, one) in gone
            )
            for hunk in there
        ]
        if there:
            yield moved(replace(diff, hunks=tuple(there)), starts)
