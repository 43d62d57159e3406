# SPDX-License-Identifier: Apache-2.0
"""Execution of a rebase's plan: each patch merged, resolved by a person, or dropped.

Git's success is verified: a change that the new version already has is dropped, and one that
was merged into another function stops the rebase.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from forkpatch.errors import UserError
from forkpatch.git.calls import GitError
from forkpatch.inspect.upstreamed import already_there
from forkpatch.rebase.conflicts import classify, misplaced
from forkpatch.rebase.plan import Conflict, ConflictKind, RebaseOutcome, RebaseStep
from forkpatch.rebase.workspace import Rebase, files_at
from forkpatch.series.mailbox import write_commit

_MERGE = ("-c", "merge.conflictStyle=diff3", "-c", "merge.directoryRenames=false")
_PERSON = {
    "GIT_COMMITTER_NAME": "forkpatch",
    "GIT_COMMITTER_EMAIL": "forkpatch@localhost",
}
_MARKER = re.compile(rb"^(<{7} |={7}$|>{7} |\|{7} )", re.MULTILINE)


def execute(rebase: Rebase) -> Rebase:
    """Execute the pending steps until one has conflicts, or all are done."""
    while rebase.plan.pending and not rebase.plan.conflicts:
        rebase = _execute_step(rebase, rebase.plan.pending[0])
    return rebase


def _execute_step(rebase: Rebase, step: RebaseStep) -> Rebase:
    git, head = rebase.git, rebase.plan.head
    rebase.reset(head)
    there = already_there(rebase.patch(step.patch), *_around(rebase, step), rebase.base)
    if there:
        return _complete(
            rebase, RebaseOutcome.DROPPED, reason=f"already upstream: {'; '.join(there)}"
        )
    pick = (*_MERGE, "cherry-pick", "--allow-empty", "--keep-redundant-commits", "--strategy=ort")
    try:
        git.run(*pick, step.original, env=_PERSON)
    except GitError:
        if not (rebase.tree / ".git/CHERRY_PICK_HEAD").exists():
            raise
        return _stop(rebase, classify(rebase, step.patch))
    picked, tree, before = git.text(
        "rev-parse", "HEAD", "HEAD^{tree}", f"{head}^{{tree}}"
    ).splitlines()
    if tree == before:
        reason = "already upstream: it changes nothing any more"
        return _complete(rebase, RebaseOutcome.DROPPED, reason=reason)
    if wrong := misplaced(rebase, step.patch, head, picked):
        git.run("reset", "-q", "--soft", head)
        return _stop(rebase, wrong)
    return _complete(rebase, RebaseOutcome.CLEAN, commit=picked)


def _stop(rebase: Rebase, conflicts: tuple[Conflict, ...]) -> Rebase:
    return rebase.saved(replace(rebase.plan, conflicts=conflicts))


def _complete(
    rebase: Rebase,
    outcome: RebaseOutcome,
    *,
    commit: str = "",
    reason: str = "",
    by_hand: int = 0,
) -> Rebase:
    plan = rebase.plan.completed(outcome, commit=commit, reason=reason, by_hand=by_hand)
    return rebase.saved(plan)


def _around(rebase: Rebase, step: RebaseStep) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The files that a patch changes, before and after it in the old series."""
    commits = (f"{step.original}^", step.original)
    before, after = files_at(rebase.git, commits, rebase.patch(step.patch).paths)
    return before, after


def resolve(rebase: Rebase) -> Rebase:
    """Complete the step that has conflicts with the working tree as a person left it.

    Raises:
        UserError: conflict markers remain, or no change does.
    """
    if not rebase.plan.conflicts:
        return rebase
    git, head, step = rebase.git, rebase.plan.head, rebase.plan.pending[0]
    for conflict in rebase.plan.conflicts:
        path = rebase.tree / conflict.path
        if path.is_file() and _MARKER.search(path.read_bytes()):
            raise UserError(f"{path} still has conflict markers", remedy="resolve them first")
        _remove_leftover(rebase, step.original, conflict)
    git.run("add", "-A")
    tree = git.text("write-tree")
    if tree == git.text("rev-parse", f"{head}^{{tree}}"):
        raise UserError(
            f"nothing is left of {step.patch}",
            remedy=f"drop it: forkpatch rebase {rebase.plan.upstream} --skip 'REASON'",
        )
    header, _, message = git.run("cat-file", "commit", step.original).stdout.partition(b"\n\n")
    kept = [line for line in header.split(b"\n") if not line.startswith((b"tree ", b"parent "))]
    parents = [b"tree " + tree.encode(), b"parent " + head.encode()]
    commit = write_commit(git, b"\n".join([*parents, *kept]), message)
    kinds = ", ".join(dict.fromkeys(str(conflict.kind) for conflict in rebase.plan.conflicts))
    return _complete(
        rebase,
        RebaseOutcome.ADAPTED,
        commit=commit,
        reason=f"{kinds}: resolved by hand",
        by_hand=_lines_by_hand(rebase, step.original, tree),
    )


def _lines_by_hand(rebase: Rebase, original: str, resolved: str) -> int:
    """Lines by which a resolution differs from a merge that takes upstream's side in conflicts."""
    git, head = rebase.git, rebase.plan.head
    rebase.reset(head)
    pick = ("cherry-pick", "--no-commit", "--strategy=ort", "--strategy-option=ours")
    try:
        git.run(*pick, original)
        merged = git.text("write-tree")
    except GitError:  # not a conflict of lines: a file is gone, say
        merged = f"{head}^{{tree}}"
    rows = git.text("diff-tree", "-r", "--numstat", "--no-renames", merged, resolved).splitlines()
    counts = [count for row in rows for count in row.split("\t")[:2]]
    return sum(int(count) for count in counts if count.isdigit())  # "-" stands for binary


def _remove_leftover(rebase: Rebase, original: str, conflict: Conflict) -> None:
    """Remove a file that is gone upstream and that git left for reference, when it is untouched.

    Otherwise the resolution would add it to the new version, and the patches after this one
    would find it there and change it.
    """
    path = rebase.tree / conflict.path
    if conflict.kind is not ConflictKind.FILE_GONE or not path.is_file():
        return
    (old,) = files_at(rebase.git, [original], [conflict.path])
    if old.get(conflict.path) == path.read_bytes():
        path.unlink()


def skip(rebase: Rebase, reason: str) -> Rebase:
    """Drop the patch that has conflicts.

    Raises:
        UserError: there is no reason, or no patch has conflicts.
    """
    if not reason.strip():
        raise UserError("a patch is dropped for a reason", remedy="--skip 'why it is not needed'")
    if not rebase.plan.conflicts:
        raise UserError("no patch has stopped the rebase", remedy="go on with --continue")
    return _complete(rebase, RebaseOutcome.DROPPED, reason=reason.strip())
