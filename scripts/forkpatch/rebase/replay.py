# SPDX-License-Identifier: Apache-2.0
"""Patches of a series put onto a new base, one after the other, until one needs a hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from forkpatch.git.calls import GitError
from forkpatch.rebase.conflicts import classify, misplaced
from forkpatch.rebase.start import Outcome, Rebase, Step, files_at
from forkpatch.rebase.upstreamed import already_there

_MERGE = ("-c", "merge.conflictStyle=diff3", "-c", "merge.directoryRenames=false")
_PERSON = {
    "GIT_COMMITTER_NAME": "forkpatch",
    "GIT_COMMITTER_EMAIL": "forkpatch@localhost",
}


def advance(rebase: Rebase) -> Rebase:
    """Put patches onto the new base until one stops the rebase, or all are done."""
    while rebase.state.todo and not rebase.state.stopped:
        rebase = _one(rebase)
    return rebase


def _one(rebase: Rebase) -> Rebase:
    """Put the next patch onto the new base."""
    name, commit = rebase.state.todo[0]
    git, head = rebase.git, rebase.state.head
    git.run("reset", "-q", "--hard", head)
    git.run("clean", "-fdq")
    there = already_there(rebase.patch(name), *_around(rebase, commit), rebase.base)
    if there:
        return finish_step(
            rebase, Step(name, Outcome.DROPPED, "", f"already upstream: {'; '.join(there)}")
        )
    pick = (*_MERGE, "cherry-pick", "--allow-empty", "--keep-redundant-commits", "--strategy=ort")
    try:
        git.run(*pick, commit, env=_PERSON)
    except GitError:
        if not (rebase.tree / ".git/CHERRY_PICK_HEAD").exists():
            raise
        return rebase.saved(stopped=tuple(asdict(one) for one in classify(rebase, name)))
    if git.text("rev-parse", "HEAD^{tree}") == git.text("rev-parse", f"{head}^{{tree}}"):
        return finish_step(
            rebase, Step(name, Outcome.DROPPED, "", "already upstream: it changes nothing any more")
        )
    picked = git.text("rev-parse", "HEAD")
    if wrong := misplaced(rebase, name, head, picked):
        git.run("reset", "-q", "--soft", head)
        return rebase.saved(stopped=tuple(asdict(one) for one in wrong))
    return finish_step(rebase, Step(name, Outcome.CLEAN, picked))


def finish_step(rebase: Rebase, step: Step) -> Rebase:
    """Note that the patch under way is done."""
    head = step.commit or rebase.state.head
    done = (*rebase.state.done, step)
    rebase = rebase.saved(head=head, todo=rebase.state.todo[1:], done=done, stopped=())
    rebase.git.run("reset", "-q", "--hard", head)
    return rebase


def _around(rebase: Rebase, commit: str) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The files that a commit of the old series changes, before and after it."""
    paths = rebase.git.run(
        "diff-tree", "-r", "-z", "--no-renames", "--name-only", "--no-commit-id", commit
    ).stdout
    names = [path.decode("utf-8", "surrogateescape") for path in paths.split(b"\0")[:-1]]
    return files_at(rebase.git, f"{commit}^", names), files_at(rebase.git, commit, names)
