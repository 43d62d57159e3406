# SPDX-License-Identifier: Apache-2.0
"""The whole series of a tree that was made without the patches whose condition did not hold."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import PatchError, UserError
from forkpatch.git.objects import Commit
from forkpatch.model.condition import EVERY
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import read_entries
from forkpatch.series.mailbox import Exported, export_new, planned
from forkpatch.series.submit import MergeTarget
from forkpatch.sources.cache import Pristine
from forkpatch.tree.fork import Fork, PatchStep, plan_tree
from forkpatch.tree.worktree import PREVIOUS_REF, patch_commit, read_stamp


def with_left_out(
    fork: Fork, upstream: Upstream, folder: Path, patches: tuple[Exported, ...]
) -> tuple[Exported, ...]:
    """The patches of a tree, and in their places those that are not in it.

    Raises:
        UserError: one of them does not go with the commits of the tree.
    """
    stamp = read_stamp(folder)
    there = {name for name, _ in stamp.inputs.patches} if stamp else set()
    left = {
        entry.name
        for entry in read_entries(fork.patch_folder(upstream))
        if stamp and entry.name not in there and not entry.condition.holds(stamp.options)
    }
    if stamp is None or not left:
        return patches
    here = planned(fork, upstream, patches)
    every = plan_tree(fork, upstream, here.pristine)
    order = _order([patch.name for patch in every.patches], [one.name for one in patches], left)
    steps = {step.patch.name: step for step in every.steps() if step.patch.name in left}
    steps |= {step.patch.name: step for step in here.steps()}
    try:
        if twice := sorted(left & {one.name for one in patches}):
            raise PatchError(f"a new commit has the name {twice[0]}")
        return _merged(here.pristine, [steps[name] for name in order])
    except PatchError as error:
        raise UserError(
            f"{folder} was made without {', '.join(sorted(left))}, which does not go with the"
            f" commits there: {error.what}",
            remedy=f"make it with every patch: {typed(f'apply --with {EVERY} --discard')}; then"
            f" bring the commits over: git -C {shlex.quote(str(folder))} cherry-pick"
            f" {stamp.head[:12]}..{PREVIOUS_REF}",
        ) from error


def _order(series: Sequence[str], there: Sequence[str], left: Container[str]) -> list[str]:
    """The patches that are there, each that is left out after the one before it in the series."""
    order = list(there)
    for at, name in enumerate(series):
        if name in left and name not in order:
            above = (order.index(one) + 1 for one in series[:at] if one in order)
            order.insert(max(above, default=0), name)
    return order


def _merged(pristine: Pristine, steps: Sequence[PatchStep]) -> tuple[Exported, ...]:
    """The patch files of steps of several plans, each merged after the one before it.

    Raises:
        PatchError: one does not merge.
    """
    target = MergeTarget(pristine.git, pristine.tree)
    commits = [Commit(b"Base\n", tree=pristine.tree)]
    for step in steps:
        try:
            changes = target.merged(step)
        except PatchError as error:
            raise PatchError(f"{step.patch.name}: {error.what}") from error
        target.files |= changes
        commits.append(patch_commit(step.patch, changes))
    assert pristine.git.git_dir is not None
    return export_new(commits, pristine.git.git_dir / "objects")
