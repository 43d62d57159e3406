# SPDX-License-Identifier: Apache-2.0
"""Execution of a rebase's plan: each patch is merged, resolved by a person, or dropped.

A patch is merged where independent ways agree on one place (:mod:`forkpatch.rebase.merging`), and
dropped where the new version has all of its changes at that place. Anything else stops the rebase.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from forkpatch.errors import UserError
from forkpatch.git.calls import GitError
from forkpatch.git.objects import COMMITTER, write_commits
from forkpatch.model.diffs import FileDiff
from forkpatch.output import warn
from forkpatch.rebase.conflicts import (
    classify,
    files_after,
    history_of,
    merged_files,
    misplacements_of,
    placed_wrongly,
)
from forkpatch.rebase.merging import Errors, Move, merge_patches
from forkpatch.rebase.plan import Conflict, RebaseOutcome, RebaseStep
from forkpatch.rebase.recorded import replay
from forkpatch.rebase.resolution import complete, merge_by_syntax
from forkpatch.rebase.workspace import MERGED, MERGED_INDEX, Rebase
from forkpatch.sources.history import UpstreamCommit
from forkpatch.symbols.carrying import carry, is_taken_back
from forkpatch.symbols.placement import rivalled
from forkpatch.tree.fork import PatchStep

_PICK = (
    *("-c", "merge.conflictStyle=diff3", "-c", "merge.directoryRenames=true"),
    *("-c", "rerere.enabled=false"),
    *("cherry-pick", "--allow-empty", "--keep-redundant-commits", "--strategy=ort"),
)


def execute(rebase: Rebase) -> Rebase:
    """Execute the pending steps until a step stops, or all steps are done."""
    while rebase.plan.pending and not rebase.plan.conflicts:
        steps = rebase.old.steps
        pending = [(steps[item.patch], item.original) for item in rebase.plan.pending]
        moves, errors = merge_patches(rebase.git, rebase.plan.head, pending, rebase.base)
        rebase = _completed(rebase, moves)
        if rebase.plan.pending:
            rebase = _stopped(rebase, rebase.plan.pending[0], errors)
    return rebase


def _completed(rebase: Rebase, moves: Sequence[Move]) -> Rebase:
    """Write the commits of merged patches, and drop those that the new version has."""
    plan = rebase.plan
    commits = [
        replace(move.step.commit, changes={}, tree=move.tree, parent=plan.head)
        for move in moves
        if not move.is_done
    ]
    ids = iter(write_commits(rebase.git, MERGED, commits, brief=True) if commits else ())
    for move in moves:
        if move.is_done:
            where = "already upstream" + (" or in a kept patch" if plan.existing else "")
            places = "; ".join(dict.fromkeys(move.done_at(rebase.base)))
            reason = f"{where}: {places or 'it changes nothing any more'}"
            plan = plan.completed(RebaseOutcome.DROPPED, reason=reason)
        else:
            plan = plan.completed(RebaseOutcome.CLEAN, commit=next(ids))
    return rebase.saved(plan)


def _stopped(rebase: Rebase, step: RebaseStep, errors: Errors) -> Rebase:
    """Show git's merge of a step in the working tree, and stop there, unless it is resolved."""
    git, head = rebase.git, rebase.plan.head
    git.run("reset", "-q", "--hard", head)
    git.run("clean", "-fdq")
    try:
        git.run(*_PICK, step.original, env=COMMITTER)
    except GitError:
        if not (rebase.tree / ".git/CHERRY_PICK_HEAD").exists():
            raise
        return _conflicting(rebase, step)
    picked = git.text("rev-parse", "HEAD")
    now = files_after(rebase, step.patch, picked)
    git.run("reset", "-q", "--soft", head)
    return _stop(rebase, misplacements_of(step.patch, now, errors))


def _conflicting(rebase: Rebase, step: RebaseStep) -> Rebase:
    """Drop a patch that upstream has, or resolve it as recorded or by mergiraf; otherwise stop.

    Changes that git merged beside the conflicts are checked for misplacement, too.
    """
    if commit := _upstream_commit(rebase, step):
        rebase.git.run("cherry-pick", "--abort")
        return _dropped(rebase, f"already upstream: {commit}")
    shutil.copyfile(rebase.tree / ".git/index", rebase.folder / MERGED_INDEX)
    conflicts = classify(rebase, step.patch)
    merged = merged_files(rebase, step)
    wrong = placed_wrongly(rebase, step.patch, merged)
    stopped = _stop(rebase, (*conflicts, *wrong))
    if wrong:
        return stopped
    tree, reasons = replay(rebase.git, rebase.resolutions, step.original, rebase.plan.head)
    if tree:
        return complete(stopped, tree, "resolved as recorded")
    warn(*(f"{step.patch}: {reason}" for reason in reasons))
    if tree := merge_by_syntax(rebase, step):
        return complete(stopped, tree, "merged by mergiraf", record=True)
    return stopped


def _upstream_commit(rebase: Rebase, step: RebaseStep) -> UpstreamCommit | None:
    """Return the upstream commit between both versions with the same change as the patch.

    None: there is no such commit, its change was taken back later, or the history is unknown.
    """
    history, old, new = history_of(rebase), rebase.old.upstream, rebase.new
    if history is None or not new.commit:
        return None
    show = ("diff-tree", "-p", "--no-renames", "--full-index")
    diff, reverse = (
        rebase.git.run(*show, *pair).stdout
        for pair in ((f"{step.original}^", step.original), (step.original, f"{step.original}^"))
    )
    ours = rebase.old.steps[step.patch]
    found = history.same_change(old.commit, new.commit, ours.patch.paths, diff, reverse)
    if found is None:
        return None
    for item in ours.patch.files:
        path = rebase.base.path_of(item.new or item.old or "")
        was = history.read(found.commit, item.new or "") or b""
        now = rebase.base.read(path) or b""
        if not _is_done(ours, item, was) or is_taken_back(item, was, now):
            return None
    return found


def _is_done(step: PatchStep, diff: FileDiff, was: bytes) -> bool:
    """Return True if a file after an upstream commit has a patch's change, at its place.

    The commit has the patch's patch-id, which ignores blanks and the lines' numbers.
    """
    if diff.new is None:
        return True
    if diff.new != diff.old or diff.binary:
        return was == step.after[diff.new]
    edits = carry(diff, step.before[diff.new], was, diff.new)
    return edits.merged() == was and not rivalled(edits, step.after[diff.new], None)


def _stop(rebase: Rebase, conflicts: tuple[Conflict, ...]) -> Rebase:
    """Save the conflicts of the first pending step, which stop the rebase."""
    return rebase.saved(replace(rebase.plan, conflicts=conflicts))


def skip(rebase: Rebase, reason: str) -> Rebase:
    """Drop the patch that has conflicts.

    Raises:
        UserError: the reason is empty, or no patch has conflicts.
    """
    if not reason.strip():
        raise UserError("--skip needs a reason", remedy="--skip 'why it is not needed'")
    if not rebase.plan.conflicts:
        raise UserError("no patch has stopped the rebase", remedy="go on with --continue")
    return _dropped(rebase, reason.strip())


def _dropped(rebase: Rebase, reason: str) -> Rebase:
    """Drop the patch of the first pending step."""
    return rebase.saved(rebase.plan.completed(RebaseOutcome.DROPPED, reason=reason))
