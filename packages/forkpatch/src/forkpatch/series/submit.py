# SPDX-License-Identifier: Apache-2.0
"""The verbs ``submit`` and ``push``: a series on a commit of upstream.

``submit`` rebases the patches for upstream onto a commit: each is merged file by file, with the
series' own base as common ancestor, and each change must land where the patch makes it. The patch's
commit also gets the files that its trailers ``Submit-With`` name. The result is patch files for
``git am`` or ``git send-email``, or a branch. Either all patches are written or none.

``push`` puts overlays and patches on a branch of a remote repository, on the pinned commit. The
commit ids depend only on the series: an unchanged series pushes nothing, and ``adopt`` reads the
branch back.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forkpatch.errors import ForkError, PatchError, UserError
from forkpatch.git.calls import Git, user_environment
from forkpatch.git.objects import Changes, Commit, list_tree, write_commits
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import Patch
from forkpatch.series.mailbox import export_new, neutral_repository
from forkpatch.series.merge import MergeTarget
from forkpatch.sources.obtain import SourceOptions, places_of
from forkpatch.sources.repository import local_clones
from forkpatch.symbols.outline import context_notes
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.swap import check_new, new_folder
from forkpatch.tree.worktree import patch_commit

_SENT = ("Pending", "Submitted")


@dataclass(frozen=True)
class NewBranch:
    """A branch to be made.

    Attributes:
        repository: the repository for the branch; None: the mirror that has the revision.
    """

    name: str
    repository: Path | None = None

    def new_ref(self, git: Git) -> str:
        """Return the full name of the branch, after a check that ``git`` has none of that name.

        Raises:
            UserError: the name is invalid, or the branch exists.
        """
        ref = f"refs/heads/{self.name}"
        if git.run("check-ref-format", ref, ok=(0, 1)).returncode:
            raise UserError(f"{self.name!r} is not a valid name of a branch")
        if git.run("rev-parse", "--quiet", "--verify", ref, ok=(0, 1)).stdout:
            raise UserError(
                f"{git.git_dir} has a branch {self.name}",
                remedy="name a branch that is not there yet, or delete it",
            )
        return ref


@dataclass(frozen=True)
class Submission:
    """Patches moved to a commit of the upstream.

    Attributes:
        commit: the commit that the patches apply to.
        place: the folder or the branch that was written.
        patches: the names of the written patches, in order.
        left_out: the reason for each patch that was left out.
        conflicts: file and reason for each patch that does not merge; with a conflict, nothing was
            written.
        notes: the files and languages that were compared less closely.
    """

    upstream: str
    version: str
    commit: str
    place: str
    patches: tuple[str, ...]
    left_out: dict[str, str]
    conflicts: dict[str, str]
    notes: tuple[str, ...] = ()


def submit(
    fork: Fork, upstream: Upstream, revision: str, output: Path | NewBranch, options: SourceOptions
) -> Submission:
    """Write the patches of a series that are meant for upstream to a new folder or branch.

    Raises:
        UserError: ``output`` exists and is not empty, no repository has the revision, or a file
            of a trailer ``Submit-With`` is missing.
        ForkError: the series does not apply.
    """
    branch = output if isinstance(output, NewBranch) else None
    if isinstance(output, Path):
        check_new(output)
    places = places_of(upstream, fork.cache, options)
    git, commit = find_revision(upstream, revision, places, branch.repository if branch else None)
    ref = branch.new_ref(git) if branch else ""
    plan = fork.plan(upstream, options)
    target = MergeTarget(git, commit)
    left_out: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    moved: list[tuple[Patch, Changes]] = []
    for step in plan.steps.values():
        patch = step.patch
        if reason := _reason_to_leave_out(patch, plan, {*left_out, *conflicts}):
            left_out[patch.name] = reason
            continue
        try:
            changes = target.merged(step)
            if changes:
                changes |= target.added(fork.submitted_with(upstream, patch))
        except PatchError as error:
            conflicts[patch.name] = error.what
            continue
        if not changes:
            left_out[patch.name] = "upstream has it already"
            continue
        target.files |= changes
        moved.append((patch, changes))
    names = tuple(patch.name for patch, _ in moved) if ref and not conflicts else ()
    if isinstance(output, Path) and not conflicts:
        names = _write_files(output, git, commit, moved)
    elif not conflicts:
        unnamed = [
            replace(
                patch_commit(patch, changes),
                message=patch.message.encode("utf-8", "surrogateescape"),
            )
            for patch, changes in moved
        ]
        _branched(git, ref, commit, unnamed)
    written = f"{branch.name} of {git.git_dir}" if branch else str(output)
    return Submission(
        *(upstream.name, upstream.version, commit, written, names, left_out, conflicts),
        notes=context_notes(target.compared),
    )


def _reason_to_leave_out(patch: Patch, plan: TreePlan, gone: set[str]) -> str:
    """Return why a patch is not submitted; empty when it is submitted."""
    status = patch.trailer("Upstream-Status") or "none"
    if status.split()[0] not in _SENT:
        return f"Upstream-Status is {status}"
    lacking = sorted(plan.weave.needs(patch.name) & gone)
    return f"it needs {', '.join(lacking)}" if lacking else ""


def find_revision(
    upstream: Upstream, revision: str, places: Sequence[str], repository: Path | None
) -> tuple[Git, str]:
    """Return a repository that has a revision, and the commit's id.

    ``repository`` is searched if given, else each of ``places``.

    Raises:
        UserError: no repository on this machine has the revision.
    """
    for git in local_clones([str(repository)] if repository else places):
        if commit := git.commit(revision):
            return git, commit
    raise UserError(
        f"no mirror of {upstream.name} on this machine has {revision}"
        if repository is None
        else f"{repository} is not a git repository with {revision}",
        remedy=f"name a clone of {upstream.url}: --mirror {upstream.name}=PATH",
    )


def _branched(git: Git, ref: str, onto: str, commits: Sequence[Commit]) -> str:
    """Write commits that follow a commit to a new branch; return the branch's commit."""
    if not commits:
        git.run("update-ref", ref, onto)
        return onto
    return write_commits(git, ref, [replace(commits[0], parent=onto), *commits[1:]])[-1]


