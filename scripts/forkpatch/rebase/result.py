# SPDX-License-Identifier: Apache-2.0
"""Result of a rebase: the new series, the record beside it, and its report as Markdown."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.files import atomic_write_json
from forkpatch.errors import UserError
from forkpatch.inspect.drift import (
    Drift,
    Finding,
    compare,
    files_to_compare,
    format_record,
    record_of,
)
from forkpatch.model.fork import Fork
from forkpatch.model.lock import Upstream
from forkpatch.output import counted
from forkpatch.rebase.plan import RebaseOutcome, RebaseStep
from forkpatch.rebase.workspace import Rebase
from forkpatch.series.export import Exported, export_commits, planned, write_series
from forkpatch.tree.swap import remove_tree

RECORD_FILE = "rebased.json"
_NOISE = re.compile(rb"^(index [0-9a-f]+\.\.[0-9a-f]+.*|From 0{40} .*)$")


@dataclass(frozen=True)
class PatchResult:
    """Result for one patch; ``RebaseStep`` describes ``reason`` and ``by_hand``.

    Attributes:
        diff: unified diff of the two patch files; empty when their added and removed lines are
            the same. It is not part of the record.
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
    """

    upstream: str
    old: str
    new: str
    folder: Path
    patches: tuple[PatchResult, ...]
    symbols: tuple[Finding, ...]


@dataclass(frozen=True)
class RebaseRecord:
    """The part of a report that is kept beside the new series.

    Attributes:
        old: the version that the series came from.
        patches: the patches of that series, in its order.
    """

    old: str
    patches: tuple[PatchResult, ...]


def finish(rebase: Rebase) -> RebaseReport:
    """Write the new series and its record, and remove the workspace.

    Raises:
        ForkError: the new series does not give the tree that the rebase arrived at.
    """
    fork, plan = rebase.fork, rebase.plan
    commits = rebase.git.text("rev-list", "--reverse", f"{plan.base}..{plan.head}").split()
    patches = export_commits(rebase.tree / ".git/objects", commits)
    tree = planned(fork, rebase.new, patches)
    old_record, new_record = record_of(fork, rebase.old), record_of(fork, tree)
    findings = compare(old_record, new_record, files_to_compare(tree, old_record, new_record))
    results = tuple(_patch_result(rebase, step, patches) for step in plan.done)
    dropped = {one.patch for one in results if one.outcome is RebaseOutcome.DROPPED}
    symbols = tuple(
        one for one in findings if one.drift is not Drift.UNCHANGED and one.what not in dropped
    )
    folder = fork.patch_folder(rebase.new)
    write_series(folder, patches, format_record(new_record))
    _write_record(folder, RebaseRecord(plan.old, results))
    remove_tree(rebase.folder)
    return RebaseReport(plan.upstream, plan.old, plan.new, folder, results, symbols)


def _patch_result(rebase: Rebase, step: RebaseStep, patches: Sequence[Exported]) -> PatchResult:
    assert step.outcome is not None
    if step.outcome is RebaseOutcome.DROPPED:
        return PatchResult(step.patch, step.outcome, step.reason)
    old = (rebase.fork.patch_folder(rebase.old.upstream) / step.patch).read_bytes()
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


def _write_record(folder: Path, record: RebaseRecord) -> None:
    value = asdict(record)
    for patch in value["patches"]:
        del patch["diff"]
    atomic_write_json(folder / RECORD_FILE, value)


def read_rebase_record(fork: Fork, upstream: Upstream) -> RebaseRecord:
    """The record of the rebase to this version.

    Raises:
        UserError: its series was not made by a rebase, or the record cannot be read.
    """
    path = fork.patch_folder(upstream) / RECORD_FILE
    try:
        raw = json.loads(path.read_text("utf-8"))
        return RebaseRecord(raw["old"], tuple(_read_result(**one) for one in raw["patches"]))
    except FileNotFoundError as error:
        raise UserError(
            f"the series for {upstream} was not made by a rebase: there is no {path}",
            remedy=f"make one: forkpatch rebase {upstream.name} {upstream.version}",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: {error}", remedy="restore it from version control") from error


def _read_result(outcome: str, **rest: Any) -> PatchResult:
    return PatchResult(outcome=RebaseOutcome(outcome), **rest)


def as_markdown(upstream: Upstream, record: RebaseRecord, series: Sequence[str]) -> str:
    """The record as a page, with the patches that the series got since."""
    counts = Counter(one.outcome for one in record.patches)
    hand = sum(one.by_hand for one in record.patches)
    added = [name for name in series if name not in {one.patch for one in record.patches}]
    target = f"{upstream.name} {upstream.version}"
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f"# Rebase to {target}",
        "",
        f"Made by `forkpatch rebase {target} --report FILE`; do not edit it.",
        f"The series was rebased from {record.old}. Lines by hand are those that a person added or",
        "removed, against git's merge with upstream's side taken at each conflict.",
        "",
        "| patch | outcome | lines by hand | reason |",
        "|---|---|---|---|",
        *(
            f"| {one.patch} | {one.outcome} | {one.by_hand} | {one.reason} |"
            for one in record.patches
        ),
        *(f"| {name} | added | | for this version |" for name in added),
        "",
        f"{counted(len(record.patches), 'patch')}: {counts[RebaseOutcome.CLEAN]} clean,"
        f" {counts[RebaseOutcome.ADAPTED]} adapted, {counts[RebaseOutcome.DROPPED]} dropped;"
        f" {counted(hand, 'line')} by hand; {len(added)} added.",
    ]
    return "\n".join(lines) + "\n"
