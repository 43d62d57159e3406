# SPDX-License-Identifier: Apache-2.0
"""A rebase carried on, given up, or brought to its end, and the report of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.git.calls import Git, GitError
from forkpatch.inspect.drift import (
    Drift,
    Finding,
    compare,
    files_to_compare,
    format_record,
    record_of,
)
from forkpatch.model.fork import Fork
from forkpatch.rebase.conflicts import Kind
from forkpatch.rebase.record import write_record
from forkpatch.rebase.replay import finish_step
from forkpatch.rebase.start import Outcome, Rebase, Step, files_at, rebase_folder
from forkpatch.series.export import Exported, export_commits, planned, write_commit, write_series
from forkpatch.tree.swap import remove_tree

_MARKER = re.compile(rb"^(<{7} |={7}$|>{7} |\|{7} )", re.MULTILINE)
_NOISE = re.compile(rb"^(index [0-9a-f]+\.\.[0-9a-f]+.*|From 0{40} .*)$")


@dataclass(frozen=True)
class PatchReport:
    """What became of one patch.

    Attributes:
        diff: how its diff changed, as a unified diff of the two patch files; empty when its
            added and removed lines are the same.
        by_hand: lines that a person added or removed to put it right; see Step.
    """

    patch: str
    outcome: Outcome
    reason: str
    diff: str
    by_hand: int = 0


@dataclass(frozen=True)
class RebaseReport:
    """The result of a whole rebase.

    Attributes:
        folder: where the new series lies; the old one is as it was.
        symbols: what became of each symbol that patches change or overlays shadow.
    """

    upstream: str
    old: str
    new: str
    folder: Path
    patches: tuple[PatchReport, ...]
    symbols: tuple[Finding, ...]


def carry_on(rebase: Rebase) -> Rebase:
    """Take what the user made of the patch under way as its new form.

    Raises:
        UserError: conflict markers are left, or nothing of the patch is.
    """
    if not rebase.state.stopped:
        return rebase
    git, (name, original) = rebase.git, rebase.state.todo[0]
    for trouble in rebase.state.stopped:
        path = rebase.tree / trouble["path"]
        if path.is_file() and _MARKER.search(path.read_bytes()):
            raise UserError(f"{path} still has conflict markers", remedy="resolve them first")
        _forget_leftover(rebase, original, trouble)
    git.run("add", "-A")
    tree = git.text("write-tree")
    if tree == git.text("rev-parse", f"{rebase.state.head}^{{tree}}"):
        raise UserError(
            f"nothing is left of {name}",
            remedy=f"drop it: forkpatch rebase {rebase.state.upstream} --skip 'REASON'",
        )
    head, _, message = git.run("cat-file", "commit", original).stdout.partition(b"\n\n")
    kept = [line for line in head.split(b"\n") if not line.startswith((b"tree ", b"parent "))]
    parents = [b"tree " + tree.encode(), b"parent " + rebase.state.head.encode()]
    commit = write_commit(git, b"\n".join([*parents, *kept]), message)
    by_hand = _by_hand(git, rebase.state.head, original, tree)
    kinds = ", ".join(dict.fromkeys(str(trouble["kind"]) for trouble in rebase.state.stopped))
    reason = f"{kinds}: resolved by hand"
    return finish_step(rebase, Step(name, Outcome.ADAPTED, commit, reason, by_hand))


def _by_hand(git: Git, head: str, original: str, resolved: str) -> int:
    """Lines by which a resolution differs from a merge that takes upstream's side in conflicts."""
    git.run("reset", "-q", "--hard", head)
    git.run("clean", "-fdq")
    pick = ("cherry-pick", "--no-commit", "--strategy=ort", "--strategy-option=ours")
    try:
        git.run(*pick, original)
        merged = git.text("write-tree")
    except GitError:  # not a conflict of lines: a file is gone, say
        merged = f"{head}^{{tree}}"
    rows = git.text("diff-tree", "-r", "--numstat", "--no-renames", merged, resolved).splitlines()
    counts = [count for row in rows for count in row.split("\t")[:2]]
    return sum(int(count) for count in counts if count.isdigit())  # "-" stands for binary


