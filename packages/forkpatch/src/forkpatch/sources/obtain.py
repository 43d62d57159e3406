# SPDX-License-Identifier: Apache-2.0
"""Sources of an upstream, tried in a fixed order until one works.

The order is: the cache; a mirror that the user named (now or earlier, or through git's
``insteadOf``); the pinned wheel; the upstream's URL. The tree must always have the id that the lock
pins, so that every source gives the same tree.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from forkpatch.command import typed
from forkpatch.errors import SourceError, UserError
from forkpatch.git.calls import user_environment
from forkpatch.git.objects import TreeFile
from forkpatch.model.lock import Lock, Upstream
from forkpatch.sources.cache import Cache, Pristine
from forkpatch.sources.repository import find_tree, local_path, open_repository
from forkpatch.sources.wheels import obtain_wheel, wheel_files

Files = Iterator[tuple[str, TreeFile]]


class SourceKind(StrEnum):
    """Kinds of sources."""

    CACHE = "cache"
    MIRROR = "mirror"
    WHEEL = "wheel"
    GIT = "git"


_FORCED = {"wheel": {SourceKind.WHEEL}, "git": {SourceKind.MIRROR, SourceKind.GIT}}


@dataclass(frozen=True)
class SourceOptions:
    """The user's choice of sources.

    Attributes:
        mirrors: place of each mirror, by upstream: ``--mirror NAME=PATH_OR_URL``.
        forced: the only allowed source, by upstream: ``--source NAME=wheel|git``.
        offline: True to use only the cache and mirrors.
        required: upstreams that must not be missing, even if optional in the lock.
    """

    mirrors: Mapping[str, str] = field(default_factory=dict)
    forced: Mapping[str, str] = field(default_factory=dict)
    offline: bool = False
    required: frozenset[str] = frozenset()

    def check(self, lock: Lock) -> None:
        """Raise UserError when an option names a missing upstream, source or folder."""
        for name in (*self.mirrors, *self.forced, *sorted(self.required)):
            lock.versions(name.partition("/")[0])  # a submodule is UPSTREAM/PATH
        for name, kind in self.forced.items():
            if kind not in _FORCED:
                raise UserError(
                    f"--source {name}={kind}: no such source", remedy="sources: wheel, git"
                )
        for name, place in self.mirrors.items():
            # Checked even if unused, because the mistake would otherwise show much later.
            path = local_path(place)
            if path is not None:
                _check_folder(f"--mirror {name}={place}", path)
            if place.startswith("-") or "::" in place:
                raise UserError(f"--mirror {name}={place}: neither a folder nor a plain URL")


def _check_folder(option: str, path: Path) -> None:
    """Raise UserError when a mirror on this machine is not a git repository."""
    try:
        open_repository(path)
    except SourceError as error:
        what = "it is not a git repository" if path.is_dir() else "there is no such folder"
        raise UserError(
            f"{option}: {what}", remedy="give a folder that holds a git repository, or a URL"
        ) from error


class MissingUpstreamError(SourceError):
    """No source could give the upstream.

    Attributes:
        attempts: every source that was tried, with the reason of its failure.
    """

    exit_code = 2

    def __init__(self, upstream: Upstream, attempts: Sequence[str]) -> None:
        reasons = "".join(f"\n    {attempt}" for attempt in attempts)
        super().__init__(
            f"{upstream} is not available from any source:{reasons}", remedy=how_to_supply(upstream)
        )
        self.attempts = attempts


def how_to_supply(upstream: Upstream) -> str:
    """Return advice on how to supply a missing upstream."""
    if upstream.wheel and not upstream.commit:
        return f"let pip reach an index that has {upstream.wheel.package} {upstream.wheel.version}"
    return (
        f"supply it with --mirror {upstream.name}=PATH_OR_URL, a clone of {upstream.url}"
        f" that has commit {upstream.commit[:12]}"
    )


def obtain(upstream: Upstream, cache: Cache, options: SourceOptions) -> tuple[Pristine, SourceKind]:
    """Return the pinned tree of ``upstream``, and the first source that has it.

    Raises:
        UserError: the lock pins no tree for ``upstream``.
        MissingUpstreamError: no source has the tree.
        IntegrityError: a source gives another tree than pinned.
    """
    if upstream.unpinned:
        raise UserError(
            f"the lock pins no tree for {upstream}",
            remedy=f"type: {typed('lock')}, and review the change",
        )
    allowed = _FORCED.get(options.forced.get(upstream.name, ""), set(SourceKind))
    cached = cache.find(upstream.tree)
    if cached and (SourceKind.CACHE in allowed or allowed.intersection(cached.origins)):
        return cached, SourceKind.CACHE
    attempts = [f"{SourceKind.CACHE}: not in the cache"]
    for source, place, files in _candidates(upstream, cache, options):
        if source not in allowed:
            continue
        try:
            if isinstance(files, str):
                raise SourceError(files)
            return cache.store(files(), source, upstream.tree), source
        except SourceError as error:
            attempts.append(f"{source} {place}".rstrip() + f": {error.what}")
    raise MissingUpstreamError(upstream, attempts)


def mirrors_of(upstream: Upstream, cache: Cache, options: SourceOptions) -> tuple[str, ...]:
    """Return the mirrors to try, the mirror named in this run first."""
    named = [options.mirrors[upstream.name]] if upstream.name in options.mirrors else []
    rewritten = rewritten_url(upstream.url)
    instead = [rewritten] if rewritten != upstream.url else []
    return tuple(dict.fromkeys([*named, *cache.mirrors().get(upstream.name, ()), *instead]))


def places_of(upstream: Upstream, cache: Cache, options: SourceOptions) -> tuple[str, ...]:
    """Return the repositories to search: the mirrors, and the URL unless this run is offline."""
    mirrors = mirrors_of(upstream, cache, options)
    return mirrors if options.offline else tuple(dict.fromkeys((*mirrors, upstream.url)))


def rewritten_url(url: str) -> str:
    """Return ``url`` after the ``url.<base>.insteadOf`` rules of the user's git configuration.

    Other settings of the user have no effect: the configuration is only read.
    """
    command, environment = ["git", "ls-remote", "--get-url", "--", url], user_environment()
    out = subprocess.run(command, capture_output=True, env=environment, cwd="/", check=False).stdout
    return os.fsdecode(out).rstrip("\n") or url


def _candidates(
    upstream: Upstream, cache: Cache, options: SourceOptions
) -> Iterator[tuple[SourceKind, str, Callable[[], Files] | str]]:
    """Yield each source with its place and a function of its files, or why it is not asked."""

    def from_git(place: str) -> Files:
        places = partial(places_of, cache=cache, options=options)
        with ExitStack() as stack:
            yield from find_tree(stack, upstream, place, cache, places).files()

    mirrors = mirrors_of(upstream, cache, options) if upstream.commit else ()
    for place in mirrors:
        yield SourceKind.MIRROR, place, partial(from_git, place)
    if not mirrors:
        yield SourceKind.MIRROR, "", "none was named"
    wheel = upstream.wheel
    if wheel is None:
        reason = "the lock pins none: this version is available from git only"
        yield SourceKind.WHEEL, "", reason
    else:

        def from_wheel() -> Files:
            yield from wheel_files(
                upstream, wheel, obtain_wheel(wheel, cache, offline=options.offline)
            )

        yield SourceKind.WHEEL, f"{wheel.package} {wheel.version}", from_wheel
    if not upstream.commit:
        reason = "not asked: the lock pins a wheel, and no commit that it was made from"
        yield SourceKind.GIT, upstream.url, reason
    elif options.offline:
        yield SourceKind.GIT, upstream.url, "not asked: this run is offline"
    else:
        yield SourceKind.GIT, upstream.url, partial(from_git, upstream.url)
