# SPDX-License-Identifier: Apache-2.0
"""What the verbs do: apply, and build variants of a tree."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forkpatch.cache import Cache, Pristine
from forkpatch.errors import ForkError, IntegrityError, UserError
from forkpatch.lock import Lock, Upstream, read_lock
from forkpatch.overlays import check_collisions, read_overlays
from forkpatch.patchfile import Patch, load_series
from forkpatch.settings import Settings
from forkpatch.sources import (
    MissingUpstreamError,
    Source,
    SourceOptions,
    how_to_supply,
    obtain,
)
from forkpatch.swap import locked, recover, scratch_beside, swap_in
from forkpatch.treefile import Commit, TreeFile, list_tree, read_blobs
from forkpatch.weave import Weave
from forkpatch.worktree import (
    APPLIED_REF,
    BASE_REF,
    FORMAT,
    OVERLAYS_REF,
    Inputs,
    Stamp,
    build_repository,
    local_changes,
    make_inputs,
    patch_commit,
    read_stamp,
    write_stamp,
)


class State(StrEnum):
    """What became of an upstream in an apply."""

    APPLIED = "applied"
    CURRENT = "current"
    MISSING = "missing"


@dataclass(frozen=True)
class Applied:
    """The outcome of an apply for one upstream.

    Attributes:
        source: the source that gave the pristine tree when this patched tree was built.
        path: the patched tree, None when it is missing.
        reason: why it is missing: each source that was tried, a line each.
        remedy: how to supply it.
    """

    name: str
    version: str
    source: str
    tree: str
    path: Path | None
    patches: tuple[str, ...]
    overlays: tuple[str, ...]
    state: State
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Fork:
    """A fork: its settings, its lock, and the cache it uses."""

    settings: Settings
    lock: Lock
    cache: Cache

    def patch_folder(self, upstream: Upstream) -> Path:
        """Where the series for this version of the upstream lies."""
        return self.settings.patches / upstream.name / upstream.version

    def overlay_folder(self, upstream: Upstream) -> Path:
        """Where the upstream's overlays lie."""
        return self.settings.overlays / upstream.name

    def tree_folder(self, release: str, upstream: Upstream) -> Path:
        """Where the patched tree is written."""
        return self.settings.work / release / upstream.name

    def series(self, upstream: Upstream) -> tuple[Patch, ...]:
        """The upstream's patches, in order."""
        return load_series(self.patch_folder(upstream))

    def overlays(self, upstream: Upstream) -> dict[str, TreeFile]:
        """The upstream's overlay files, by path in its tree."""
        return read_overlays(self.overlay_folder(upstream))

    def inputs(self, upstream: Upstream) -> Inputs:
        """What the patched tree would be made from now."""
        return make_inputs(upstream.tree, self.series(upstream), self.overlays(upstream))


def open_fork(settings: Settings) -> Fork:
    """Read the lock of the fork that ``settings`` describe."""
    return Fork(settings, read_lock(settings.lock), Cache(settings.cache))


@dataclass(frozen=True)
class Plan:
    """A tree that is ready to be written: everything in it has been checked.

    Attributes:
        commits: base, overlays (when there are any), then one a patch.
        weave: all patches on the base.
    """

    upstream: Upstream
    pristine: Pristine
    patches: tuple[Patch, ...]
    overlays: dict[str, TreeFile]
    commits: tuple[Commit, ...]
    weave: Weave


def plan_tree(fork: Fork, upstream: Upstream, pristine: Pristine) -> Plan:
    """Put the series and the overlays on the base, in memory; nothing is written.

    Raises:
        ForkError: a patch does not apply exactly, an overlay collides, a path is unsafe, or a
            file has not the blob id that the lock pins.
    """
    patches, overlays = fork.series(upstream), fork.overlays(upstream)
    listed = list_tree(pristine.git, pristine.tree)
    check_blobs(upstream, {path: oid for path, (_, oid) in listed.items()})
    modes = {path: mode for path, (mode, _) in listed.items()}
    folder = fork.overlay_folder(upstream)
    check_collisions(overlays, modes, patches, folder, str(upstream))
    touched = {listed[path][1] for patch in patches for path in patch.paths if path in listed}
    blobs = read_blobs(pristine.git, touched)
    weave = Weave(modes, lambda path: blobs[listed[path][1]] or b"")
    commits = [_base_commit(upstream)]
    if overlays:
        commits.append(Commit(b"Overlays\n", changes=overlays))
    for patch in patches:
        weave.apply(patch)
        after = weave.changes()
        commits.append(patch_commit(patch, {path: after.get(path) for path in patch.paths}))
    return Plan(upstream, pristine, patches, overlays, tuple(commits), weave)


def check_blobs(upstream: Upstream, blobs: dict[str, str]) -> None:
    """Raise when a file has not the blob id that the lock pins for it."""
    for path, pinned in upstream.blobs.items():
        if blobs.get(path) != pinned:
            raise IntegrityError(
                f"{upstream}: {path} is {blobs.get(path, 'absent')}, the lock pins {pinned}",
                remedy="type: forkpatch lock --check",
            )


def _base_commit(upstream: Upstream) -> Commit:
    message = f"{upstream}\n\n{upstream.url} commit {upstream.commit}\n"
    return Commit(message.encode(), tree=upstream.tree)


