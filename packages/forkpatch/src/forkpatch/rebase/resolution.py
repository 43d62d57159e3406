# SPDX-License-Identifier: Apache-2.0
"""Completion of a step with conflicts: by a person in the working tree, or by a merge program.

The user's programs are ``git mergetool`` and the syntax merge mergiraf. Their results are checked
like git's own merge: every change of the patch must be in its place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath

from forkpatch.command import typed
from forkpatch.errors import ForkError, UserError
from forkpatch.git.calls import GitError, user_environment
from forkpatch.git.merge import changed_lines
from forkpatch.git.objects import (
    blob_id,
    list_tree,
    read_index,
    unmerged,
    write_commits,
)
from forkpatch.output import warn
from forkpatch.rebase.conflicts import files_after, placed_wrongly
from forkpatch.rebase.merging import merge_tree
from forkpatch.rebase.plan import ConflictKind, RebaseOutcome, RebaseStep
from forkpatch.rebase.recorded import remember
from forkpatch.rebase.workspace import MERGED, Rebase, files_at
from forkpatch.series.mailbox import planned
from forkpatch.symbols.outline import MODULE, outline
from forkpatch.symbols.text import DOCUMENTS

_MARKERS = (b"<<<<<<< ", b"||||||| ", b"=======", b">>>>>>> ")
_MERGIRAF = "mergiraf"


def resolve(rebase: Rebase, accepted: str | None = None) -> Rebase:
    """Complete the step with conflicts from the working tree that a person resolved.

    ``accepted`` is the reason why the change is right where git put it; None when a person moved
    it.

    Raises:
        UserError: conflict markers or a misplacement remain, no change remains, the reason is
            empty, a conflict without markers is open, or a file with conflicts was deleted without
            ``git rm``.
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
    _check_unmerged(rebase, step)
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
        _check_symbols(rebase, step, tree)
    record = all(item.kind is not ConflictKind.MISPLACED for item in rebase.plan.conflicts)
    how = f"accepted: {accepted}" if accepted else "resolved by hand"
    return complete(rebase, tree, how, record=record)


def complete(rebase: Rebase, tree: str, how: str, *, record: bool = False) -> Rebase:
    """Complete the step with conflicts by a tree in which the conflicts are resolved.

    With ``record``, keep the resolution with the fork.

    Raises:
        UserError: the series could not be written at the end of the rebase: the tree has what no
            patch can hold, or a file that an overlay replaces.
    """
    step = rebase.plan.pending[0]
    own = rebase.old.steps[step.patch]
    resolved = replace(own.commit, changes={}, tree=tree, parent=rebase.plan.head)
    (commit,) = write_commits(rebase.git, MERGED, [resolved], brief=True)
    try:
        planned(rebase.fork, rebase.new, rebase.exported(commit))
    except ForkError as error:
        raise UserError(
            f"{step.patch}: the resolution cannot be a patch: {error.what}",
            remedy=f"correct it in {rebase.tree}, then go on with --continue",
        ) from error
    if record:  # before the plan has the step: a run that is killed here records it again
        remember(
            rebase.merged, rebase.resolutions, step.patch, (step.original, rebase.plan.head, tree)
        )
    kinds = ", ".join(dict.fromkeys(str(conflict.kind) for conflict in rebase.plan.conflicts))
    by_hand = _lines_by_hand(rebase, step.original, tree)
    plan = rebase.plan.completed(
        RebaseOutcome.ADAPTED, commit=commit, reason=f"{kinds}: {how}", by_hand=by_hand
    )
    return rebase.saved(plan)


def _check_moved(rebase: Rebase, step: RebaseStep, tree: str) -> None:
    """Raise UserError while a misplaced change is still where git put it."""
    misplacements = [item for item in rebase.plan.conflicts if item.kind is ConflictKind.MISPLACED]
    if not misplacements:
        return
    files = files_after(rebase, step.patch, tree)
    remaining = placed_wrongly(rebase, step.patch, files)
    keys = {(item.path, item.symbol) for item in remaining}
    for item in misplacements:
        untouched = item.path in files and blob_id(files[item.path]) == item.blob
        if untouched or (item.path, item.symbol) in keys:
            raise UserError(
                f"{step.patch}: {item.path}: misplaced still: {item.detail}",
                remedy=f"move the change in {rebase.tree / item.path}; or, when it is right there: "
                + typed(f"rebase {rebase.plan.upstream} --accept 'REASON'"),
            )


