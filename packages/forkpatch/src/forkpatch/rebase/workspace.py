# SPDX-License-Identifier: Apache-2.0
"""Workspace of a rebase: a repository with the series on its old base, and the new base.

Each commit of the series is merged onto the new base with the old base as common ancestor, as
``git rebase --onto`` does; a diff is never applied to a tree that it was not made for.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import BRANCH, Git, GitError
from forkpatch.git.merge import ALGORITHM
from forkpatch.git.objects import COMMITTER, Commit, list_tree, read_blobs, write_commits
from forkpatch.git.search import ChangedFiles
from forkpatch.inspect.upstreamed import NewBase
from forkpatch.model.lock import Upstream
from forkpatch.model.overlays import check_collisions
from forkpatch.model.patchfile import SERIES, Patch
from forkpatch.model.record import Record
from forkpatch.rebase.existing import check_choice, series_state, steps_of
from forkpatch.rebase.plan import (
    REBASES,
    Existing,
    RebaseOutcome,
    RebasePlan,
    read_plan,
    write_plan,
)
from forkpatch.rebase.recorded import FOLDER
from forkpatch.safety import SYMLINK_MODE
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.derive import record_of
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from forkpatch.tree.swap import discard, remove_tree, scratch_beside
from forkpatch.tree.worktree import add_objects, build_repository

_TREE = "tree"
_RUNNING = "running"
_MERGED = "merged.index"
_PICK = (
    *("-c", "merge.conflictStyle=diff3", "-c", "merge.directoryRenames=false"),
    *("-c", "rerere.enabled=false"),
    *("cherry-pick", "--allow-empty", "--keep-redundant-commits", "--strategy=ort"),
    f"--strategy-option=diff-algorithm={ALGORITHM}",
)
_NOTHING = "nothing"
_TRIAL = "trial.index"
_SPARSE = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")
_OLD = "refs/forkpatch/old"
_NEW = "refs/forkpatch/new"

#: Patterns of git for what editors and merge tools leave beside a file that was resolved.
LEFTOVERS = ("*.orig", "*.rej", "*~", ".*.sw?", ".#*")


@dataclass(frozen=True)
class Rebase:
    """A rebase under way.

    Attributes:
        git: the repository in which it is carried out.
        old: the series on its old base.
        record: the symbols that its patches change there.
        new: the new version.
        base: files and renames of the new version.
    """

    fork: Fork
    plan: RebasePlan
    git: Git
    old: TreePlan
    record: Record
    new: Upstream
    base: NewBase

    @property
    def folder(self) -> Path:
        """Folder of the plan and the working tree."""
        return rebase_folder(self.fork, self.plan.upstream)

    @property
    def tree(self) -> Path:
        """The working tree in which conflicts are resolved."""
        return self.folder / _TREE

    @property
    def resolutions(self) -> Path:
        """Folder of the resolutions that are kept with the fork."""
        return self.fork.settings.patches / self.plan.upstream / FOLDER

    @property
    def merged(self) -> Git:
        """The repository with the index that git's last merge with conflicts left.

        The person who resolves them changes the index of the working tree.
        """
        return replace(self.git, environment={"GIT_INDEX_FILE": str(self.folder / _MERGED)})

    def keep_index(self) -> None:
        """Keep the index of a merge with conflicts for :attr:`merged`."""
        shutil.copyfile(self.tree / ".git/index", self.folder / _MERGED)

    def patch(self, name: str) -> Patch:
        """A patch of the old series, which :func:`_check_series` has found there."""
        return next(patch for patch in self.old.patches if patch.name == name)

    def original(self, name: str) -> str:
        """The commit of a patch on the old base."""
        return next(step.original for step in self.plan.steps if step.patch == name)

    def saved(self, plan: RebasePlan) -> Rebase:
        """The rebase with another plan, which is written first."""
        write_plan(self.folder, plan)
        return replace(self, plan=plan)

    def completed(
        self, outcome: RebaseOutcome, *, commit: str = "", reason: str = "", by_hand: int = 0
    ) -> Rebase:
        """The rebase with an outcome for its first pending step, which is written first."""
        plan = self.plan.completed(outcome, commit=commit, reason=reason, by_hand=by_hand)
        return self.saved(plan)

    def counted(self, patch: str, by_hand: int) -> Rebase:
        """The rebase with the number of lines that a person changed in a patch."""
        steps = tuple(
            replace(step, by_hand=by_hand) if step.patch == patch else step
            for step in self.plan.steps
        )
        return self.saved(replace(self.plan, steps=steps))

    def reset(self, commit: str) -> None:
        """Check ``commit`` out, and remove every other file."""
        self.git.run("reset", "-q", "--hard", commit)
        self.git.run("clean", "-fdq")

    def try_pick(self, commit: str) -> str:
        """The tree of a commit of the old series merged onto the plan's head; empty when not clean.

        No file is checked out, so that a large tree costs nothing.
        """
        git_dir, nothing = self.tree / ".git", self.folder / _NOTHING
        nothing.mkdir(exist_ok=True)
        (git_dir / "info/sparse-checkout").write_text("!/*\n", encoding="ascii")
        index = git_dir / _TRIAL
        index.unlink(missing_ok=True)
        git = Git(git_dir, environment={"GIT_INDEX_FILE": str(index)})
        there = replace(git, work_tree=nothing)
        git.run("update-ref", "HEAD", self.plan.head)
        there.run(*_SPARSE, "read-tree", "-m", "-u", self.plan.head)
        try:
            there.run(*_SPARSE, *_PICK, "--no-commit", commit, env=COMMITTER)
        except GitError:
            return ""
        finally:
            shutil.rmtree(nothing, ignore_errors=True)  # git itself may have removed it
            (git_dir / "info/sparse-checkout").unlink()
        return git.text("write-tree")

    def pick(self, commit: str) -> None:
        """Merge a commit of the old series onto the one that is checked out.

        Raises:
            GitError: it has conflicts, which are in the index and the working tree.
        """
        self.git.run(*_PICK, commit, env=COMMITTER)


def rebase_folder(fork: Fork, name: str) -> Path:
    """Folder of a rebase of the upstream ``name``."""
    return fork.settings.work / REBASES / name


def start(
    fork: Fork,
    old: Upstream,
    new: Upstream,
    options: SourceOptions,
    existing: Existing | None = None,
) -> Rebase:
    """Plan a rebase, and write its repository: the series on its old base, and the new base.

    Args:
        fork: the fork.
        old: the version whose series is moved.
        new: the version that it is moved to.
        options: where upstreams come from.
        existing: what becomes of the series that the new version has already.

    Raises:
        UserError: one is under way already, or the new version has a series and nothing was chosen.
        ForkError: the old series does not apply, or an overlay collides with the new version.
    """
    final = rebase_folder(fork, old.name)
    if read_plan(final, old.name):
        raise UserError(
            f"a rebase of {old.name} is under way",
            remedy=f"{typed(f'rebase {old.name} --continue')}, or --abort",
        )
    if old == new:
        raise UserError(f"{old.name} is at {new.version} already")
    check_choice(fork, old, new, existing)
    new_tree = obtain(new, fork.cache, options).pristine
    series = plan_tree(fork, old, obtain(old, fork.cache, options).pristine)
    modes = {path: mode for path, (mode, _) in list_tree(new_tree.git, new_tree.tree).items()}
    check_collisions(fork.overlays(new), modes, (), fork.overlay_folder(new), str(new))
    scratch = scratch_beside(final)
    try:
        (scratch / _TREE).mkdir()
        commits = [series.commits[0], *series.patch_commits]
        # Nothing is checked out before a patch has to be looked at.
        git, ids = build_repository(scratch / _TREE, series.pristine, commits, checkout=False)
        git.run("update-ref", _OLD, ids[-1])
        with (scratch / _TREE / ".git/info/exclude").open("a", encoding="ascii") as exclude:
            exclude.writelines(f"{pattern}\n" for pattern in LEFTOVERS)
        add_objects(git, new_tree)
        known = plan_tree(fork, new, new_tree) if existing is Existing.KEEP else None
        commits = [Commit(f"{new}\n".encode(), tree=new.tree)]
        base, *kept = write_commits(git, _NEW, [*commits, *(known.patch_commits if known else ())])
        git.run("update-ref", f"refs/heads/{BRANCH}", kept[-1] if kept else base)
        names = [patch.name for patch in known.patches] if known else []
        steps = steps_of(
            dict(zip(names, kept, strict=True)),
            {patch.name: one for patch, one in zip(series.patches, ids[1:], strict=True)},
            {patch.name: patch.sha256 for patch in series.patches},
        )
        state = series_state(fork, new)
        plan = RebasePlan(old.name, old.version, new.version, base, steps, (), existing, state)
        write_plan(scratch, plan)
        if final.exists():
            remove_tree(final)
        scratch.rename(final)
    except BaseException:
        discard(scratch)
        raise
    return _opened(fork, plan, series, new)


def resume(fork: Fork, name: str, options: SourceOptions) -> Rebase:
    """The rebase that is under way.

    Raises:
        UserError: no rebase is under way.
    """
    folder = rebase_folder(fork, name)
    plan = read_plan(folder, name)
    if plan is None:
        raise UserError(
            f"no rebase of {name} is under way",
            remedy=f"begin one: {typed(f'rebase {name} VERSION')}",
        )
    old, new = (fork.lock.upstream(name, version) for version in (plan.old, plan.new))
    _check_series(fork, plan, old)
    series = plan_tree(fork, old, obtain(old, fork.cache, options).pristine)
    return _opened(fork, plan, series, new)


def _check_series(fork: Fork, plan: RebasePlan, old: Upstream) -> None:
    """Raise when the old series is not the one that the rebase began with."""
    hashes = {patch.name: patch.sha256 for patch in fork.series(old)}
    now = list(hashes)
    steps = [step for step in plan.steps if step.outcome is not RebaseOutcome.KEPT]
    gone = [step.patch for step in steps if step.patch not in now]
    added = sorted(set(now) - {step.patch for step in plan.steps})
    begun = [step.patch for step in steps if step.patch in now]
    other = [step.patch for step in steps if step.sha256 not in ("", hashes.get(step.patch))]
    what = ""
    if gone:
        what = f"lacks {', '.join(gone)}"
    elif added:
        what = f"has {', '.join(added)} in addition"
    elif [name for name in now if name in begun] != begun:
        what = "has its patches in another order"
    elif other:
        what = f"has another {', '.join(other)}"
    if what:
        raise UserError(
            f"{fork.patch_folder(old) / SERIES} {what}, and the rebase of {plan.upstream} began"
            " with it",
            remedy="put it back as it was, then type the same command again; or begin again:"
            f" {typed(f'rebase {plan.upstream} --abort')}",
        )


def _opened(fork: Fork, plan: RebasePlan, series: TreePlan, new: Upstream) -> Rebase:
    tree = rebase_folder(fork, plan.upstream) / _TREE
    git = Git(tree / ".git", tree)
    base = new_base(git, plan.base, series.upstream.tree)
    return Rebase(fork, plan, git, series, record_of(fork, series), new, base)


@contextmanager
def at_work(rebase: Rebase) -> Iterator[None]:
    """Mark that forkpatch itself runs git in the rebase's tree during the block.

    When the mark is there already, that run was killed, and maybe its git: the files with which git
    locks its own are removed. Without the mark they are of a git of the user's, and stay.
    """
    mark = rebase.folder / _RUNNING
    if mark.exists():
        for lock in (rebase.tree / ".git").rglob("*.lock"):
            lock.unlink(missing_ok=True)
    mark.touch()
    yield
    mark.unlink(missing_ok=True)


def abort(fork: Fork, name: str) -> bool:
    """Abandon a rebase: everything is as before. False when there was none."""
    folder = rebase_folder(fork, name)
    if not folder.exists():
        return False
    remove_tree(folder)
    return True


def new_base(git: Git, base: str, old: str) -> NewBase:
    """The new base of a rebase from the tree ``old``; both are in the repository."""
    return NewBase(
        _reader(git, base),
        ChangedFiles(git, old, base).find,
        _reader(git, old),
        lambda: _renames(git, old, base),
    )


def _reader(git: Git, tree: str) -> Callable[[str], bytes | None]:
    listed = list_tree(git, tree)

    @cache
    def read(path: str) -> bytes | None:
        mode, oid = listed.get(path, (SYMLINK_MODE, ""))
        return None if mode == SYMLINK_MODE else read_blobs(git, [oid])[oid]

    return read


def _renames(git: Git, old: str, new: str) -> dict[str, str]:
    """New path by old path of the files that were renamed."""
    command = ("diff-tree", "-r", "-z", "-M40%", "-l0", "--diff-filter=R", "--name-status")
    fields = git.run(*command, old, new).stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return dict(zip(fields[1::3], fields[2::3], strict=True))


def files_at(git: Git, commits: Sequence[str], paths: Sequence[str]) -> list[dict[str, bytes]]:
    """Contents of files at each of several commits; a file that one lacks is left out."""
    trees = [list_tree(git, commit, *paths) if paths else {} for commit in commits]
    found = read_blobs(git, (oid for tree in trees for _, oid in tree.values()))
    return [
        {
            path: data
            for path in paths
            if path in tree and (data := found[tree[path][1]]) is not None
        }
        for tree in trees
    ]
