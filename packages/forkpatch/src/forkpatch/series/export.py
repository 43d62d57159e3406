# SPDX-License-Identifier: Apache-2.0
"""The verbs ``edit`` and ``export``: commits written as patch files, always the same bytes.

A tree may be built without the patches whose conditions do not hold; these keep their places in the
series, and are merged with the commits of the tree.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.errors import ForkError, IntegrityError, PatchError, UserError
from forkpatch.git.calls import BRANCH, Git
from forkpatch.git.objects import Commit, changed_files
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import EVERY, load_series, read_entries
from forkpatch.model.record import format_record, is_recorded
from forkpatch.series.mailbox import (
    Exported,
    export_commits,
    export_new,
    planned,
    series_changes,
    write_series,
)
from forkpatch.series.merge import MergeTarget
from forkpatch.series.shared import (
    changed_messages,
    check_borrowers,
    keep_files,
    record_borrowers,
    share_new,
    share_patches,
    write_back,
)
from forkpatch.sources.cache import Pristine
from forkpatch.sources.obtain import SourceOptions
from forkpatch.tree.apply import PatchedTree, TreeState, apply_release, tree_of, write_tree
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork, PatchStep, TreePlan, plan_tree
from forkpatch.tree.worktree import (
    OTHER_COMMITS,
    OVERLAYS_REF,
    PREVIOUS_REF,
    Inputs,
    Stamp,
    has_other_commits,
    local_changes,
    make_inputs,
    patch_commit,
    read_stamp,
    work_in,
)

#: Files and folders in ``.git`` during an operation of git, and the command that ends it.
_OPERATIONS = {
    "rebase-merge": "rebase --continue",
    "rebase-apply": "rebase --continue",
    "CHERRY_PICK_HEAD": "cherry-pick --continue",
    "REVERT_HEAD": "revert --continue",
    "sequencer": "cherry-pick --continue",
    "MERGE_HEAD": "merge --continue",
    "BISECT_LOG": "bisect reset",
}


@dataclass(frozen=True)
class ExportReport:
    """The changes that an export made, or would make.

    Attributes:
        folder: the folder of the series.
        patches: the names of the patches, in order.
        changes: a line for each file that differs.
        notes: a line for each version that shares changed patches but could not be recorded.
    """

    upstream: str
    version: str
    folder: Path
    patches: tuple[str, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]


def export_upstream(
    fork: Fork,
    release: str,
    upstream: Upstream,
    *,
    check: bool = False,
    force: bool = False,
    own: bool = False,
    also: Sequence[Upstream] = (),
) -> ExportReport:
    """Write the commits of a patched tree back to its series.

    Args:
        fork: the fork.
        release: release of the tree.
        upstream: upstream of the tree.
        check: True to write nothing.
        force: True to overwrite patch files that changed after the tree was built.
        own: True to write also a patch that equals another version's patch line for line.
        also: other versions whose series get the new patches, too.

    Raises:
        UserError: the tree is missing, has changes that are in no commit or an unfinished git
            rebase; or the patch files changed after the tree was built.
        UserError: another version's series names a patch that would be removed.
        UserError: a commit cannot be a patch: a merge, or a change to an overlay.
        ForkError: the series was written, but the tree was not built, or a new patch does not
            fit another version.
    """
    folder, series = fork.tree_folder(release, upstream), fork.patch_folder(upstream)
    stamp = _stamp_of(fork, release, upstream)
    commits = commits_of(fork, release, upstream)
    if not commits and not series.exists():  # a fork that has no patch yet
        return ExportReport(upstream.name, upstream.version, series, (), (), ())
    patches = export_commits(folder / ".git/objects", commits)
    committed = [patch.name for patch in patches]
    patches = with_left_out(fork, release, upstream, stamp, patches)
    old_patches = load_series(series)
    known = () if own else old_patches
    patches = keep_files(fork, upstream, share_patches(patches, known), old_patches)
    messages = changed_messages(fork, upstream, patches, known)
    patches = tuple(
        replace(patch, shared=messages[patch.name][0]) if patch.name in messages else patch
        for patch in patches
    )
    plan = planned(fork, upstream, patches)
    check_faithful(plan, folder, committed)
    new_record = record_of(fork, plan)
    record = format_record(new_record) if is_recorded(series, new_record) else ""
    changes = series_changes(series, patches, record)
    stale = check_borrowers(fork, upstream, patches, changes)
    new = [item.name for item in patches if f"{item.name}: new" in changes]
    notes: tuple[str, ...] = ()
    changes = (
        *(f"../{item.home}/{name}: changed" for name, (item, _) in messages.items()),
        *changes,
    )
    if not check:
        if changes and not force:
            _check_not_outdated(fork, release, upstream, stamp)
        for name, (_, text) in messages.items():
            write_back(fork, upstream, next(item for item in known if item.name == name), text)
        write_series(series, patches, record)
        try:
            _rebuild(plan.with_patches(committed), folder, release, stamp, fork.settings.builds)
        except (OSError, ForkError) as error:
            failed = UserError.from_os_error(error) if isinstance(error, OSError) else error
            raise ForkError(
                f"{series} is written, but {folder} could not be built from it: {failed.what}",
                remedy=failed.remedy or "type the same command again",
            ) from error
        recorded, notes = record_borrowers(fork, upstream, stale)
        changes += (*recorded, *share_new(fork, upstream, new, also))
    names = tuple(patch.name for patch in patches)
    return ExportReport(upstream.name, upstream.version, series, names, changes, notes)


def _stamp_of(fork: Fork, release: str, upstream: Upstream) -> Stamp:
    """Return the stamp of a patched tree; raise UserError if the folder is not such a tree."""
    folder = fork.tree_folder(release, upstream)
    if stamp := read_stamp(folder):
        return stamp
    raise UserError(
        f"{folder} is not a patched tree",
        remedy=f"type: {fork.command(f'edit {upstream.name}', release)}",
    )


def _check_not_outdated(fork: Fork, release: str, upstream: Upstream, stamp: Stamp) -> None:
    """Raise UserError when the series changed after the tree of a release was built."""
    if _series_of(stamp.inputs) != _series_of(fork.inputs(upstream, stamp.options)):
        folder = fork.tree_folder(release, upstream)
        raise UserError(
            f"the series of {upstream} changed since {folder} was built",
            remedy=f"to keep the files: {fork.command('apply --discard', release)};"
            f" to keep the tree: {fork.command(f'export {upstream.name} --force', release)}",
        )


def _series_of(inputs: Inputs) -> tuple[object, object]:
    """Return the patches and conditions of a tree's inputs, which the series determines."""
    return inputs.patches, inputs.conditions


