# SPDX-License-Identifier: Apache-2.0
"""The verb ``lock``: look up every pin again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from forkpatch.errors import IntegrityError, SourceError, UserError
from forkpatch.git.calls import GitError
from forkpatch.git.objects import list_tree
from forkpatch.model.lock import Upstream, Wheel, parse_lock, write_lock
from forkpatch.output import warn
from forkpatch.pins.lockfile import NewVersion, add_version, with_pins
from forkpatch.safety import FILE_MODES, alike
from forkpatch.sources.cache import Pristine
from forkpatch.sources.obtain import SourceKind, SourceOptions, places_of
from forkpatch.sources.repository import asked, find_tree, local_clones
from forkpatch.sources.wheels import download_wheel, wheel_files
from forkpatch.tree.fork import Fork
from groundwork.hashing import digest, sha256_of


@dataclass(frozen=True)
class Relocked:
    """The result of a look-up of pins.

    Attributes:
        upstreams: every upstream version with renewed pins.
        differences: a line for each pin that differs from the lock.
        notes: a line for each pin that could not be looked up, which is unchanged.
    """

    upstreams: tuple[Upstream, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]


def with_version(
    fork: Fork, like: Upstream, new: NewVersion, options: SourceOptions
) -> tuple[Fork, str]:
    """Return the fork with a version added to its lock, and the lock's text; look up the tag.

    The version's tree is not looked up yet, and nothing is written. See :func:`add_version`.
    """
    path, places = fork.settings.lock, places_of(like, fork.cache, options)
    text = add_version(path.read_text("utf-8"), fork.lock, like, new, places)
    return replace(fork, lock=parse_lock(text, path)), text


def pin_version(fork: Fork, like: Upstream, new: NewVersion, options: SourceOptions) -> Fork:
    """Add another version of an upstream, with its pins, to the lock; return the fork.

    Raises:
        ForkError: a pin could not be looked up; the lock is unchanged.
    """
    fork, text = with_version(fork, like, new, options)
    path, added = fork.settings.lock, fork.lock.upstream(like.name, new.name)
    text = with_pins(text, relock(fork, options, (added,)).upstreams)
    return replace(fork, lock=write_lock(path, text))


def relock(fork: Fork, options: SourceOptions, only: Sequence[Upstream] = ()) -> Relocked:
    """Look up the pins of all upstream versions in the lock, or of the versions ``only``.

    Raises:
        SourceError: a version without pins could not be looked up.
        IntegrityError: wheel and git, or two wheels, give different trees.
        UserError: an overlay has the path of a file in the upstream's whole git tree.
    """
    notes: list[str] = []
    entries = [entry for versions in fork.lock.upstreams.values() for entry in versions.values()]
    old = list(only) or entries
    new = [_look_up(fork, upstream, options, notes) for upstream in old]
    differences = [line for pair in zip(old, new, strict=True) for line in _differences(*pair)]
    return Relocked(tuple(new), tuple(differences), tuple(notes))


def _look_up(fork: Fork, pinned: Upstream, options: SourceOptions, notes: list[str]) -> Upstream:
    places = list(places_of(pinned, fork.cache, options))
    upstream = replace(pinned, commit=_commit(pinned, places, notes))
    from_git = _from_git(fork, upstream, options, notes) if upstream.commit else None
    if from_git:
        listed = list_tree(from_git.git, from_git.tree)
        upstream = replace(upstream, tree=from_git.tree)
        if upstream.wheel:  # a wheel does not store git's executable bits
            runs = frozenset(path for path, (mode, _) in listed.items() if mode == FILE_MODES[1])
            upstream = replace(upstream, executable=runs)
    pristine = from_git
    if upstream.wheel:
        wheel, from_wheel = _from_wheels(fork, upstream, upstream.wheel, options, notes)
        upstream = replace(upstream, wheel=wheel)
        if from_git and from_wheel and from_git.tree != from_wheel.tree:
            raise IntegrityError(
                f"{upstream}: the wheel and git give different trees:"
                f" {'; '.join(_tree_differences(from_git, from_wheel)[:10])}",
                remedy="correct exclude and map of the wheel in the lock",
            )
        pristine = from_git or from_wheel
    pristine = pristine or fork.cache.find(upstream.tree)
    if pristine is None:
        if upstream.unpinned:
            raise SourceError(
                f"{upstream} could not be pinned: {'; '.join(notes)}",
                remedy=f"name a repository that has it: --mirror {upstream.name}=PATH_OR_URL",
            )
        return upstream
    _check_overlays(fork, upstream, places)
    if pristine.tree != pinned.tree:
        for group in alike(list_tree(pristine.git, pristine.tree)).values():
            what = " and ".join(group)
            warn(f"{upstream}: {what} differ in case only; a file system may hold only one")
    return replace(upstream, tree=pristine.tree)


def _commit(upstream: Upstream, places: list[str], notes: list[str]) -> str:
    """Return the commit of an upstream's tag; if no place has it, the pinned one, with a note."""
    if not upstream.tag:
        return upstream.commit
    reasons = ["no mirror is known, and this run is offline"]
    for place, refs in asked(places, reasons):
        if commit := refs.get(f"refs/tags/{upstream.tag}"):
            return commit
        reasons.append(f"{place}: no tag {upstream.tag}")
    notes.append(f"{upstream}: the tag {upstream.tag} was not looked up: {reasons[-1]}")
    return upstream.commit


