# SPDX-License-Identifier: Apache-2.0
"""Workspace of a rebase: a repository with the series on its old base, and the new base.

Each commit of the series is merged onto the new base with the old base as common ancestor, as
``git rebase --onto`` does. A diff is never applied to another tree than its own base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import BRANCH, Git
from forkpatch.git.objects import Commit, list_tree, read_blobs, write_commits
from forkpatch.model.lock import Upstream
from forkpatch.model.overlays import check_collisions
from forkpatch.model.patchfile import SERIES, Patch
from forkpatch.model.record import Record
from forkpatch.rebase.existing import check_choice, series_state
from forkpatch.rebase.plan import (
    REBASES,
    Existing,
    RebaseOutcome,
    RebasePlan,
    RebaseStep,
    read_plan,
    write_plan,
)
from forkpatch.rebase.recorded import FOLDER
from forkpatch.series.mailbox import Exported, export_commits
from forkpatch.sources.obtain import SourceOptions
from forkpatch.symbols.newbase import NewBase
from forkpatch.tree.drift import known_record
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from forkpatch.tree.swap import remove_tree, scratch_folder
from forkpatch.tree.worktree import add_objects, build_repository, differences
from groundwork.files import atomic_write

_TREE = "tree"
_RUNNING = "running"
MERGED_INDEX = "merged.index"
_LOCK_BEFORE = "lock.before"
_LOCK_PINNED = "lock.pinned"
#: Reference of the commits of merged patches.
MERGED = "refs/forkpatch/merged"
_OLD = "refs/forkpatch/old"
_NEW = "refs/forkpatch/new"

#: Git patterns of files that editors and merge tools leave beside a resolved file.
LEFTOVERS = ("*.orig", "*.rej", "*~", ".*.sw?", ".#*")


@dataclass(frozen=True)
class Rebase:
    """An unfinished rebase.

    Attributes:
        git: the repository of the rebase.
        old: the series on its old base.
        new: the new version.
        base: files and renames of the new version.
    """

    fork: Fork
    plan: RebasePlan
    git: Git
    old: TreePlan
    new: Upstream
    base: NewBase

    @cached_property
    def record(self) -> Record:
        """The record of the old series: hashes, and the symbols that the patches change."""
        return known_record(self.fork, self.old)

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
        """Folder of the resolutions kept with the fork."""
        return self.fork.settings.patches / self.plan.upstream / FOLDER

    @property
    def merged(self) -> Git:
        """The repository with the index of git's last merge with conflicts.

        A person who resolves the conflicts changes the index of the working tree.
        """
        return replace(self.git, environment={"GIT_INDEX_FILE": str(self.folder / MERGED_INDEX)})

    def patch(self, name: str) -> Patch:
        """Return a patch of the old series; :func:`_check_series` made sure that it exists."""
        return self.old.steps[name].patch

    def saved(self, plan: RebasePlan) -> Rebase:
        """Write a new plan; return the rebase with that plan."""
        write_plan(self.folder, plan)
        return replace(self, plan=plan)

    def exported(self, tip: str) -> tuple[Exported, ...]:
        """Return the patch files of the commits on the new base up to ``tip``."""
        commits = self.git.text("rev-list", "--reverse", f"{self.plan.base}..{tip}").split()
        return export_commits(self.git.objects, commits)


def rebase_folder(fork: Fork, name: str) -> Path:
    """Return the folder of a rebase of the upstream ``name``."""
    return fork.settings.work / REBASES / name


def start(
    fork: Fork,
    old: Upstream,
    new: Upstream,
    options: SourceOptions,
    existing: Existing | None = None,
) -> Rebase:
    """Plan a rebase, and write its repository: the series on its old base, and the new base.

    ``existing`` is the choice for the series that the new version has already.

    Raises:
        UserError: a rebase is under way already, both versions are the same, or the choice for an
            existing series is missing.
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
    new_tree = fork.pristine(new, options)
    series = fork.plan(old, options)
    overlays = fork.overlays(new)
    check_collisions(overlays, new_tree.modes, (), fork.overlay_folder(new), str(new))
    with scratch_folder(final) as scratch:
        (scratch / _TREE).mkdir()
        commits = [series.commits[0], *series.patch_commits]
        # Files are checked out only when a person must resolve a patch.
        git, ids = build_repository(scratch / _TREE, series.pristine, commits, checkout=False)
        git.run("update-ref", _OLD, ids[-1])
        with (scratch / _TREE / ".git/info/exclude").open("a", encoding="ascii") as exclude:
            exclude.writelines(f"{pattern}\n" for pattern in LEFTOVERS)
        add_objects(git, new_tree)
        known = plan_tree(fork, new, new_tree) if existing is Existing.KEEP else None
        commits = [Commit(f"{new}\n".encode(), tree=new.tree)]
        base, *kept = write_commits(
            git, _NEW, [*commits, *(known.patch_commits if known else ())], brief=True
        )
        git.run("update-ref", f"refs/heads/{BRANCH}", kept[-1] if kept else base)
        names = [patch.name for patch in known.patches] if known else []
        originals = dict(zip(series.steps, ids[1:], strict=True))
        steps = [
            RebaseStep(name, originals.get(name, ""), RebaseOutcome.KEPT, commit)
            for name, commit in zip(names, kept, strict=True)
        ]
        steps += [
            RebaseStep(patch.name, originals[patch.name], sha256=patch.sha256)
            for patch in series.patches
            if patch.name not in names
        ]
        versions, state = (old.name, old.version, new.version), series_state(fork, new)
        plan = RebasePlan(*versions, base, tuple(steps), existing=existing, state=state)
        write_plan(scratch, plan)
        if final.exists():
            remove_tree(final)
        scratch.rename(final)
    return _opened(fork, plan, series, new)


