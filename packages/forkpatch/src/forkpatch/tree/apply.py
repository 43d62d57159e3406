# SPDX-License-Identifier: Apache-2.0
"""The verbs ``apply`` and ``status``: patched trees brought up to date, and their states."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from forkpatch.errors import ForkError, PatchError, UserError
from forkpatch.git.calls import GitError
from forkpatch.git.objects import TreeFile
from forkpatch.model.lock import Upstream
from forkpatch.model.patchfile import EVERY, Patch, read_entries
from forkpatch.model.weave import Weave
from forkpatch.sources.obtain import (
    MissingUpstreamError,
    SourceKind,
    SourceOptions,
    how_to_supply,
    obtain,
)
from forkpatch.tree.drift import check_placement
from forkpatch.tree.fork import Fork, TreePlan, plan_tree
from forkpatch.tree.swap import scratch_folder, swap_in
from forkpatch.tree.worktree import (
    APPLIED_REF,
    BASE_REF,
    FORMAT,
    OVERLAYS_REF,
    Inputs,
    Stamp,
    build_repository,
    carry_over,
    keep_builds,
    make_inputs,
    read_stamp,
    work_in,
    write_excludes,
    write_stamp,
)


class TreeState(StrEnum):
    """State of a patched tree; ``applied`` is also the outcome of an apply that wrote it."""

    APPLIED = "applied"
    CURRENT = "current"
    STALE = "stale"
    MISSING = "missing"
    EDITED = "edited"
    BROKEN = "broken"


@dataclass(frozen=True)
class PatchedTree:
    """The patched tree of an upstream of a release.

    Attributes:
        base: tree id of the pristine upstream.
        commit: the pinned upstream commit.
        tree: tree id of the patched tree; empty while it is missing.
        source: the source of the pristine tree when this patched tree was built.
        path: the patched tree; None after an apply when the upstream is missing.
        inputs: digests of all inputs of the tree; None while it is missing.
        left_out: name and condition of each patch with a false condition.
        reason: reason why the upstream is missing: a line for each source that was tried.
        reasons: reasons why the state is not simply APPLIED.
        remedy: how to supply the missing upstream.
    """

    name: str
    version: str
    base: str
    commit: str
    state: TreeState
    tree: str = ""
    source: str = ""
    path: Path | None = None
    patches: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    reason: str = ""
    reasons: tuple[str, ...] = ()
    remedy: str = ""
    inputs: Inputs | None = None
    left_out: tuple[str, ...] = ()


def apply_release(
    fork: Fork,
    release: str | None,
    options: SourceOptions,
    *,
    discard: bool = False,
    only: str | None = None,
    chosen: Sequence[str] = (),
) -> tuple[str, tuple[PatchedTree, ...]]:
    """Bring the patched trees of a release up to date.

    ``discard`` throws away work done inside a patched tree; ``only`` names the only upstream;
    ``chosen`` are options that choose among the patches with conditions.

    Returns:
        The release's name, and the outcome for each upstream.

    Raises:
        ForkError: a tree could not be built, and is unchanged; earlier trees may be up to date.
    """
    options.check(fork.lock)
    name, upstreams = fork.lock.release(release)
    _check_options(fork, upstreams, chosen)
    fork.cache.remember(options.mirrors)
    return name, tuple(
        _apply_upstream(fork, name, upstream, options, chosen, discard=discard)
        for upstream in upstreams
        if only in (None, upstream.name)
    )


def _check_options(fork: Fork, upstreams: Sequence[Upstream], chosen: Sequence[str]) -> None:
    """Raise UserError for an option that is in no patch's condition."""
    entries = [entry for item in upstreams for entry in read_entries(fork.patch_folder(item))]
    known = sorted({option for entry in entries for option in entry.condition.options})
    for option in chosen:
        if option not in (EVERY, *known):
            raise UserError(
                f"no patch has a condition on {option!r}",
                remedy=f"options of the series: {', '.join(known) or 'none'}; {EVERY} takes all",
            )


def _apply_upstream(
    fork: Fork,
    release: str,
    upstream: Upstream,
    options: SourceOptions,
    chosen: Sequence[str],
    *,
    discard: bool,
) -> PatchedTree:
    """Bring a patched tree up to date; return the outcome; raise UserError if it has changes."""
    folder = fork.tree_folder(release, upstream)
    stamp = read_stamp(folder)
    if stamp and (folder / ".git/info").is_dir():
        write_excludes(folder, fork.settings.builds)
    changes, problem = work_in(folder, stamp, fork.overlays(upstream))
    again = fork.command("apply --discard", release)
    has_files = folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
    if problem and not discard and has_files:
        raise UserError(
            f"{folder} may hold work: {problem}",
            remedy=f"move it elsewhere; or throw it away: {again}",
        )
    if changes and not discard:
        raise UserError(
            f"{folder} was worked in: {'; '.join(changes[:5])}{' …' if len(changes) > 5 else ''}",
            remedy=f"keep the work: {fork.command(f'export {upstream.name}', release)}"
            f" (after committing it); or throw it away: {again}",
        )
    forced = upstream.name in options.forced
    left_out = tuple(
        f"{patch.name} {patch.condition}"
        for patch in fork.series(upstream)
        if not patch.condition.holds(chosen)
    )
    inputs = fork.inputs(upstream, chosen)
    is_current = stamp is not None and (stamp.format, stamp.inputs) == (FORMAT, inputs)
    if stamp and is_current and not (changes or problem or forced):
        return replace(tree_of(upstream, folder, stamp, TreeState.CURRENT), left_out=left_out)
    try:
        pristine, source = obtain(upstream, fork.cache, options)
    except MissingUpstreamError as error:
        if not upstream.optional or upstream.name in options.required:
            raise
        return replace(
            tree_of(upstream, None, None, TreeState.MISSING),
            reason="\n".join(error.attempts),
            remedy=how_to_supply(upstream),
        )
    plan = plan_tree(fork, upstream, pristine)
    check_placement(fork, plan)
    origin = "/".join(pristine.origins)
    label = f"{source} ({origin})" if source is SourceKind.CACHE and origin else str(source)
    kept = chosen_patches(plan.weave, plan.patches, chosen)
    plan = plan if len(kept) == len(plan.patches) else plan.with_patches(kept)
    built = write_tree(plan, folder, release, label, fork.settings.builds, chosen)
    return replace(tree_of(upstream, folder, built, TreeState.APPLIED), left_out=left_out)