def _forget_leftover(rebase: Rebase, original: str, trouble: Mapping[str, Any]) -> None:
    """Remove a file that is gone upstream and that git left there for reference, untouched.

    Otherwise the resolution would add it to the new version, and the patches after this one
    would find it there and change it.
    """
    path = rebase.tree / trouble["path"]
    if trouble["kind"] != Kind.FILE_GONE or not path.is_file():
        return
    if files_at(rebase.git, original, [trouble["path"]]) == {trouble["path"]: path.read_bytes()}:
        path.unlink()


def skip(rebase: Rebase, reason: str) -> Rebase:
    """Drop the patch that stopped the rebase.

    Raises:
        UserError: there is no reason, or no patch stopped it.
    """
    if not reason.strip():
        raise UserError("a patch is dropped for a reason", remedy="--skip 'why it is not needed'")
    if not rebase.state.stopped:
        raise UserError("no patch has stopped the rebase", remedy="go on with --continue")
    name, _ = rebase.state.todo[0]
    return finish_step(rebase, Step(name, Outcome.DROPPED, "", reason.strip()))


def abort(fork: Fork, name: str) -> bool:
    """Give a rebase up: everything is as before. Tells whether there was one."""
    folder = rebase_folder(fork, name)
    if not folder.exists():
        return False
    remove_tree(folder)
    return True


def finish(rebase: Rebase) -> RebaseReport:
    """Write the new series beside the old one, and clean up.

    Raises:
        ForkError: the new series does not give the tree that the rebase arrived at.
    """
    fork, new = rebase.fork, rebase.new
    state = rebase.state
    commits = rebase.git.text("rev-list", "--reverse", f"{state.base}..{state.head}").split()
    patches = export_commits(rebase.tree / ".git/objects", commits)
    plan = planned(fork, new, patches)
    old_record, new_record = record_of(fork, rebase.old), record_of(fork, plan)
    findings = compare(old_record, new_record, files_to_compare(plan, old_record, new_record))
    dropped = {step.patch for step in state.done if step.outcome is Outcome.DROPPED}
    folder = fork.patch_folder(new)
    write_series(folder, patches, format_record(new_record))
    reports = tuple(_patch_report(rebase, step, patches) for step in state.done)
    clean = {step.patch for step in state.done if step.outcome is Outcome.CLEAN}
    merged = {one.patch for one in reports if one.outcome is Outcome.ADAPTED} & clean
    write_record(folder, state.old, state.done, merged)
    report = RebaseReport(
        state.upstream,
        state.old,
        state.new,
        folder,
        reports,
        tuple(
            one for one in findings if one.drift is not Drift.UNCHANGED and one.what not in dropped
        ),
    )
    remove_tree(rebase.folder)
    return report


def _patch_report(rebase: Rebase, step: Step, patches: Sequence[Exported]) -> PatchReport:
    if step.outcome is Outcome.DROPPED:
        return PatchReport(step.patch, step.outcome, step.reason, "")
    old = (rebase.fork.patch_folder(rebase.old.upstream) / step.patch).read_bytes()
    new = next(patch.data for patch in patches if patch.name == step.patch)
    diff = diff_of_diffs(old, new)
    if step.outcome is Outcome.CLEAN and diff:
        return PatchReport(step.patch, Outcome.ADAPTED, "merged by git", diff)
    return PatchReport(step.patch, step.outcome, step.reason, diff, step.by_hand)


def diff_of_diffs(old: bytes, new: bytes) -> str:
    """How a patch changed; empty when it adds and removes the same lines of the same files."""
    if _essence(old) == _essence(new):
        return ""
    before, after = (_comparable(data) for data in (old, new))
    lines = difflib.unified_diff(before, after, "old", "new", n=3, lineterm="")
    return "\n".join(lines) + "\n"


def _essence(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line[:1] in (b"+", b"-")]


def _comparable(data: bytes) -> list[str]:
    """The lines of a patch without ids and line numbers."""
    lines = [line for line in data.split(b"\n") if not _NOISE.match(line)]
    bare = (re.sub(rb"^@@ -[0-9,]+ \+[0-9,]+ @@", b"@@", line) for line in lines)
    return [line.decode("utf-8", "replace") for line in bare]