def resume(fork: Fork, name: str, options: SourceOptions) -> Rebase:
    """Return the unfinished rebase of an upstream.

    Raises:
        UserError: no rebase is under way, or the old series changed since its beginning.
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
    series = fork.plan(old, options)
    return _opened(fork, plan, series, new)


def _check_series(fork: Fork, plan: RebasePlan, old: Upstream) -> None:
    """Raise UserError when the old series differs from that at the beginning of the rebase."""
    hashes = {patch.name: patch.sha256 for patch in fork.series(old)}
    kept = {step.patch for step in plan.steps if step.outcome is RebaseOutcome.KEPT}
    begun = {step.patch: step.sha256 for step in plan.steps if step.patch not in kept}
    now = {name: sha256 for name, sha256 in hashes.items() if name not in kept}
    changed = differences("patch", now, begun)
    if not changed and list(now) != list(begun):
        changed = ["the patches are in another order"]
    if changed:
        raise UserError(
            f"{fork.patch_folder(old) / SERIES} changed since the rebase of {plan.upstream} began:"
            f" {'; '.join(changed)}",
            remedy="put it back as it was, then type the same command again; or begin again:"
            f" {typed(f'rebase {plan.upstream} --abort')}",
        )


def _opened(fork: Fork, plan: RebasePlan, series: TreePlan, new: Upstream) -> Rebase:
    tree = rebase_folder(fork, plan.upstream) / _TREE
    git = Git(tree / ".git", tree)
    base = NewBase(git, new.tree, series.upstream.tree)
    return Rebase(fork, plan, git, series, new, base)


@contextmanager
def at_work(rebase: Rebase) -> Iterator[None]:
    """Mark during the block that forkpatch runs git in the rebase's tree.

    If the mark exists already, a run was killed, maybe with its git: git's lock files are removed.
    Without the mark, lock files belong to the user's git, and stay.
    """
    mark = rebase.folder / _RUNNING
    if mark.exists():
        for lock in (rebase.tree / ".git").rglob("*.lock"):
            lock.unlink(missing_ok=True)
    mark.touch()
    yield
    mark.unlink(missing_ok=True)


def keep_lock(rebase: Rebase, before: bytes) -> None:
    """Keep the lock as it was before the rebase wrote it, for :func:`abort`.

    ``before`` is the lock before the last writing, which another one of the rebase may precede.
    """
    last, now = rebase.folder / _LOCK_PINNED, rebase.fork.settings.lock.read_bytes()
    if now == before or (last.exists() and last.read_bytes() != before):
        return  # nothing was written, or another program changed the lock in between
    if not last.exists():
        atomic_write(rebase.folder / _LOCK_BEFORE, before)
    atomic_write(last, now)


def abort(fork: Fork, name: str) -> str:
    """Abandon a rebase, if any, and what it wrote into the lock; return what was done, or ""."""
    folder, lock = rebase_folder(fork, name), fork.settings.lock
    if not folder.exists():
        return ""
    done = "abandoned; everything is as before"
    if (folder / _LOCK_PINNED).exists():
        if lock.read_bytes() == (folder / _LOCK_PINNED).read_bytes():
            atomic_write(lock, (folder / _LOCK_BEFORE).read_bytes())
        else:
            done = f"abandoned; {lock.name} changed since then, and keeps the new version"
    remove_tree(folder)
    return done


def files_at(git: Git, commits: Sequence[str], paths: Sequence[str]) -> list[dict[str, bytes]]:
    """Return contents of files at each of several commits, without missing files."""
    trees = [list_tree(git, commit, *paths) if paths else {} for commit in commits]
    blobs = read_blobs(git, (oid for tree in trees for _, oid in tree.values()))
    return [
        {
            path: data
            for path in paths
            if path in tree and (data := blobs[tree[path][1]]) is not None
        }
        for tree in trees
    ]
