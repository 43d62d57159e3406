# SPDX-License-Identifier: Apache-2.0
"""A series that the new version of a rebase has already: kept and added to, or replaced.

The result names each of its patches, and each patch of the old version that it replaces.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.foreign.origin import ORIGIN, copy_origin
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch
from forkpatch.rebase.plan import Existing, RebaseOutcome, RebasePlan, RebaseStep
from forkpatch.series.mailbox import Exported
from forkpatch.series.shared import lends, share_patches
from forkpatch.tree.fork import Fork


def check_choice(fork: Fork, old: Upstream, new: Upstream, existing: Existing | None) -> None:
    """Raise unless a choice was made just when the new version has a series.

    Raises:
        UserError: so it is.
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
    """Hash of a version's series: names, homes and texts, in order; empty without one."""
    if not fork.patch_folder(upstream).exists():
        return ""
    return _state((one.home, one.name, one.sha256) for one in fork.series(upstream))


def _state(patches: Iterable[tuple[str, str, str]]) -> str:
    lines = (f"{home}/{name} {sha256}\n" for home, name, sha256 in patches)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_state(fork: Fork, plan: RebasePlan, patches: Sequence[Exported]) -> None:
    """Raise when the new version's series is not the one with which the rebase began.

    It may also be the one that the rebase is to write: a run was killed after that.

    Args:
        fork: the fork.
        plan: the rebase.
        patches: the series that it gives.

    Raises:
        UserError: so it is.
    """
    new = fork.lock.upstream(plan.upstream, plan.new)
    shas = (
        one.shared.sha256 if one.shared else hashlib.sha256(one.data).hexdigest() for one in patches
    )
    named = ((one.entry.home, one.entry.name) for one in patches)
    written = _state((*name, sha256) for name, sha256 in zip(named, shas, strict=True))
    if series_state(fork, new) not in (plan.state, written):
        raise UserError(
            f"{fork.patch_folder(new)} changed since the rebase began",
            remedy="put it back, then --continue; or"
            f" {typed(f'rebase {plan.upstream} --abort')}, and begin again",
        )


def steps_of(
    kept: Mapping[str, str], series: Mapping[str, str], hashes: Mapping[str, str]
) -> tuple[RebaseStep, ...]:
    """The steps of a rebase.

    Args:
        kept: commits of the new version's patches that are kept, by name, on the new base.
        series: commits of the old version's, on the old one.
        hashes: hashes of the old version's patches.
    """
    return (
        *(
            RebaseStep(name, series.get(name, ""), RebaseOutcome.KEPT, commit)
            for name, commit in kept.items()
        ),
        *(
            RebaseStep(name, commit, sha256=hashes[name])
            for name, commit in series.items()
            if name not in kept
        ),
    )


def settled(
    fork: Fork, plan: RebasePlan, exported: Sequence[Exported], series: Sequence[Patch]
) -> tuple[Exported, ...]:
    """The new series: kept patches as their files are, others shared where they may be.

    A patch is not shared with a version whose own series names patches of the new one.

    Args:
        fork: the fork.
        plan: the rebase, all steps of which are done.
        exported: the commits of the new series as patch files.
        series: the patches of the old one.
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
    return tuple(
        _as_kept(fork, new, item, kept[item.name]) if item.name in kept else item
        for item in share_patches(exported, others)
    )


def _as_kept(fork: Fork, new: Upstream, item: Exported, patch: Patch) -> Exported:
    if patch.home:
        return replace(item, shared=patch)
    return replace(item, data=fork.patch_file(new, patch).read_bytes())


def settle_origin(plan: RebasePlan, old: Path, new: Path) -> None:
    """Give a folder of a new series the origin of the old one, unless it keeps its own."""
    if plan.existing is Existing.REPLACE and (new / ORIGIN).exists():
        shutil.rmtree(new / ORIGIN)
    if not (new / ORIGIN).exists():
        copy_origin(old, new)


def outcome_of(name: str, plan: RebasePlan, patches: Collection[str]) -> tuple[RebaseOutcome, str]:
    """Outcome of a patch that the new version had, and its reason.

    Args:
        name: the patch.
        plan: the rebase.
        patches: names of the patches that the new version has now.
    """
    step = next((step for step in plan.steps if step.patch == name), None)
    if plan.existing is Existing.KEEP:
        return RebaseOutcome.KEPT, f"{plan.old}'s was not taken" if step and step.original else ""
    if name in patches:
        return RebaseOutcome.REPLACED, f"by {plan.old}'s"
    why = f"{plan.old}'s was dropped" if step else f"{plan.old} has no patch of that name"
    return RebaseOutcome.REMOVED, why
