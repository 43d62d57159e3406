# SPDX-License-Identifier: Apache-2.0
"""The verb ``rebase``: a series moved to another version of its upstream.

The series is built as commits on the old base, and each commit is merged onto the new one with
the old base as common ancestor, which is what ``git rebase --onto`` does; a diff is never tried
on a tree it was not made for. What git calls a success is looked at all the same: a change that
the new version already has is not put in twice, and one that landed in another function stops
the rebase. The state is one JSON file, written whole after each step, so that a rebase that was
killed goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.files import atomic_write_json
from forkpatch.errors import ForkError, UserError
from forkpatch.git.calls import Git
from forkpatch.git.objects import Commit, list_tree, read_blobs, write_commits
from forkpatch.inspect.drift import changed_symbols, record_of
from forkpatch.inspect.symbols import bare_name
from forkpatch.model.fork import Fork, Plan, plan_tree
from forkpatch.model.lock import Upstream
from forkpatch.model.overlays import check_collisions
from forkpatch.model.patchfile import Patch
from forkpatch.rebase.upstreamed import NewBase
from forkpatch.safety import SYMLINK_MODE
from forkpatch.series.export import export_commits
from forkpatch.sources.obtain import SourceOptions, obtain
from forkpatch.tree.swap import remove_tree, scratch_beside
from forkpatch.tree.worktree import BRANCH, add_objects, build_repository

_STATE = "state.json"
_TREE = "tree"
_OLD = "refs/forkpatch/old"
_NEW = "refs/forkpatch/new"


class Outcome(StrEnum):
    """What became of a patch."""

    CLEAN = "clean"
    ADAPTED = "adapted"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Step:
    """A patch that is done.

    Attributes:
        commit: its commit on the new base; empty when it was dropped.
        reason: why it was dropped or adapted.
        by_hand: lines that a person added or removed, against what git's merge gives when
            upstream's side is taken at each conflict.
    """

    patch: str
    outcome: Outcome
    commit: str = ""
    reason: str = ""
    by_hand: int = 0


@dataclass(frozen=True)
class State:
    """Where a rebase is.

    Attributes:
        base: commit of the new base in the rebase's repository.
        head: the last good commit.
        todo: patch and commit on the old base, of those to come; the first is under way.
        stopped: what the user has to put right; empty while nothing is.
    """

    upstream: str
    old: str
    new: str
    base: str
    head: str
    todo: tuple[tuple[str, str], ...]
    done: tuple[Step, ...]
    stopped: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Rebase:
    """A rebase under way: its state, its repository, and the two plans.

    Attributes:
        old: the series on its old base.
        new: the new version.
        base: what can be asked about the new version.
    """

    fork: Fork
    state: State
    git: Git
    old: Plan
    new: Upstream
    base: NewBase

    @property
    def folder(self) -> Path:
        """Where the rebase keeps its things."""
        return rebase_folder(self.fork, self.state.upstream)

    @property
    def tree(self) -> Path:
        """The working tree in which conflicts are resolved."""
        return self.folder / _TREE

    def patch(self, name: str) -> Patch:
        """A patch of the old series."""
        return next(patch for patch in self.old.patches if patch.name == name)

    def saved(self, **changes: Any) -> Rebase:
        """The rebase with a changed state, which is written first."""
        state = replace(self.state, **changes)
        atomic_write_json(self.folder / _STATE, asdict(state))
        return replace(self, state=state)


def rebase_folder(fork: Fork, name: str) -> Path:
    """Where a rebase of an upstream keeps its things."""
    return fork.settings.work / "rebase" / name


def read_state(fork: Fork, name: str) -> State | None:
    """The state of the rebase of an upstream that is under way, None without one."""
    path = rebase_folder(fork, name) / _STATE
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ForkError(
            f"{path}: {error}", remedy=f"give it up: forkpatch rebase {name} --abort"
        ) from error
    raw["todo"] = tuple((patch, commit) for patch, commit in raw["todo"])
    raw["done"] = tuple(
        Step(**{**step, "outcome": Outcome(step["outcome"])}) for step in raw["done"]
    )
    raw["stopped"] = tuple(raw["stopped"])
    return State(**raw)


def start(fork: Fork, old: Upstream, new: Upstream, options: SourceOptions) -> Rebase:
    """Set a rebase up: the series on its old base, and the new base beside it.

    Raises:
        UserError: one is under way already, or the new version has a series already.
        ForkError: the old series does not apply, or an overlay collides with the new version.
    """
    if read_state(fork, old.name):
        raise UserError(
            f"a rebase of {old.name} is under way",
            remedy=f"forkpatch rebase {old.name} --continue, or --abort",
        )
    if fork.patch_folder(new).exists():
        raise UserError(
            f"{fork.patch_folder(new)} exists", remedy="remove it, or export to it instead"
        )
    if old == new:
        raise UserError(f"{old.name} is at {new.version} already")
    new_tree = obtain(new, fork.cache, options).pristine
    plan = plan_tree(fork, old, obtain(old, fork.cache, options).pristine)
    modes = {path: mode for path, (mode, _) in list_tree(new_tree.git, new_tree.tree).items()}
    check_collisions(fork.overlays(new), modes, (), fork.overlay_folder(new), str(new))
    final = rebase_folder(fork, old.name)
    scratch = scratch_beside(final)
    try:
        (scratch / _TREE).mkdir()
        commits = [plan.commits[0], *plan.patch_commits]
        git, ids = build_repository(scratch / _TREE, plan.pristine, commits)
        git.run("update-ref", _OLD, ids[-1])
        add_objects(git, new_tree)
        (base,) = write_commits(git, _NEW, [Commit(f"{new}\n".encode(), tree=new.tree)])
        git.run("update-ref", f"refs/heads/{BRANCH}", base)
        git.run("read-tree", "-u", "--reset", "HEAD")
        names = [patch.name for patch in plan.patches]
        todo = tuple(zip(names, ids[1:], strict=True))
        state = State(old.name, old.version, new.version, base, base, todo, ())
        atomic_write_json(scratch / _STATE, asdict(state))
        if final.exists():
            remove_tree(final)
        scratch.rename(final)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return resume(fork, old.name, options)


def resume(fork: Fork, name: str, options: SourceOptions) -> Rebase:
    """The rebase that is under way.

    Raises:
        UserError: there is none.
    """
    state = read_state(fork, name)
    if state is None:
        raise UserError(
            f"no rebase of {name} is under way",
            remedy=f"begin one: forkpatch rebase {name} VERSION",
        )
    old, new = (fork.lock.upstream(name, version) for version in (state.old, state.new))
    folder = rebase_folder(fork, name) / _TREE
    git = Git(folder / ".git", folder)
    plan = plan_tree(fork, old, obtain(old, fork.cache, options).pristine)
    return Rebase(fork, state, git, plan, new, _new_base(git, state, plan))


def _new_base(git: Git, state: State, plan: Plan) -> NewBase:
    listed = list_tree(git, state.base)
    contents: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        if path not in contents:
            mode, oid = listed.get(path, (SYMLINK_MODE, ""))
            contents[path] = None if mode == SYMLINK_MODE else read_blobs(git, [oid])[oid]
        return contents[path]

    def find(word: str) -> tuple[str, ...]:
        command = ("grep", "-l", "-z", "-I", "-w", "-F", "-e", word, state.base, "--")
        out = git.run(*command, ok=(0, 1)).stdout.decode("utf-8", "surrogateescape")
        return tuple(item.partition(":")[2] for item in out.split("\0")[:-1])

    return NewBase(read, find, _renames(git, plan.upstream.tree, state.base))


def _renames(git: Git, old: str, new: str) -> dict[str, str]:
    """Where the files of the old version went."""
    command = ("diff-tree", "-r", "-z", "-M40%", "-l0", "--diff-filter=R", "--name-status")
    fields = git.run(*command, old, new).stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return dict(zip(fields[1::3], fields[2::3], strict=True))


def files_at(git: Git, commit: str, paths: list[str]) -> dict[str, bytes]:
    """The contents of files at a commit, of those that are there."""
    listed = list_tree(git, commit, *paths) if paths else {}
    blobs = read_blobs(git, (oid for _, oid in listed.values()))
    return {path: blobs[oid] or b"" for path, (_, oid) in listed.items()}


def changed_places(
    git: Git, before: str, commit: str, objects: Path
) -> tuple[tuple[str, str], ...]:
    """Path and symbol of all that a commit changes."""
    patch = export_commits(objects, [commit])[0].parse()
    paths = list(patch.paths)
    old, new = files_at(git, before, paths), files_at(git, commit, paths)
    return tuple(
        (diff.new or diff.old or "", symbol)
        for diff in patch.files
        for symbol in changed_symbols(
            diff, old.get(diff.old or "", b""), new.get(diff.new or "", b"")
        )
    )


def old_names(rebase: Rebase, name: str) -> set[str]:
    """The bare names of the symbols that a patch changes on the old base."""
    places = record_of(rebase.fork, rebase.old).patches[name]
    return {bare_name(place.symbol) for place in places}
