# SPDX-License-Identifier: Apache-2.0
"""Execution of a rebase's plan: each patch is merged, resolved by a person, or dropped.

Git's success is checked: a patch whose change the new version already has is dropped, and a change
that was merged into another function stops the rebase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forkpatch.errors import UserError
from forkpatch.git.calls import GitError
from forkpatch.git.objects import write_commits
from forkpatch.inspect.upstreamed import already_there
from forkpatch.output import warn
from forkpatch.rebase.conflicts import (
    classify,
    files_after,
    history_of,
    merged_files,
    placed_wrongly,
)
from forkpatch.rebase.merging import HeadFiles, merge_patches
from forkpatch.rebase.plan import Conflict, RebaseOutcome, RebaseStep
from forkpatch.rebase.recorded import remember, replay
from forkpatch.rebase.resolution import complete
from forkpatch.rebase.tools import merge_by_syntax
from forkpatch.rebase.workspace import Rebase, files_at
from forkpatch.sources.history import UpstreamCommit

_MERGED = "refs/forkpatch/merged"


def execute(rebase: Rebase) -> Rebase:
    """Execute the pending steps until a step has conflicts, or all steps are done."""
    while rebase.plan.pending and not rebase.plan.conflicts:
        rebase = _merge_clean(rebase)
        if rebase.plan.pending:
            rebase = _execute_step(rebase, rebase.plan.pending[0])
    return rebase


def _merge_clean(rebase: Rebase) -> Rebase:
    """Merge the pending patches in memory, up to the first patch that git must merge."""
    plan = rebase.plan
    steps = {step.patch.name: step for step in rebase.old.steps()}
    pending = [steps[item.patch] for item in plan.pending]
    files = HeadFiles(
        rebase.git, plan.head, {path for item in pending for path in item.patch.paths}
    )
    commits = [
        replace(step.commit, changes=changes, parent=plan.head)
        for step, changes in zip(pending, merge_patches(pending, files, rebase.base), strict=False)
    ]
    if not commits:
        return rebase
    for oid in write_commits(rebase.git, _MERGED, commits):
        plan = plan.completed(RebaseOutcome.CLEAN, commit=oid)
    return rebase.saved(plan)


def _execute_step(rebase: Rebase, step: RebaseStep) -> Rebase:
    """Execute a step with git: drop the patch, merge it, or stop at its conflicts."""
    git, head = rebase.git, rebase.plan.head
    symbols = already_there(rebase.patch(step.patch), *_around(rebase, step), rebase.base)
    if symbols:
        reason = f"already upstream: {'; '.join(symbols)}"
        return rebase.completed(RebaseOutcome.DROPPED, reason=reason)
    if commit := _merged_unseen(rebase, step):
        return rebase.completed(RebaseOutcome.CLEAN, commit=commit)
    rebase.reset(head)
    try:
        rebase.pick(step.original)
    except GitError:
        if not (rebase.tree / ".git/CHERRY_PICK_HEAD").exists():
            raise
        return _conflicting(rebase, step)
    picked, tree, before = git.text(
        "rev-parse", "HEAD", "HEAD^{tree}", f"{head}^{{tree}}"
    ).splitlines()
    merged = files_after(rebase, step.patch, picked)
    if wrong := placed_wrongly(rebase, step.patch, merged, whole=True):
        git.run("reset", "-q", "--soft", head)
        return _stop(rebase, wrong)
    if tree == before:
        where = "already upstream" + (" or in a kept patch" if rebase.plan.existing else "")
        reason = f"{where}: it changes nothing any more"
        return rebase.completed(RebaseOutcome.DROPPED, reason=reason)
    return rebase.completed(RebaseOutcome.CLEAN, commit=picked)


def _merged_unseen(rebase: Rebase, step: RebaseStep) -> str:
    """Merge a patch with git, without a checkout; return its commit, empty if not clean."""
    head, tree = rebase.plan.head, rebase.try_pick(step.original)
    if not tree or tree == rebase.git.text("rev-parse", f"{head}^{{tree}}"):
        return ""
    if placed_wrongly(rebase, step.patch, files_after(rebase, step.patch, tree), whole=True):
        return ""
    pairs = zip(rebase.old.patches, rebase.old.patch_commits, strict=True)
    commit = next(item for patch, item in pairs if patch.name == step.patch)
    merged = replace(commit, changes={}, tree=tree, parent=head)
    return write_commits(rebase.git, _MERGED, [merged])[0]


def _conflicting(rebase: Rebase, step: RebaseStep) -> Rebase:
    """Drop a patch that conflicts with its own commit upstream; otherwise stop.

    Changes that git merged beside the conflicts are checked for misplacement, too.
    """
    if commit := _upstream_commit(rebase, step):
        rebase.git.run("cherry-pick", "--abort")
        return rebase.completed(RebaseOutcome.DROPPED, reason=f"already upstream: {commit}")
    rebase.keep_index()
    conflicts = classify(rebase, step.patch)
    merged = merged_files(rebase, step.patch)
    wrong = placed_wrongly(rebase, step.patch, merged, whole=False)
    stopped = _stop(rebase, (*conflicts, *wrong))
    if wrong:
        return stopped
    replayed = replay(rebase.git, rebase.resolutions, step.original, rebase.plan.head)
    if replayed.tree:
        return complete(stopped, replayed.tree, "resolved as recorded")
    warn(*(f"{step.patch}: {reason}" for reason in replayed.reasons))
    if tree := merge_by_syntax(rebase, step):
        trees = (step.original, rebase.plan.head, tree)
        remember(rebase.merged, rebase.resolutions, step.patch, trees)
        return complete(stopped, tree, "merged by mergiraf")
    return stopped


def _upstream_commit(rebase: Rebase, step: RebaseStep) -> UpstreamCommit | None:
    """Return the upstream commit between both versions with the same change as the patch."""
    history, old, new = history_of(rebase), rebase.old.upstream, rebase.new
    if history is None or not new.commit:
        return None
    show = ("diff-tree", "-p", "--no-renames", "--full-index")
    diff, reverse = (
        rebase.git.run(*show, *pair).stdout
        for pair in ((f"{step.original}^", step.original), (step.original, f"{step.original}^"))
    )
    paths = rebase.patch(step.patch).paths
    return history.same_change(old.commit, new.commit, paths, diff, reverse)


def _stop(rebase: Rebase, conflicts: tuple[Conflict, ...]) -> Rebase:
    """Save the conflicts of the first pending step, which stop the rebase."""
    return rebase.saved(replace(rebase.plan, conflicts=conflicts))


def _around(rebase: Rebase, step: RebaseStep) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """Return a patch's files before and after it in the old series."""
    commits = (f"{step.original}^", step.original)
    before, after = files_at(rebase.git, commits, rebase.patch(step.patch).paths)
    return before, after


def skip(rebase: Rebase, reason: str) -> Rebase:
    """Drop the patch that has conflicts.

    Raises:
        UserError: the reason is empty, or no patch has conflicts.
    """
    if not reason.strip():
        raise UserError("--skip needs a reason", remedy="--skip 'why it is not needed'")
    if not rebase.plan.conflicts:
        raise UserError("no patch has stopped the rebase", remedy="go on with --continue")
    return rebase.completed(RebaseOutcome.DROPPED, reason=reason.strip())