def commits_of(fork: Fork, release: str, upstream: Upstream, *, loose: bool = False) -> list[str]:
    """Return the commits of the patches in a patched tree, in order.

    If ``loose``, changes that are in no commit are allowed.

    Raises:
        UserError: the folder is not a patched tree of the version, an operation of git is
            unfinished, the history does not begin at the overlays, HEAD lacks commits of the
            tree's branch, or a commit changes an overlay.
    """
    folder = fork.tree_folder(release, upstream)
    stamp = _stamp_of(fork, release, upstream)
    if stamp.version != upstream.version:
        raise UserError(f"{folder} holds {stamp.version}, not {upstream}")
    at_tree = f"git -C {shlex.quote(str(folder))}"
    for name, ending in _OPERATIONS.items():
        if (folder / ".git" / name).exists():
            raise UserError(
                f"{folder}: a git {ending.split()[0]} is under way there, and its later commits are"
                " not in yet",
                remedy=f"finish it: {at_tree} {ending}"
                + ("; or --abort" if ending.endswith("--continue") else ""),
            )
    changes = [line for line in local_changes(folder, stamp) if line != OTHER_COMMITS]
    if changes and not loose:
        raise UserError(
            f"{folder} has changes that are in no commit: {'; '.join(changes[:5])}",
            remedy=f"commit them; or put them into the patches whose lines they touch:"
            f" {fork.command(f'absorb {upstream.name}', release)}",
        )
    git = Git(folder / ".git", folder)
    start = git.text("rev-parse", "--verify", OVERLAYS_REF)
    if not git.is_ancestor(start, "HEAD"):
        raise UserError(
            f"{folder}: its history no longer begins at {OVERLAYS_REF}",
            remedy=f"put it back: git rebase --onto {OVERLAYS_REF}",
        )
    tip = git.commit(f"refs/heads/{BRANCH}")
    if tip and not git.is_ancestor(tip, "HEAD"):
        raise UserError(
            f"{folder}: another commit is checked out, which lacks commits of the branch {BRANCH}",
            remedy=f"go back to the branch: {at_tree} switch {BRANCH}; or, to keep only what is"
            f" checked out: {at_tree} switch -C {BRANCH}",
        )
    commits = git.text("rev-list", "--reverse", f"{start}..HEAD").split()
    overlays = fork.overlays(upstream) if commits else {}
    for path in sorted(overlays.keys() & changed_files(git, start, "HEAD").keys()):
        raise UserError(
            f"a commit changes {path}, which is an overlay",
            remedy=_move_to_overlay(folder / path, fork.overlay_folder(upstream) / path),
        )
    return commits


