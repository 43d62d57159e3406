# SPDX-License-Identifier: Apache-2.0
"""The result of a rebase: the new series, and a report."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from forkpatch.git.objects import Commit, TreeFile, changed_files, write_commits
from forkpatch.model.record import format_record
from forkpatch.rebase.existing import check_state, settle_origin, settled
from forkpatch.rebase.merging import merge_tree
from forkpatch.rebase.plan import Existing, RebaseOutcome, RebaseStep
from forkpatch.rebase.workspace import Rebase
from forkpatch.series.mailbox import (
    Exported,
    planned,
    series_changes,
    write_series,
)
from forkpatch.series.shared import check_borrowers, record_borrowers
from forkpatch.symbols.outline import context_notes
from forkpatch.tree.drift import Drift, DriftFinding, compare, files_to_compare, record_of
from forkpatch.tree.fork import TreePlan
from forkpatch.tree.swap import remove_tree

_OVERLAYS = "refs/forkpatch/overlays"
_NOISE = re.compile(rb"^(index [0-9a-f]+\.\.[0-9a-f]+.*|From 0{40} .*)$")


@dataclass(frozen=True)
class PatchResult:
    """The result for a patch; ``reason`` and ``by_hand`` as in ``RebaseStep``.

    Attributes:
        diff: unified diff of the two patch files; empty when their added and removed lines are
            the same.
    """

    patch: str
    outcome: RebaseOutcome
    reason: str = ""
    by_hand: int = 0
    diff: str = ""


@dataclass(frozen=True)
class RebaseReport:
    """The result of a whole rebase.

    Attributes:
        folder: folder of the new series; the old series is unchanged.
        symbols: drift of the symbols that patches change or overlays shadow.
        notes: files and languages that were compared less closely, and records of other versions.
        existing: result for each patch that the new version had before; ``diff`` leads from that
            patch to the old version's patch if it was kept, else to its replacement.
    """

    upstream: str
    old: str
    new: str
    folder: Path
    patches: tuple[PatchResult, ...]
    symbols: tuple[DriftFinding, ...]
    notes: tuple[str, ...] = ()
    existing: tuple[PatchResult, ...] = ()


def finish(rebase: Rebase) -> RebaseReport:
    """Write the new series, and remove the workspace.

    Raises:
        UserError: the new version's series changed during the rebase, or another version names a
            patch that would be removed.
        ForkError: the new series does not give the tree of the rebase.
    """
    fork, plan = rebase.fork, rebase.plan
    patches = settled(fork, plan, rebase.exported(plan.head), rebase.old.patches)
    check_state(fork, plan, patches)
    tree = planned(fork, rebase.new, patches)
    old_record, new_record = rebase.record, record_of(fork, tree)
    files = files_to_compare(tree, old_record, new_record, find=rebase.base.find)
    findings = compare(old_record, new_record, files)
    moved = [step for step in plan.done if step.outcome is not RebaseOutcome.KEPT]
    results = tuple(_patch_result(rebase, step, patches) for step in moved)
    taken = {item.patch for item in results if item.outcome is not RebaseOutcome.DROPPED}
    # A change in another symbol followed it if the old one is gone, or if a person put it there.
    followed = {item.what for item in findings if item.drift in (Drift.GONE, Drift.MOVED)}
    followed |= {item.patch for item in results if item.outcome is RebaseOutcome.ADAPTED}
    notes = (*_notes(rebase, tree), *_overlay_notes(rebase, tree.overlays))
    symbols = tuple(
        replace(item, drift=Drift.FOLLOWED)
        if item.drift is Drift.MISPLACED and item.what in followed
        else item
        for item in findings
        if item.drift is not Drift.UNCHANGED
        and (item.what in taken or item.what not in old_record.patches)
    )
    folder, record = fork.patch_folder(rebase.new), format_record(new_record)
    existing = _existing(rebase, patches)
    changes = series_changes(folder, patches, record)
    borrowers = check_borrowers(fork, rebase.new, patches, changes)
    write_series(
        folder,
        patches,
        record,
        extra=lambda new: settle_origin(plan, fork.patch_folder(rebase.old.upstream), new),
    )
    remove_tree(rebase.folder)
    written, failed = record_borrowers(fork, rebase.new, borrowers)
    notes = (*notes, *written, *failed)
    return RebaseReport(
        plan.upstream, plan.old, plan.new, folder, results, symbols, notes, existing
    )


def _existing(rebase: Rebase, patches: Sequence[Exported]) -> tuple[PatchResult, ...]:
    """Return the outcome of each patch that the new version had: KEPT, REPLACED or REMOVED.

    ``diff`` leads from that patch to the old version's patch if it was kept, else to its
    replacement in ``patches``, the new series. Without such a patch it is empty.
    """
    fork, plan, old = rebase.fork, rebase.plan, rebase.old.upstream
    if plan.existing is None:
        return ()
    known = {patch.name: patch.data for patch in patches}
    if plan.existing is Existing.KEEP:
        known = {
            patch.name: fork.patch_file(old, patch).read_bytes() for patch in rebase.old.patches
        }
    results, steps = [], {step.patch: step for step in plan.steps}
    for patch in fork.series(rebase.new):
        step = steps.get(patch.name)
        if plan.existing is Existing.KEEP:
            outcome = RebaseOutcome.KEPT
            reason = f"{plan.old}'s was not taken" if step and step.original else ""
        elif patch.name in known:
            outcome, reason = RebaseOutcome.REPLACED, f"by {plan.old}'s"
        else:
            none = f"{plan.old} has no patch of that name"
            outcome = RebaseOutcome.REMOVED
            reason = f"{plan.old}'s was dropped" if step else none
        before = fork.patch_file(rebase.new, patch).read_bytes()
        diff = _text_diff(before, known.get(patch.name, before), (plan.new, plan.old))
        results.append(PatchResult(patch.name, outcome, reason, diff=diff))
    return tuple(results)


def _notes(rebase: Rebase, tree: TreePlan) -> tuple[str, ...]:
    """Return notes on files that were compared less closely."""
    diffs = [diff for patch in (*rebase.old.patches, *tree.patches) for diff in patch.files]
    paths = {path for diff in diffs if diff.hunks for path in diff.paths}
    return context_notes(
        (path, base.get(path, b""))
        for path in sorted(paths)
        for base in (rebase.old.base, tree.base)
    )


def _overlay_notes(rebase: Rebase, overlays: Mapping[str, TreeFile]) -> Iterator[str]:
    """Yield a note for each overlay that may belong to another place, or that upstream has, too.

    All versions share the overlays, so a rebase moves none.
    """
    if not overlays:
        return
    git, base, at = rebase.git, rebase.base, rebase.fork.overlay_folder(rebase.new)
    # As files of a patch, git moves them with renamed folders.
    commits = [Commit(b"", tree=rebase.old.upstream.tree), Commit(b"", changes=overlays)]
    merged = merge_tree(git, rebase.new.tree, write_commits(git, _OVERLAYS, commits)[-1])
    added = changed_files(git, rebase.new.tree, merged) if merged else {}
    for path, file in overlays.items() if added else ():
        others = (*base.namesakes(path), *base.having(path, file.data)) if file.data else ()
        name = PurePosixPath(path).name
        blobs = ((one, oid) for one, (_, _, _, oid) in added.items() if one not in overlays)
        moved = [one for one, oid in blobs if (PurePosixPath(one).name, oid) == (name, file.blob)]
        if path not in added and moved:
            yield f"overlay {at / path}: upstream renamed its folder; is {moved[0]} its place?"
        elif others:
            yield f"overlay {at / path}: upstream adds {others[0]}; is the overlay needed?"


def _patch_result(rebase: Rebase, step: RebaseStep, patches: Sequence[Exported]) -> PatchResult:
    assert step.outcome is not None
    if step.outcome is RebaseOutcome.DROPPED:
        return PatchResult(step.patch, step.outcome, step.reason)
    old = rebase.fork.patch_file(rebase.old.upstream, rebase.patch(step.patch)).read_bytes()
    new = next(patch.data for patch in patches if patch.name == step.patch)
    diff = diff_of_diffs(old, new)
    if step.outcome is RebaseOutcome.CLEAN and diff:
        return PatchResult(step.patch, RebaseOutcome.ADAPTED, "merged by git", diff=diff)
    return PatchResult(step.patch, step.outcome, step.reason, step.by_hand, diff)


def diff_of_diffs(old: bytes, new: bytes) -> str:
    """Return a unified diff of two patches; empty when both add and remove the same lines."""
    if _changed_lines(old) == _changed_lines(new):
        return ""
    return _text_diff(old, new, ("old", "new"))


def _text_diff(old: bytes, new: bytes, names: tuple[str, str]) -> str:
    """Return a unified diff of two patches; empty when only ids and line numbers differ."""
    before, after = (
        [
            re.sub(rb"^@@ -[0-9,]+ \+[0-9,]+ @@", b"@@", line).decode("utf-8", "replace")
            for line in data.split(b"\n")
            if not _NOISE.match(line)
        ]
        for data in (old, new)
    )
    lines = difflib.unified_diff(before, after, *names, n=3, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _changed_lines(data: bytes) -> list[bytes]:
    """Return the lines of a patch that begin with ``+`` or ``-``."""
    return [line for line in data.split(b"\n") if line[:1] in (b"+", b"-")]
