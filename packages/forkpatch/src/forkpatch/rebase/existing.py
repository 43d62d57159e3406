# SPDX-License-Identifier: Apache-2.0
"""The new version's existing series in a rebase: kept and added to, or replaced.

The report names each patch of the existing series, and each patch of the old version that the
existing series replaces.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.foreign.origin import ORIGIN
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch
from forkpatch.rebase.plan import Existing, RebaseOutcome, RebasePlan
from forkpatch.series.mailbox import Exported
from forkpatch.series.shared import lends, share_patches
from forkpatch.tree.fork import Fork


def check_choice(fork: Fork, old: Upstream, new: Upstream, existing: Existing | None) -> None:
    """Check that a choice is given exactly when the new version has a series.

    Raises:
        UserError: the choice is missing, or the new version has no series.
    """
    folder = fork.patch_folder(new)
    if folder.exists() and existing is None:
        raise UserError(
            f"{new} has a series already: {folder}",
            remedy=f"add the patches of {old.version} that it lacks: "
            + typed(f"rebase {new.name} {new.version} --from {old.version} --existing keep")
            + "; or --existing replace",
        )
    if existing is not None and not folder.exists():
        raise UserError(f"{new} has no series yet", remedy="leave out --existing")


def series_state(fork: Fork, upstream: Upstream) -> str:
    """Return a hash of a version's series: homes, names, texts; empty without a series."""
    if not fork.patch_folder(upstream).exists():
        return ""
    return _state((patch.home, patch.name, patch.sha256) for patch in fork.series(upstream))


def _state(patches: Iterable[tuple[str, str, str]]) -> str:
    """Return the hash of a series from home, name and sha256 of each patch."""
    lines = (f"{home}/{name} {sha256}\n" for home, name, sha256 in patches)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_state(fork: Fork, plan: RebasePlan, patches: Sequence[Exported]) -> None:
    """Check that the new version's series is unchanged since the rebase began.

    It may also equal the result of the rebase, when a run was killed after writing it.

    Raises:
        UserError: the series changed.
    """
    new = fork.lock.upstream(plan.upstream, plan.new)
    shas = (
        patch.shared.sha256 if patch.shared else hashlib.sha256(patch.data).hexdigest()
        for patch in patches
    )
    named = ((patch.entry.home, patch.entry.name) for patch in patches)
    written = _state((*name, sha256) for name, sha256 in zip(named, shas, strict=True))
    if series_state(fork, new) not in (plan.state, written):
        raise UserError(
            f"{fork.patch_folder(new)} changed since the rebase began",
            remedy="put it back, then --continue; or"
            f" {typed(f'rebase {plan.upstream} --abort')}, and begin again",
        )


def settled(
    fork: Fork, plan: RebasePlan, exported: Sequence[Exported], series: Sequence[Patch]
) -> tuple[Exported, ...]:
    """Return the new series: kept patches with their files, other patches shared if possible.

    A patch is not shared with a version whose own series names patches of the new version.
    """
    new = fork.lock.upstream(plan.upstream, plan.new)
    names = {step.patch for step in plan.steps if step.outcome is RebaseOutcome.KEPT}
    kept = {one.name: one for one in fork.series(new) if one.name in names}
    homes = {patch.home or plan.old for patch in series} - {plan.new}
    lenders = {home for home in homes if not lends(fork, plan.upstream, plan.new, home)}
    others = [
        replace(patch, home=home)
        for patch in series
        if patch.name not in kept and (home := patch.home or plan.old) in lenders
    ]
    shared = share_patches(exported, others)
    return tuple(
        item
        if (patch := kept.get(item.name)) is None
        else replace(item, shared=patch)
        if patch.home
        else replace(item, data=fork.patch_file(new, patch).read_bytes())
        for item in shared
    )


def settle_origin(plan: RebasePlan, old: Path, new: Path) -> None:
    """Copy the old series' origin, if any, to the new series, unless that keeps its own."""
    if plan.existing is Existing.REPLACE and (new / ORIGIN).exists():
        shutil.rmtree(new / ORIGIN)
    if (old / ORIGIN).is_dir() and not (new / ORIGIN).exists():
        shutil.copytree(old / ORIGIN, new / ORIGIN, symlinks=True)
