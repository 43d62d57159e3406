# SPDX-License-Identifier: Apache-2.0
"""The verb ``status``: the state of each patched tree, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forkpatch.errors import ForkError
from forkpatch.git.calls import GitError
from forkpatch.model.lock import Upstream
from forkpatch.tree.fork import Fork
from forkpatch.tree.worktree import FORMAT, Inputs, Stamp, local_changes, read_stamp


class TreeCondition(StrEnum):
    """State of a patched tree."""

    APPLIED = "applied"
    STALE = "stale"
    MISSING = "missing"
    EDITED = "edited"
    BROKEN = "broken"


@dataclass(frozen=True)
class TreeStatus:
    """State of the patched tree of an upstream of a release.

    Attributes:
        source: the source of the pristine tree; empty while the patched tree is missing.
        base: tree id of the pristine upstream.
        commit: the pinned upstream commit.
        patches: names of the patches in the series now.
        overlays: paths of the present overlays.
        reasons: reasons why the state is not simply APPLIED.
    """

    name: str
    version: str
    source: str
    base: str
    commit: str
    path: Path
    patches: tuple[str, ...]
    overlays: tuple[str, ...]
    state: TreeCondition
    reasons: tuple[str, ...]


def release_status(fork: Fork, release: str | None) -> tuple[str, tuple[TreeStatus, ...]]:
    """Return the name of a release and the state of every tree."""
    name, upstreams = fork.lock.release(release)
    return name, tuple(_status(fork, name, upstream) for upstream in upstreams)


def _status(fork: Fork, release: str, upstream: Upstream) -> TreeStatus:
    """Return the state of the patched tree of an upstream."""
    folder = fork.tree_folder(release, upstream)
    stamp = read_stamp(folder)
    try:
        inputs = fork.inputs(upstream, stamp.options if stamp else ())
        problems: tuple[str, ...] = ()
    except ForkError as error:
        inputs = None
        problems = (error.what,)
    state, reasons = _judge(folder, stamp, inputs, problems)
    return TreeStatus(
        name=upstream.name,
        version=upstream.version,
        source=stamp.source if stamp else "",
        base=upstream.tree,
        commit=upstream.commit,
        path=folder,
        patches=tuple(name for name, _ in inputs.patches) if inputs else (),
        overlays=tuple(path for path, _, _ in inputs.overlays) if inputs else (),
        state=state,
        reasons=reasons,
    )


def _judge(
    folder: Path, stamp: Stamp | None, inputs: Inputs | None, problems: tuple[str, ...]
) -> tuple[TreeCondition, tuple[str, ...]]:
    """Return the state of a tree, and the reasons.

    ``inputs`` is None when they cannot be read, for the reasons ``problems``.
    """
    if not folder.exists():
        return TreeCondition.MISSING, ("it was never applied", *problems)
    if stamp is None:
        return TreeCondition.BROKEN, ("it carries no stamp that can be read",)
    try:
        changes = local_changes(folder, stamp)
    except GitError as error:
        return TreeCondition.BROKEN, (f"its repository cannot be read: {error.what}",)
    if changes:
        return TreeCondition.EDITED, changes
    reasons = problems if inputs is None else inputs.differences(stamp.inputs)
    if stamp.format != FORMAT:
        reasons = ("it was built by another version of forkpatch",)
    return (TreeCondition.STALE if reasons else TreeCondition.APPLIED), reasons
