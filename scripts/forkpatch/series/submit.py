# SPDX-License-Identifier: Apache-2.0
"""The verb ``submit``: the patches that upstream could take, moved to another of its commits.

Each patch is merged file by file onto the commit's tree, with the series' own base as common
ancestor, as a rebase does it. The patch files are made for that commit: ``git am`` or
``git send-email`` takes them as they are. Either all of them are written or none.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import PatchError, SourceError, UserError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import Commit, TreeFile, list_tree, read_blobs, write_commits
from forkpatch.model.fork import Fork, TreePlan, plan_tree
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import FileDiff, Patch
from forkpatch.series.mailbox import Exported, export_commits, neutral_repository
from forkpatch.series.shared import PatchStep, merge_file, patch_steps
from forkpatch.sources.obtain import SourceOptions, mirrors_of, obtain
from forkpatch.sources.repository import local_path, open_repository
from forkpatch.tree.swap import scratch_beside
from forkpatch.tree.worktree import patch_commit

_SENT = ("Pending", "Submitted")


@dataclass(frozen=True)
class Submission:
    """Patches moved to a commit of the upstream.

    Attributes:
        commit: the commit that they apply to.
        patches: the names of the files that were written, in order.
        left_out: for each patch that is not among them, the reason.
        conflicts: for each patch that does not merge, the file and the reason; nothing was
            written when there is one.
    """

    upstream: str
    version: str
    commit: str
    patches: tuple[str, ...]
    left_out: dict[str, str]
    conflicts: dict[str, str]


def submit(
    fork: Fork, upstream: Upstream, revision: str, output: Path, options: SourceOptions
) -> Submission:
    """Write the patches of a series that upstream could take to the new folder ``output``.

    Raises:
        UserError: ``output`` exists, or no mirror has the revision.
        ForkError: the series does not apply.
    """
    if output.exists():
        raise UserError(f"{output} exists", remedy="name a folder that is not there yet")
    git, commit = _find_revision(fork, upstream, revision, options)
    plan = plan_tree(fork, upstream, obtain(upstream, fork.cache, options).pristine)
    target = _Target(git, commit)
    left_out: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    commits = [Commit(b"Base\n", tree=git.text("rev-parse", f"{commit}^{{tree}}"))]
    for step in patch_steps(plan):
        name = step.patch.name
        if reason := _reason_to_leave_out(step.patch, plan, {*left_out, *conflicts}):
            left_out[name] = reason
            continue
        try:
            changes = target.merged(step)
        except PatchError as error:
            conflicts[name] = error.what
            continue
        if not changes:
            left_out[name] = "upstream has it already"
            continue
        target.files |= changes
        commits.append(patch_commit(step.patch, changes))
    names: tuple[str, ...] = ()
    if not conflicts:
        names = _write(output, _export(git, commits))
    return Submission(upstream.name, upstream.version, commit, names, left_out, conflicts)


def _reason_to_leave_out(patch: Patch, plan: TreePlan, gone: set[str]) -> str:
    status = patch.trailer("Upstream-Status") or "none"
    if status.split()[0] not in _SENT:
        return f"Upstream-Status is {status}"
    lacking = sorted(plan.weave.needs(patch.name) & gone)
    return f"it needs {', '.join(lacking)}" if lacking else ""


def _find_revision(
    fork: Fork, upstream: Upstream, revision: str, options: SourceOptions
) -> tuple[Git, str]:
    for place in mirrors_of(upstream, fork.cache, options):
        path = local_path(place)
        try:
            if path is None:
                continue
            git = open_repository(path)
            name = f"{revision}^{{commit}}"
            return git, git.text("rev-parse", "--verify", "--end-of-options", name)
        except (SourceError, GitError):
            continue
    raise UserError(
        f"no mirror of {upstream.name} on this machine has {revision}",
        remedy=f"name a clone of {upstream.url}: --mirror {upstream.name}=PATH",
    )


class _Target:
    """Files of the upstream's commit, with the patches put in so far.

    Attributes:
        files: files that patches changed; None for a removed one.
    """

    def __init__(self, git: Git, commit: str) -> None:
        self._git = git
        self._commit = commit
        self.files: dict[str, TreeFile | None] = {}

    def merged(self, step: PatchStep) -> dict[str, TreeFile | None]:
        """The files that a patch changes, after it; none when they are so already.

        Raises:
            PatchError: it does not merge cleanly.
        """
        changes: dict[str, TreeFile | None] = {}
        for diff in step.patch.files:
            changes |= self._merged_file(diff, step)
        return {path: file for path, file in changes.items() if file != self._read(path)}

    def _merged_file(self, diff: FileDiff, step: PatchStep) -> dict[str, TreeFile | None]:
        if diff.old is None and diff.new is not None:
            new = TreeFile(diff.new_mode or "100644", step.after[diff.new])
            if self._read(diff.new) not in (None, new):
                raise PatchError(f"{diff.new} is there already, with other content")
            return {diff.new: new}
        path = diff.old or ""
        here = self._read(path)
        if here is None:
            raise PatchError(f"{path} is not there")
        if diff.new is None:
            if here.data != step.before[path]:
                raise PatchError(f"{path} is removed by the patch, and changed upstream")
            return {path: None}
        data = merge_file(path, here.data, step.before[path], step.after[diff.new])
        file = TreeFile(diff.new_mode or here.mode, data)
        return {diff.new: file} if diff.new == path else {path: None, diff.new: file}

    def _read(self, path: str) -> TreeFile | None:
        if path not in self.files:
            mode, oid = list_tree(self._git, self._commit, path).get(path, ("", ""))
            data = read_blobs(self._git, [oid])[oid] if oid else None
            if oid and data is None:
                raise PatchError(f"{path} is not in the mirror, which is partial")
            self.files[path] = TreeFile(mode, data) if data is not None else None
        return self.files[path]


def _export(git: Git, commits: Sequence[Commit]) -> tuple[Exported, ...]:
    assert git.git_dir is not None
    with neutral_repository(git.git_dir / "objects") as scratch:
        assert scratch.git_dir is not None
        ids = write_commits(scratch, "refs/heads/submit", commits)
        return export_commits(scratch.git_dir / "objects", ids[1:])


def _write(output: Path, patches: Sequence[Exported]) -> tuple[str, ...]:
    names = tuple(f"{number:04}-{patch.name}" for number, patch in enumerate(patches, 1))
    scratch = scratch_beside(output)
    try:
        for name, patch in zip(names, patches, strict=True):
            (scratch / name).write_bytes(patch.data)
        scratch.rename(output)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return names