def chosen_patches(weave: Weave, patches: Sequence[Patch], chosen: Sequence[str]) -> set[str]:
    """Return the names of a weave's patches whose conditions hold with some options.

    Raises:
        PatchError: a patch needs a patch whose condition does not hold.
    """
    kept = {patch.name: patch for patch in patches if patch.condition.holds(chosen)}
    for name, patch in kept.items():
        if lacking := sorted(weave.needs(name) - set(kept)):
            needed = next(item for item in patches if item.name == lacking[0])
            label = f"{name} {patch.condition}".rstrip()
            raise PatchError(
                f"{label} needs {needed.name} {needed.condition}, which is left out with"
                f" {' '.join(chosen) or 'no option'}",
                remedy=f"in the series, give {name} a condition that holds only if that of"
                f" {needed.name} does",
            )
    return {*kept}


def combinations(patches: Sequence[Patch], named: Sequence[str]) -> list[list[str]]:
    """Return the combinations of options to check: ``named``, else none and each one by itself."""
    options = sorted({item for patch in patches for item in patch.condition.options})
    return [item.split() for item in named] or [[], *([item] for item in options)]


def write_tree(
    plan: TreePlan,
    folder: Path,
    release: str,
    source: str,
    builds: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Stamp:
    """Write a planned tree beside ``folder``, and swap it in; return its stamp.

    ``builds`` are patterns of build outputs, which stay in the tree; ``options`` chose its patches.
    """
    with scratch_folder(folder) as scratch:
        git, ids = build_repository(scratch, plan.pristine, plan.commits)
        with contextlib.suppress(GitError):  # a damaged tree is not carried over
            carry_over(folder, scratch)
        overlays_at = 1 if plan.overlays else 0
        refs = {BASE_REF: ids[0], OVERLAYS_REF: ids[overlays_at], APPLIED_REF: ids[-1]}
        commands = "".join(f"create {ref} {oid}\n" for ref, oid in refs.items())
        git.run("update-ref", "--stdin", stdin=commands.encode())
        stamp = Stamp(
            format=FORMAT,
            release=release,
            upstream=plan.upstream.name,
            version=plan.upstream.version,
            source=source,
            inputs=make_inputs(plan.upstream.tree, plan.patches, plan.overlays),
            head=ids[-1],
            tree=git.text("rev-parse", "HEAD^{tree}"),
            options=tuple(options),
        )
        write_excludes(scratch, builds)
        write_stamp(scratch, stamp)
        swap_in(scratch, folder, keep_builds)
    return stamp


def tree_of(
    upstream: Upstream, folder: Path | None, stamp: Stamp | None, state: TreeState
) -> PatchedTree:
    """Return a tree with the pins of ``upstream`` and what the stamp says of its building."""
    built = {"tree": stamp.tree, "source": stamp.source, **_named(stamp.inputs)} if stamp else {}
    pinned = upstream.name, upstream.version, upstream.tree, upstream.commit
    return PatchedTree(*pinned, state, path=folder, **built)


def _named(inputs: Inputs) -> dict[str, Any]:
    """Return the fields ``patches``, ``overlays`` (names) and ``inputs`` of a PatchedTree."""
    patches = tuple(name for name, _ in inputs.patches)
    overlays = tuple(path for path, _, _ in inputs.overlays)
    return {"patches": patches, "overlays": overlays, "inputs": inputs}


def release_status(fork: Fork, release: str | None) -> tuple[str, tuple[PatchedTree, ...]]:
    """Return a release's name, and every tree's state, compared with the fork's present inputs."""
    name, upstreams = fork.lock.release(release)
    return name, tuple(_status(fork, name, upstream) for upstream in upstreams)


def _status(fork: Fork, release: str, upstream: Upstream) -> PatchedTree:
    """Return the state of a tree, and the reasons."""
    folder = fork.tree_folder(release, upstream)
    stamp = read_stamp(folder)
    inputs: Inputs | None = None
    overlays: dict[str, TreeFile] | None = None
    reasons: tuple[str, ...] = ()
    try:
        overlays = fork.overlays(upstream)
        inputs = fork.inputs(upstream, stamp.options if stamp else ())
    except ForkError as error:
        reasons = (error.what,)
    changes, problem = work_in(folder, stamp, overlays)
    if not folder.exists():
        state, reasons = TreeState.MISSING, ("it was never applied", *reasons)
    elif stamp is None or problem:
        state, reasons = TreeState.BROKEN, (problem,)
    elif changes:
        state, reasons = TreeState.EDITED, changes
    elif stamp.format != FORMAT:
        state, reasons = TreeState.STALE, ("it was built by another version of forkpatch",)
    else:
        reasons = inputs.differences(stamp.inputs) if inputs else reasons
        state = TreeState.STALE if reasons else TreeState.APPLIED
    named = _named(inputs) if inputs else {"patches": (), "overlays": ()}
    return replace(tree_of(upstream, folder, stamp, state), reasons=reasons, **named)