def _check_symbols(rebase: Rebase, step: RebaseStep, tree: str) -> None:
    """Raise UserError when a resolution changes another function than the patch does.

    The patch's function must still be there. Only files with conflicts of lines are compared.
    """
    for conflict in rebase.plan.conflicts:
        if conflict.kind is not ConflictKind.LINES:
            continue
        old = rebase.base.old_path(conflict.path)
        sides = files_at(rebase.git, [f"{step.original}^", step.original], [old])
        theirs = _changed(old, *(side.get(old, b"") for side in sides))
        sides = files_at(rebase.git, [rebase.plan.head, tree], [conflict.path])
        before, after = (side.get(conflict.path, b"") for side in sides)
        known = outline(conflict.path, before)
        ours = {name for name in _changed(conflict.path, before, after) if name in known.symbols}
        left = [name for name in theirs if name not in ours and name in known.symbols]
        other = [name for name in ours if name not in theirs]
        if known.is_parsed and left and other:
            raise UserError(
                f"{step.patch}: {conflict.path}: the resolution changes {other[0]}, and the patch"
                f" changes {left[0]}, which is there still",
                remedy=f"move the change in {rebase.tree / conflict.path}; or, when it is right"
                " there: " + typed(f"rebase {rebase.plan.upstream} --accept 'REASON'"),
            )


def _changed(path: str, before: bytes, after: bytes) -> list[str]:
    """Return the functions and classes that differ between two contents of a file."""
    (ranges,) = changed_lines([(before, after)])
    names = dict[str, None]()
    for row, count, start, length in ranges:
        for data, first, lines in ((before, row, count), (after, start, length)):
            at = outline(path, data).at
            names |= dict.fromkeys(at(line + 1).name for line in range(first, first + lines))
    return [name for name in names if name != MODULE]


def _has_markers(rebase: Rebase, step: RebaseStep, path: str) -> bool:
    """Return True when a file has more conflict markers than each merged version of the file.

    In a document, seven equal signs below a short title are an underline.
    """
    merged = files_at(rebase.git, [rebase.plan.head, step.original, f"{step.original}^"], [path])
    old = [_markers(path, files.get(path, b"")) for files in merged]
    current = _markers(path, (rebase.tree / path).read_bytes())
    return any(count > max(counts[kind] for counts in old) for kind, count in current.items())


def _markers(path: str, data: bytes) -> Counter[bytes]:
    """Count the lines that look like each of git's conflict markers."""
    counts: Counter[bytes] = Counter()
    is_document = PurePosixPath(path).suffix in DOCUMENTS
    lines = [b"", b"", *data.splitlines()]
    for blank, title, line in zip(lines, lines[1:], lines[2:], strict=False):
        if line == b"=======":
            is_title = not blank.strip() and 0 < len(title.strip()) <= len(line)
            counts[line] += not (is_document and is_title)
        elif line.startswith(_MARKERS) and line[7:8] == b" ":
            counts[line[:7]] += 1
    return counts


def _lines_by_hand(rebase: Rebase, original: str, resolved: str) -> int:
    """Count the lines that differ from a merge with upstream's side at each conflict."""
    # Without a merge there is another conflict than of lines, for example a removed file.
    merged = _merged(rebase, original, "git merge-file --ours -q %A %O %B")
    compared = (merged or f"{rebase.plan.head}^{{tree}}", resolved)
    rows = rebase.git.text("diff-tree", "-r", "--numstat", "--no-renames", *compared).splitlines()
    counts = [count for row in rows for count in row.split("\t")[:2]]
    return sum(int(count) for count in counts if count.isdigit())  # "-" is a binary file


