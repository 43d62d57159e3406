# SPDX-License-Identifier: Apache-2.0
"""Result of a rebase: the new series, and a report of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from forkpatch.foreign.origin import copy_origin
from forkpatch.inspect.drift import Drift, DriftFinding, compare, files_to_compare
from forkpatch.inspect.grammars import grammar_of
from forkpatch.model.record import format_record
from forkpatch.rebase.plan import RebaseOutcome, RebaseStep
from forkpatch.rebase.workspace import Rebase
from forkpatch.series.derive import record_of
from forkpatch.series.mailbox import Exported, export_commits, planned, write_series
from forkpatch.series.shared import share_patches
from forkpatch.tree.swap import remove_tree

_NOISE = re.compile(rb"^(index [0-9a-f]+\.\.[0-9a-f]+.*|From 0{40} .*)$")


@dataclass(frozen=True)
class PatchResult:
    """Result for one patch; ``RebaseStep`` describes ``reason`` and ``by_hand``.

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
    """Result of a whole rebase.

    Attributes:
        folder: folder of the new series; the old one is unchanged.
        symbols: drift of the symbols that patches change or overlays shadow.
        notes: what could be checked less closely than the rest.
    """

    upstream: str
    old: str
    new: str
    folder: Path
    patches: tuple[PatchResult, ...]
    symbols: tuple[DriftFinding, ...]
    notes: tuple[str, ...] = ()


def finish(rebase: Rebase) -> RebaseReport:
    """Write the new series, and remove the workspace.

    Raises:
        ForkError: the new series does not give the tree that the rebase arrived at.
    """
    fork, plan = rebase.fork, rebase.plan
    commits = rebase.git.text("rev-list", "--reverse", f"{plan.base}..{plan.head}").split()
    patches = share_patches(
        export_commits(rebase.tree / ".git/objects", commits),
        (replace(patch, home=patch.home or plan.old) for patch in rebase.old.patches),
    )
    tree = planned(fork, rebase.new, patches)
    old_record, new_record = rebase.record, record_of(fork, tree)
    findings = compare(old_record, new_record, files_to_compare(tree, old_record, new_record))
    results = tuple(_patch_result(rebase, step, patches) for step in plan.done)
    dropped = {one.patch for one in results if one.outcome is RebaseOutcome.DROPPED}
    symbols = tuple(
        one for one in findings if one.drift is not Drift.UNCHANGED and one.what not in dropped
    )
    folder = fork.patch_folder(rebase.new)
    write_series(
        folder,
        patches,
        format_record(new_record),
        extra=lambda new: copy_origin(fork.patch_folder(rebase.old.upstream), new),
    )
    remove_tree(rebase.folder)
    return RebaseReport(
        plan.upstream, plan.old, plan.new, folder, results, symbols, _notes(patches)
    )


def _notes(patches: Sequence[Exported]) -> tuple[str, ...]:
    """A line for each language of changed files that has no grammar."""
    paths = sorted({path for patch in patches for path in patch.parse().paths})
    unparsed = (PurePosixPath(path).suffix or path for path in paths if not grammar_of(path))
    return tuple(
        f"no grammar for {suffix}: its places were compared by git's function context"
        for suffix in dict.fromkeys(unparsed)
    )


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
    """Unified diff of two patches; empty when both add and remove the same lines."""
    if _changed_lines(old) == _changed_lines(new):
        return ""
    before, after = (_comparable(data) for data in (old, new))
    lines = difflib.unified_diff(before, after, "old", "new", n=3, lineterm="")
    return "\n".join(lines) + "\n"


def _changed_lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line[:1] in (b"+", b"-")]


def _comparable(data: bytes) -> list[str]:
    """The lines of a patch without ids and line numbers."""
    lines = [line for line in data.split(b"\n") if not _NOISE.match(line)]
    bare = (re.sub(rb"^@@ -[0-9,]+ \+[0-9,]+ @@", b"@@", line) for line in lines)
    return [line.decode("utf-8", "replace") for line in bare]