def check_faithful(plan: TreePlan, folder: Path, committed: Sequence[str]) -> None:
    """Raise IntegrityError unless the patches ``committed`` give the files of the tree's HEAD."""
    git = Git(folder / ".git", folder)
    expected = dict(plan.weave.changes(committed))
    start = git.text("rev-parse", "--verify", OVERLAYS_REF)
    for path, (_, _, _, blob) in changed_files(git, start, "HEAD").items():
        file = expected.pop(path, None)
        if (file.blob if file else "0" * 40) != blob:
            raise IntegrityError(f"{path}: the exported series does not give what was committed")


def _move_to_overlay(changed: Path, overlay: Path) -> str:
    """Return the commands that make a committed change of an overlay file one of the overlay."""
    ours, theirs = (shlex.quote(str(path)) for path in (changed, overlay))
    return (
        f"copy it to the overlay, and take it out of the commit: cp {ours} {theirs};"
        f" then, in the tree: git rebase -i {OVERLAYS_REF}, mark the commit with edit,"
        f" git restore -s {OVERLAYS_REF} -SW {ours}, git commit --amend, git rebase --continue"
    )


def _rebuild(
    plan: TreePlan, folder: Path, release: str, stamp: Stamp, builds: Sequence[str]
) -> None:
    """Build the tree from the exported patches unless it and its stamp fit the series."""
    inputs = make_inputs(plan.upstream.tree, plan.patches, plan.overlays)
    if has_other_commits(folder, stamp) or _series_of(stamp.inputs) != _series_of(inputs):
        write_tree(plan, folder, release, stamp.source, builds, stamp.options)


def open_for_edit(
    fork: Fork, release: str, upstream: Upstream, options: SourceOptions
) -> PatchedTree:
    """Bring the patched tree up to date for editing; work in the tree stays.

    Raises:
        MissingUpstreamError: no source has the upstream; if it is optional, the state is MISSING.
    """
    folder = fork.tree_folder(release, upstream)
    stamp = read_stamp(folder)
    if stamp and work_in(folder, stamp)[0]:
        return tree_of(upstream, folder, stamp, TreeState.CURRENT)
    return apply_release(fork, release, options, only=upstream.name, chosen=(EVERY,))[1][0]


def with_left_out(
    fork: Fork, release: str, upstream: Upstream, stamp: Stamp, patches: tuple[Exported, ...]
) -> tuple[Exported, ...]:
    """Return the patches of a tree, with the patches that it was built without in their order.

    Raises:
        UserError: a left-out patch does not merge with the commits of the tree.
    """
    applied = {name for name, _ in stamp.inputs.patches}
    left = {
        entry.name
        for entry in read_entries(fork.patch_folder(upstream))
        if entry.name not in applied and not entry.condition.holds(stamp.options)
    }
    if not left:
        return patches
    current = planned(fork, upstream, patches)
    every = plan_tree(fork, upstream, current.pristine)
    order = _order([patch.name for patch in every.patches], [item.name for item in patches], left)
    steps = {name: every.steps[name] for name in left} | current.steps
    try:
        if twice := sorted(left & {item.name for item in patches}):
            raise PatchError(f"a new commit has the name {twice[0]}")
        return _merged(current.pristine, [steps[name] for name in order])
    except PatchError as error:
        folder = fork.tree_folder(release, upstream)
        raise UserError(
            f"{folder} was made without {', '.join(sorted(left))}, which does not go with the"
            f" commits there: {error.what}",
            remedy="make it with every patch:"
            f" {fork.command(f'apply --with {EVERY} --discard', release)}; then"
            f" bring the commits over: git -C {shlex.quote(str(folder))} cherry-pick"
            f" {stamp.head[:12]}..{PREVIOUS_REF}",
        ) from error


def _order(series: Sequence[str], applied: Sequence[str], left_out: Container[str]) -> list[str]:
    """Return the tree's patches, each left-out patch after its predecessor in the series."""
    order = list(applied)
    for index, name in enumerate(series):
        if name in left_out and name not in order:
            above = (order.index(item) + 1 for item in series[:index] if item in order)
            order.insert(max(above, default=0), name)
    return order


def _merged(pristine: Pristine, steps: Sequence[PatchStep]) -> tuple[Exported, ...]:
    """Return the patch files of steps of several plans, each merged after the step before."""
    target = MergeTarget(pristine.git, pristine.tree)
    commits = [Commit(b"Base\n", tree=pristine.tree)]
    for step in steps:
        try:
            changes = target.merged(step)
        except PatchError as error:
            raise PatchError(f"{step.patch.name}: {error.what}") from error
        target.files |= changes
        commits.append(patch_commit(step.patch, changes))
    return export_new(commits, pristine.git.objects)