def _from_git(
    fork: Fork, upstream: Upstream, options: SourceOptions, notes: list[str]
) -> Pristine | None:
    """Return the tree of the pinned commit, from the cache if possible; None, with a note, else."""
    reason = "no mirror is known, and this run is offline"
    selection = (upstream.include, upstream.exclude, upstream.submodules)
    name = f"commit {upstream.commit} {digest(repr(selection))}"
    if (cached := fork.cache.find(fork.cache.seen(name))) is not None:
        return cached
    for place in places_of(upstream, fork.cache, options):
        source = SourceKind.GIT if place == upstream.url else SourceKind.MIRROR
        try:
            with ExitStack() as stack:
                found_tree = find_tree(
                    stack,
                    upstream,
                    place,
                    fork.cache,
                    partial(places_of, cache=fork.cache, options=options),
                )
                for path in found_tree.left_out:
                    how = f'submodules = ["{path}"] brings it in'
                    warn(f"{upstream}: left out: the submodule {path}: {how}")
                tree = found_tree.tree_id(fork.cache)
                pristine = fork.cache.store(found_tree.files(), source, tree)
        except SourceError as error:
            reason = error.what
            continue
        fork.cache.note(name, tree)
        return pristine
    notes.append(f"{upstream}: its git tree was not looked up: {reason}")
    return None


def _from_wheels(
    fork: Fork, upstream: Upstream, wheel: Wheel, options: SourceOptions, notes: list[str]
) -> tuple[Wheel, Pristine | None]:
    """Return the wheel with the hashes of its files, and the tree of the last file looked up."""
    files: dict[str, str] = {}
    pristine = None
    for pinned, platforms in _wanted(fork, upstream, wheel):
        known = wheel.files.get(pinned, "")
        with fork.cache.scratch() as scratch:
            try:
                path = fork.cache.wheel(known) if known else None
                if path is None and options.offline:
                    raise SourceError("it is not in the cache, and this run is offline")
                path = path or download_wheel(wheel.package, wheel.version, scratch, *platforms)
            except SourceError as error:
                what = pinned or f"for {', '.join(platforms) or 'this machine'}"
                notes.append(f"{upstream}: the wheel {what} was not looked up: {error.what}")
                files |= {pinned: known} if pinned else {}
                continue
            sha256 = sha256_of(path)
            layout = (wheel.prefixes, wheel.exclude, upstream.include, upstream.exclude)
            name = f"wheel {sha256} {digest(repr(layout), *sorted(upstream.executable))}"
            stored = fork.cache.find(fork.cache.seen(name))
            if stored is None:
                members = wheel_files(upstream, wheel, path)
                stored = fork.cache.store(members, SourceKind.WHEEL, "")
                fork.cache.note(name, stored.tree)
            if pristine and pristine.tree != stored.tree:
                differing = _tree_differences(pristine, stored, [*files][-1], path.name)
                raise IntegrityError(
                    f"{upstream}: two wheels give different trees: {'; '.join(differing[:10])}",
                    remedy="correct exclude and map of the wheel in the lock",
                )
            pristine = stored
            files[path.name] = sha256
            if path.is_relative_to(scratch):
                fork.cache.keep_wheel(path, sha256)
    return replace(wheel, files=files), pristine


def _wanted(fork: Fork, upstream: Upstream, wheel: Wheel) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names of the wheel's files, with their platforms; none means this machine.

    A new version without files gets a file without a name for each platform of the other versions'.
    """
    if wheel.files:
        return [(file, _platforms(file)) for file in wheel.files]
    others = fork.lock.versions(upstream.name).values()
    groups = [_platforms(file) for item in others if item.wheel for file in item.wheel.files]
    return [("", platforms) for platforms in dict.fromkeys(groups or [()])]


def _platforms(file: str) -> tuple[str, ...]:
    """Return the platforms in the name of a wheel's file."""
    try:
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename as error:
        raise UserError(
            f"{file!r} is not the name of a wheel file", remedy="correct files of the lock's wheel"
        ) from error
    return tuple(sorted({tag.platform for tag in tags if tag.platform != "any"}))


def _tree_differences(
    first_tree: Pristine, second_tree: Pristine, first: str = "git", second: str = "the wheel"
) -> list[str]:
    """Return the differences between two trees, in words."""
    left, right = (list_tree(tree.git, tree.tree) for tree in (first_tree, second_tree))
    messages = [f"only {first} has {path}" for path in left if path not in right]
    messages += [f"only {second} has {path}" for path in right if path not in left]
    messages += [f"{path} differs" for path in left if path in right and left[path] != right[path]]
    return messages


def _check_overlays(fork: Fork, upstream: Upstream, places: list[str]) -> None:
    """Raise UserError when an overlay has the path of upstream's file, also outside the tree."""
    overlays = fork.overlays(upstream)
    for git in local_clones(places) if upstream.commit and overlays else ():
        try:
            listed = list_tree(git, f"{upstream.commit}^{{tree}}", *overlays)
        except GitError:
            continue
        for taken in sorted(set(listed) & set(overlays)):
            raise UserError(
                f"overlay {fork.overlay_folder(upstream) / taken} collides with the file"
                f" {taken} of {upstream}",
                remedy="an overlay is a new file: give it another name",
            )
        return


def _differences(old: Upstream, new: Upstream) -> Iterator[str]:
    """Yield the changed pins of an upstream version, in words."""
    for name in ("commit", "tree"):
        had, has = getattr(old, name), getattr(new, name)
        if had != has:
            yield f"{old}: {name} {has}; the lock had {had or 'none'}"
    if old.executable != new.executable:
        had, has = sorted(old.executable), sorted(new.executable)
        yield f"{old}: executable {has}; the lock had {had}"
    pinned, renewed = (one.wheel.files if one.wheel else {} for one in (old, new))
    for name in sorted({*pinned, *renewed}):
        if pinned.get(name) != renewed.get(name):
            had, has = pinned.get(name, "none"), renewed.get(name, "not needed")
            yield f"{old}: wheel {name} {has}; the lock had {had}"
