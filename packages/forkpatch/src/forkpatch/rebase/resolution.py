# SPDX-License-Identifier: Apache-2.0
"""Completion of a step that has conflicts, with the working tree as a person left it."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import PurePosixPath

from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.git.calls import GitError
from forkpatch.git.objects import blob_id, read_index
from forkpatch.output import warn
from forkpatch.rebase.conflicts import files_after, placed_wrongly
from forkpatch.rebase.plan import Conflict, ConflictKind, RebaseOutcome, RebaseStep
from forkpatch.rebase.recorded import remember
from forkpatch.rebase.workspace import Rebase, files_at
from forkpatch.series.mailbox import write_commit

_MARKERS = (b"<<<<<<< ", b"||||||| ", b"=======", b">>>>>>> ")
_DOCUMENTS = (".rst", ".txt", ".md")


def resolve(rebase: Rebase, accepted: str | None = None) -> Rebase:
    """Complete the step that has conflicts with the working tree as a person left it.

    Args:
        rebase: the rebase.
        accepted: why the change is right where git put it; None when it was moved by hand.

    Raises:
        UserError: conflict markers or a misplacement remain, no change does, or a file with
            conflicts is gone without a word.
    """
    if not rebase.plan.conflicts:
        return rebase
    if accepted is not None and not accepted.strip():
        raise UserError("--accept needs a reason", remedy="--accept 'why it is right'")
    git, head, step = rebase.git, rebase.plan.head, rebase.plan.pending[0]
    for conflict in rebase.plan.conflicts:
        path = rebase.tree / conflict.path
        if path.is_file() and _has_markers(rebase, step, conflict.path):
            raise UserError(f"{path} still has conflict markers", remedy="resolve them first")
        _remove_leftover(rebase, step, conflict)
    _check_deletions(rebase, step)
    if new := git.text("ls-files", "--others", "--exclude-standard"):
        warn(f"taken into {step.patch}: {', '.join(new.splitlines())}")
    git.run("add", "-A")
    if left := git.text("ls-files", "--others", "--ignored", "--exclude-standard"):
        warn(f"ignored by git, and not in {step.patch}: {', '.join(left.splitlines())}")
    tree = git.text("write-tree")
    if tree == git.text("rev-parse", f"{head}^{{tree}}"):
        raise UserError(
            f"nothing is left of {step.patch}",
            remedy="drop it: " + typed(f"rebase {rebase.plan.upstream} --skip 'REASON'"),
        )
    if not accepted:
        _check_moved(rebase, step, tree)
    if all(one.kind is not ConflictKind.MISPLACED for one in rebase.plan.conflicts):
        trees = (step.original, head, tree)
        remember(rebase.merged, rebase.resolutions, step.patch, trees)
    return complete(rebase, tree, f"accepted: {accepted}" if accepted else "resolved by hand")


def complete(rebase: Rebase, tree: str, how: str) -> Rebase:
    """Complete the step that has conflicts with a tree in which they are resolved."""
    git, head, step = rebase.git, rebase.plan.head, rebase.plan.pending[0]
    header, _, message = git.run("cat-file", "commit", step.original).stdout.partition(b"\n\n")
    kept = [line for line in header.split(b"\n") if not line.startswith((b"tree ", b"parent "))]
    parents = [b"tree " + tree.encode(), b"parent " + head.encode()]
    commit = write_commit(git, b"\n".join([*parents, *kept]), message)
    kinds = ", ".join(dict.fromkeys(str(conflict.kind) for conflict in rebase.plan.conflicts))
    done = rebase.completed(RebaseOutcome.ADAPTED, commit=commit, reason=f"{kinds}: {how}")
    # Counting takes the resolution out of the working tree: by now the plan has it.
    return done.counted(step.patch, _lines_by_hand(rebase, step.original, tree))


def _check_moved(rebase: Rebase, step: RebaseStep, tree: str) -> None:
    """Raise while a change is in the place for which the rebase has stopped."""
    wrong = [one for one in rebase.plan.conflicts if one.kind is ConflictKind.MISPLACED]
    if not wrong:
        return
    files = files_after(rebase, step.patch, tree)
    found = placed_wrongly(rebase, step.patch, files, whole=False)
    still = {(one.path, one.symbol) for one in found}
    for one in wrong:
        untouched = one.path in files and blob_id(files[one.path]) == one.blob
        if untouched or (one.path, one.symbol) in still:
            raise UserError(
                f"{step.patch}: {one.path}: misplaced still: {one.detail}",
                remedy=f"move the change in {rebase.tree / one.path}; or, when it is right there: "
                + typed(f"rebase {rebase.plan.upstream} --accept 'REASON'"),
            )


def _has_markers(rebase: Rebase, step: RebaseStep, path: str) -> bool:
    """True when a file has more of git's markers than each of the files that were merged.

    In a document, seven equal signs below a short title are an underline.
    """
    merged = files_at(rebase.git, [rebase.plan.head, step.original, f"{step.original}^"], [path])
    old = [_markers(path, files.get(path, b"")) for files in merged]
    now = _markers(path, (rebase.tree / path).read_bytes())
    return any(count > max(one[kind] for one in old) for kind, count in now.items())


def _markers(path: str, data: bytes) -> Counter[bytes]:
    """The number of lines that look like each of git's markers."""
    found: Counter[bytes] = Counter()
    is_document = PurePosixPath(path).suffix in _DOCUMENTS
    lines = [b"", b"", *data.splitlines()]
    for blank, title, line in zip(lines, lines[1:], lines[2:], strict=False):
        if line == b"=======":
            is_title = not blank.strip() and 0 < len(title.strip()) <= len(line)
            found[line] += not (is_document and is_title)
        elif line.startswith(_MARKERS) and line[7:8] == b" ":
            found[line[:7]] += 1
    return found


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
    return sum(int(count) for count in counts if count.isdigit())  # "-" is a binary file


def _check_deletions(rebase: Rebase, step: RebaseStep) -> None:
    """Raise when a file that upstream has was deleted in place of a resolution.

    A file that ``git rm`` removed has no conflict in git's index any more: it is meant to go.
    """
    git = f"git -C {shlex.quote(str(rebase.tree))}"
    unmerged = {path for path, held in read_index(rebase.git).items() if "0" not in held}
    for path in sorted(path for path in unmerged if not os.path.lexists(rebase.tree / path)):
        if not files_at(rebase.git, [rebase.plan.head], [path])[0]:
            warn(f"{step.patch}: its change of {path} is left out: the file is gone upstream")
            continue
        raise UserError(
            f"{step.patch}: {path} had conflicts, and is gone from {rebase.tree}",
            remedy=f"put it back: {git} checkout --merge {shlex.quote(path)};"
            f" or, when the patch is to delete it: {git} rm {shlex.quote(path)}",
        )


def _remove_leftover(rebase: Rebase, step: RebaseStep, conflict: Conflict) -> None:
    """Remove a file that is gone upstream and that git left for reference, when it is untouched.

    Otherwise the resolution would add it to the new version, and the patches after this one
    would find it there and change it.
    """
    path = rebase.tree / conflict.path
    if conflict.kind is not ConflictKind.FILE_GONE or not path.is_file():
        return
    (old,) = files_at(rebase.git, [step.original], [conflict.path])
    if old.get(conflict.path) == path.read_bytes():
        path.unlink()