def _write_files(
    output: Path, git: Git, onto: str, moved: Sequence[tuple[Patch, Changes]]
) -> tuple[str, ...]:
    """Write the merged patches as numbered files; return their names."""
    base = Commit(b"Base\n", tree=git.text("rev-parse", f"{onto}^{{tree}}"))
    commits = [base, *(patch_commit(patch, changes) for patch, changes in moved)]
    patches = export_new(commits, git.objects)
    names = tuple(f"{number:04}-{patch.name}" for number, patch in enumerate(patches, 1))
    with new_folder(output) as scratch:
        for name, patch in zip(names, patches, strict=True):
            (scratch / name).write_bytes(patch.data)
    return names


@dataclass(frozen=True)
class Pushed:
    """A series that was pushed to a branch.

    Attributes:
        base: upstream's commit.
        tip: the commit of the last patch.
    """

    upstream: str
    version: str
    remote: str
    branch: str
    base: str
    tip: str
    patches: tuple[str, ...]


def push(
    fork: Fork,
    upstream: Upstream,
    remote: str,
    branch: str,
    options: SourceOptions,
    *,
    force: bool = False,
) -> Pushed:
    """Push a series to a branch, with the user's own git configuration.

    Raises:
        UserError: upstream has no commit, no mirror has it, or a name is not valid; or upstream
            has a file, outside of the fork's, at a new file's path.
        ForkError: git could not push.
    """
    if remote.startswith("-") or "::" in remote:
        raise UserError(f"{remote} is neither a folder nor a plain URL")
    if not upstream.commit:
        raise UserError(
            f"{upstream} is pinned by its wheel, and has no commit to push onto",
            remedy="push a version that is pinned by a commit",
        )
    places = places_of(upstream, fork.cache, options)
    mirror, base = find_revision(upstream, upstream.commit, places, None)
    plan = fork.plan(upstream, options)
    _check_new_files(mirror, base, plan)
    with neutral_repository(mirror.objects, plan.pristine.git.objects) as git:
        ref = NewBranch(branch).new_ref(git)
        tip = _branched(git, ref, base, plan.commits[1:])
        _push(git, [*(["--force"] if force else []), "--", remote, f"{tip}:{ref}"])
    names = tuple(patch.name for patch in plan.patches)
    return Pushed(upstream.name, upstream.version, remote, branch, base, tip, names)


def _check_new_files(mirror: Git, base: str, plan: TreePlan) -> None:
    """Raise UserError if upstream has a file, which the lock excludes, at a new file's path."""
    listed = list_tree(plan.pristine.git, plan.pristine.tree)
    new = [path for commit in plan.commits[1:] for path in commit.changes if path not in listed]
    if clash := sorted(list_tree(mirror, base, *new)) if new else []:
        raise UserError(
            f"{clash[0]} is a new file of the fork, and upstream has one that the fork leaves out",
            remedy=f"include it in the lock, or give the fork's file another name: {plan.upstream}",
        )


def _push(git: Git, words: Sequence[str]) -> None:
    """Run ``git push`` with the user's git configuration; raise ForkError if it fails."""
    command = ["git", f"--git-dir={git.git_dir}", "push", *words]
    done = subprocess.run(command, check=False, env=user_environment())
    if done.returncode:
        raise ForkError(
            "git push failed; its own message is above",
            remedy="if the branch has another series, and this one is to replace it: --force",
        )