def _check_unmerged(rebase: Rebase, step: RebaseStep) -> None:
    """Raise UserError when a conflict without markers is as git left it, or its file was deleted.

    Git leaves one side of a binary file, of a link, or of a name: going on would drop the other. A
    file after ``git add`` or ``git rm`` has no conflict in git's index. What upstream removed or
    renamed, and git left for reference, is removed: the resolution would add it to the new version,
    and later patches would change it.
    """
    index, head = read_index(rebase.git), list_tree(rebase.git, rebase.plan.head)
    known = {*head, *rebase.patch(step.patch).paths}
    marked = {conflict.path for conflict in rebase.plan.conflicts if conflict.lines}
    git, gone = f"git -C {shlex.quote(str(rebase.tree))}", []
    for path in sorted(unmerged(index), key=lambda path: (path in known, path)):
        file, stages, name = rebase.tree / path, index[path], path.rpartition("~")[0]
        if file.is_symlink() or file.is_file():
            if path not in known and name in known:
                raise UserError(
                    f"{step.patch}: {path} is git's name for one side of {name}",
                    remedy=f"put its change into {name}, then: {git} rm {shlex.quote(path)}",
                )
            data = os.fsencode(file.readlink()) if file.is_symlink() else file.read_bytes()
            left = stages.get("2") or stages.get("3")
            if path in marked or not left or blob_id(data) != left[1]:
                continue
            if path in head or "1" not in stages:
                raise UserError(
                    f"{step.patch}: {path} has a conflict, and is as git left it",
                    remedy="change it, or take a side (git checkout --ours or --theirs), then:"
                    f" {git} add {shlex.quote(path)}; or {git} rm {shlex.quote(path)}",
                )
        elif os.path.lexists(file):
            continue
        elif path in head:
            raise UserError(
                f"{step.patch}: {path} had conflicts, and is gone from {rebase.tree}",
                remedy=f"put it back: {git} checkout --merge {shlex.quote(path)};"
                f" or, when the patch is to delete it: {git} rm {shlex.quote(path)}",
            )
        gone.append(path)
    for path in gone:
        (rebase.tree / path).unlink(missing_ok=True)
        now = rebase.base.renames.get(path)
        why = f"upstream renamed it to {now}" if now else "the file is gone upstream"
        warn(f"{step.patch}: its change of {path} is left out: {why}")


def run_merge_tool(rebase: Rebase) -> None:
    """Run ``git mergetool`` with the user's configuration on the conflicting files.

    Raises:
        UserError: git's index has no conflicts.
        ForkError: a file still has conflicts.
    """
    if not unmerged(read_index(rebase.git)):
        raise UserError(
            "no file has a conflict that a merge tool can show",
            remedy=f"resolve it in {rebase.tree}, then go on with --continue",
        )
    # No backup: forkpatch would add the copy to the patch as a new file.
    command = ("git", "-C", str(rebase.tree), "-c", "mergetool.keepBackup=false", "mergetool")
    subprocess.run(command, check=False, env=user_environment())
    if left := sorted(unmerged(read_index(rebase.git))):
        raise ForkError(
            f"{', '.join(left)}: the merge tool left conflicts",
            remedy=f"type the same command again, or resolve them in {rebase.tree}",
        )


def merge_by_syntax(rebase: Rebase, step: RebaseStep) -> str:
    """Return the tree of git's merge with mergiraf as its driver; empty without a proven merge."""
    program = shutil.which(_MERGIRAF)
    if program is None:
        return ""
    driver = f"{shlex.quote(program)} merge %O %A %B --path-name %P --output %A >{os.devnull} 2>&1"
    tree = _merged(rebase, step.original, driver)
    if tree and (reason := _not_proved(rebase, step, tree)):
        warn(f"{step.patch}: the merge by {_MERGIRAF} is not used: {reason}")
        return ""
    return tree


def _merged(rebase: Rebase, original: str, driver: str) -> str:
    """Return the tree of git's merge with the merge command ``driver``; empty if it fails."""
    settings = {"merge.default": "forkpatch", "merge.forkpatch.driver": driver}
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    head = rebase.git.text("rev-parse", f"{rebase.plan.head}^{{tree}}")
    try:
        return merge_tree(replace(rebase.git, environment=environment), head, original)
    except GitError:  # the command was killed, or cannot merge such a file
        return ""


def _not_proved(rebase: Rebase, step: RebaseStep, tree: str) -> str:
    """Return why a merge is not proven: a change is misplaced or missing; empty if it is."""
    now = files_after(rebase, step.patch, tree)
    if wrong := placed_wrongly(rebase, step.patch, now):
        return wrong[0].detail
    before = files_after(rebase, step.patch, rebase.plan.head)
    for place in rebase.record.patches[step.patch].places:
        path = rebase.base.path_of(place.path)
        bodies = [outline(path, files.get(path, b"")).body(place.symbol) for files in (before, now)]
        if bodies[0] == bodies[1]:
            return f"{path}: {place.symbol} lacks its change"
    return ""