def apply_release(
    fork: Fork, release: str | None, options: SourceOptions, *, discard: bool = False
) -> tuple[str, tuple[Applied, ...]]:
    """Bring the patched trees of a release up to date.

    Args:
        fork: the fork.
        release: its name; the default release without one.
        options: where upstreams may come from.
        discard: throw away work done inside a patched tree.

    Returns:
        The release's name, and the outcome for each upstream.

    Raises:
        ForkError: nothing of the tree at fault was changed; trees before it may be up to date.
    """
    options.check(fork.lock)
    name, upstreams = fork.lock.release(release)
    fork.cache.remember(options.mirrors)
    with locked(fork.settings.work / name):
        recover(fork.settings.work / name)
        return name, tuple(
            _apply_upstream(fork, name, upstream, options, discard=discard)
            for upstream in upstreams
        )


def _apply_upstream(
    fork: Fork, release: str, upstream: Upstream, options: SourceOptions, *, discard: bool
) -> Applied:
    folder = fork.tree_folder(release, upstream)
    stamp = read_stamp(folder)
    changes = local_changes(folder, stamp) if stamp else ()
    if changes and not discard:
        raise UserError(
            f"{folder} was worked in: {'; '.join(changes[:5])}{' …' if len(changes) > 5 else ''}",
            remedy=f"keep the work: forkpatch export {upstream.name}"
            " (after committing it); or throw it away: forkpatch apply --discard",
        )
    forced = upstream.name in options.forced
    if stamp and not changes and not forced and _is_current(stamp, fork.inputs(upstream)):
        return _outcome(stamp, folder, State.CURRENT)
    try:
        obtained = obtain(upstream, fork.cache, options)
    except MissingUpstreamError as error:
        if not upstream.optional or upstream.name in options.required:
            raise
        return _missing(upstream, error)
    plan = plan_tree(fork, upstream, obtained.pristine)
    source = obtained.source
    origin = "/".join(obtained.pristine.origins)
    label = f"{source} ({origin})" if source is Source.CACHE and origin else str(source)
    built = write_tree(plan, folder, release, label)
    return _outcome(built, folder, State.APPLIED)


def _is_current(stamp: Stamp, inputs: Inputs) -> bool:
    return stamp.format == FORMAT and stamp.inputs == inputs


def write_tree(plan: Plan, folder: Path, release: str, source: str) -> Stamp:
    """Write a planned tree beside ``folder`` and swap it in."""
    scratch = scratch_beside(folder)
    try:
        git, ids = build_repository(scratch, plan.pristine, plan.commits)
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
        )
        write_stamp(scratch, stamp)
        swap_in(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return stamp


def _outcome(stamp: Stamp, folder: Path, state: State) -> Applied:
    return Applied(
        name=stamp.upstream,
        version=stamp.version,
        source=stamp.source,
        tree=stamp.tree,
        path=folder,
        patches=tuple(name for name, _ in stamp.inputs.patches),
        overlays=tuple(path for path, _, _ in stamp.inputs.overlays),
        state=state,
    )


def _missing(upstream: Upstream, error: MissingUpstreamError) -> Applied:
    reason = "\n".join(str(attempt) for attempt in error.attempts)
    return Applied(
        name=upstream.name,
        version=upstream.version,
        source="",
        tree=upstream.tree,
        path=None,
        patches=(),
        overlays=(),
        state=State.MISSING,
        reason=reason,
        remedy=how_to_supply(upstream),
    )


def write_variant(
    plan: Plan, kept: Collection[str], output: Path, *, with_overlays: bool = True
) -> None:
    """Write the tree with only the patches ``kept`` to the new folder ``output``.

    Raises:
        UserError: ``output`` exists and is not empty.
        PatchError: a kept patch needs one that is left out.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not empty", remedy="name a folder that is not")
    changes = dict(plan.weave.changes(kept))
    if with_overlays:
        changes |= plan.overlays
    chosen = [name for name in plan.weave.patches if name in kept]
    message = f"Variant with {', '.join(chosen) or 'no patch'}\n".encode()
    scratch = scratch_beside(output)
    try:
        build_repository(
            scratch, plan.pristine, [plan.commits[0], Commit(message, changes=changes)]
        )
        if output.exists():
            output.rmdir()
        scratch.rename(output)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def choose_patches(
    plan: Plan,
    *,
    without: Iterable[str] = (),
    only: Iterable[str] = (),
    upto: str | None = None,
    pristine: bool = False,
) -> tuple[str, ...]:
    """The patches that a variant keeps, in order.

    Names may lack their ``.patch``.

    Raises:
        UserError: the series has no patch of that name.
        ForkError: a patch that is kept needs one that is left out.
    """
    every = plan.weave.patches
    if pristine:
        return ()
    if upto is not None:
        return every[: every.index(patch_name(every, upto)) + 1]
    only_names = {patch_name(every, name) for name in only}
    gone = {patch_name(every, name) for name in without}
    kept = tuple(name for name in every if (name in only_names or not only_names))
    kept = tuple(name for name in kept if name not in gone)
    lost = [name for name in plan.weave.dependents(set(every) - set(kept)) if name in kept]
    if lost:
        raise ForkError(
            f"{', '.join(lost)} cannot be without a patch that is left out",
            remedy=f"leave out as well: --without {' '.join(lost)}",
        )
    return kept


def patch_name(names: Collection[str], wanted: str) -> str:
    """The patch that ``wanted`` means, with or without its suffix."""
    for name in (wanted, f"{wanted}.patch"):
        if name in names:
            return name
    raise UserError(
        f"the series has no patch {wanted!r}", remedy=f"patches: {', '.join(names) or 'none'}"
    )
