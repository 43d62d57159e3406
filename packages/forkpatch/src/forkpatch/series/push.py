# SPDX-License-Identifier: Apache-2.0
"""The verb ``push``: a series as a branch of a remote repository, on upstream's own commit.

The branch has a commit of the overlays and a commit for each patch. The commit ids depend only on
the series: an unchanged series pushes nothing, and ``adopt`` reads the branch back.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forkpatch.errors import ForkError, UserError
from forkpatch.git.calls import Git
from forkpatch.git.objects import list_tree, write_commits
from forkpatch.model.lock import Upstream
from forkpatch.series.mailbox import neutral_repository
from forkpatch.series.submit import NewBranch, find_revision
from forkpatch.sources.obtain import SourceOptions, places_of
from forkpatch.tree.fork import Fork, TreePlan


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
        UserError: no mirror has upstream's commit, or a name is not valid.
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
    target = NewBranch(branch)
    with neutral_repository(mirror.objects, plan.pristine.git.objects) as git:
        target.check(git)
        first, *rest = plan.commits[1:] or (None,)
        tip = base
        if first is not None:
            tip = write_commits(git, target.ref, [replace(first, parent=base), *rest])[-1]
        _push(git, [*(["--force"] if force else []), "--", remote, f"{tip}:{target.ref}"])
    names = tuple(patch.name for patch in plan.patches)
    return Pushed(upstream.name, upstream.version, remote, branch, base, tip, names)


def _check_new_files(mirror: Git, base: str, plan: TreePlan) -> None:
    """Raise if upstream has a file, which the fork does not include, at a new file's path."""
    listed = list_tree(plan.pristine.git, plan.pristine.tree)
    new = [path for commit in plan.commits[1:] for path in commit.changes if path not in listed]
    if clash := sorted(list_tree(mirror, base, *new)) if new else []:
        raise UserError(
            f"{clash[0]} is a new file of the fork, and upstream has one that the fork leaves out",
            remedy=f"include it in the lock, or give the fork's file another name: {plan.upstream}",
        )


def _push(git: Git, words: Sequence[str]) -> None:
    """Run ``git push`` with the user's git configuration."""
    done = subprocess.run(["git", f"--git-dir={git.git_dir}", "push", *words], check=False)
    if done.returncode:
        raise ForkError(
            "git push failed; its own message is above",
            remedy="if the branch has another series, and this one is to replace it: --force",
        )
