# SPDX-License-Identifier: Apache-2.0
"""The whole series of a tree that was built without the patches with a false condition."""

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
from forkpatch.series.merge import MergeTarget
from forkpatch.sources.cache import Pristine
from forkpatch.tree.fork import Fork, PatchStep, plan_tree
from forkpatch.tree.worktree import PREVIOUS_REF, patch_commit, read_stamp


def with_left_out(
    fork: Fork, upstream: Upstream, folder: Path, patches: tuple[Exported, ...]
) -> tuple[Exported, ...]:
    """Return the patches of a tree, with the patches that it was built without in their order.

    Raises:
        UserError: a left-out patch does not merge with the commits of the tree.
    """
    stamp = read_stamp(folder)
    applied = {name for name, _ in stamp.inputs.patches} if stamp else set()
    left = {
        entry.name
        for entry in read_entries(fork.patch_folder(upstream))
        if stamp and entry.name not in applied and not entry.condition.holds(stamp.options)
    }
    if stamp is None or not left:
        return patches
    current = planned(fork, upstream, patches)
    every = plan_tree(fork, upstream, current.pristine)
    order = _order([patch.name for patch in every.patches], [item.name for item in patches], left)
    steps = {step.patch.name: step for step in every.steps() if step.patch.name in left}
    steps |= {step.patch.name: step for step in current.steps()}
    try:
        if twice := sorted(left & {item.name for item in patches}):
            raise PatchError(f"a new commit has the name {twice[0]}")
        return _merged(current.pristine, [steps[name] for name in order])
    except PatchError as error:
        raise UserError(
            f"{folder} was made without {', '.join(sorted(left))}, which does not go with the"
            f" commits there: {error.what}",
            remedy=f"make it with every patch: {typed(f'apply --with {EVERY} --discard')}; then"
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
    """Return the patch files of steps of several plans, each merged after the step before.

    Raises:
        PatchError: a patch does not merge.
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
    return export_new(commits, pristine.git.objects)
