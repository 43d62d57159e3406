# SPDX-License-Identifier: Apache-2.0
"""Registry of verbs, and the options that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from forkpatch.errors import UserError
from forkpatch.model.lock import Upstream
from forkpatch.output import warn
from forkpatch.sources.obtain import MissingUpstreamError, SourceOptions
from forkpatch.sources.repository import local_path
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork, TreePlan

Run = Callable[[Fork, argparse.Namespace], int]
#: Function that adds an option, a word or a choice of options to a parser or to a group of options.
Option = Callable[[Any], object]


def value(name: str, metavar: str | None, text: str | None = None, **settings: Any) -> Option:
    """Return an option with a value, or a word."""
    return lambda parser: parser.add_argument(name, metavar=metavar, help=text, **settings)


def values(name: str, metavar: str, text: str) -> Option:
    """Return an option with one or more values."""
    return value(name, metavar, text, nargs="+", default=[])


def repeated(name: str, metavar: str, text: str) -> Option:
    """Return an option that a user may type several times."""
    return value(name, metavar, text, action="append", default=[])


def flag(name: str, text: str, **settings: Any) -> Option:
    """Return an option without a value."""
    return lambda parser: parser.add_argument(name, action="store_true", help=text, **settings)


def one_of(*options: Option, required: bool = False) -> Option:
    """Return options of which a user types one at the most, or exactly one."""

    def add(parser: Any) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for option in options:
            option(group)

    return add


UPSTREAM = value("upstream", "UPSTREAM")
RELEASE = value("--release", "R", "the release (default: the lock's)")
VERSION = value("--version", "V", "default: the default release's version")
#: The options that choose the sources of upstreams.
SOURCES = (
    repeated(
        "--mirror",
        "NAME=PATH_OR_URL",
        "a git repository that has the upstream; the cache remembers it",
    ),
    repeated("--source", "NAME=wheel|git", "take the upstream from this source only"),
    repeated("--require", "NAME", "fail when the optional upstream is missing"),
    flag("--offline", "contact no package index and no upstream server"),
)


class Verb:
    """A verb of the command line; the first line of ``run``'s docstring is its help.

    Args:
        name: the word that a user types.
        run: function of the verb.
        options: its options.
        claim: claim to the fork.
        reads: name of the option that makes a writing verb only read.
        begins: True for a verb that makes the fork.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        *options: Option,
        claim: Claim = Claim.NONE,
        reads: str = "",
        begins: bool = False,
    ) -> None:
        self.run, self.begins = run, begins
        self._name, self._options, self._claim, self._reads = name, options, claim, reads

    def add_to(self, verbs: Any) -> None:
        """Add the verb to argparse's verbs."""
        line = (self.run.__doc__ or "").splitlines()[0]
        parser: argparse.ArgumentParser = verbs.add_parser(self._name, help=line, description=line)
        parser.set_defaults(run=self)
        for add in (
            value("--json", "PATH", "write the result as JSON; - prints it"),
            *self._options,
        ):
            add(parser)

    def claim_of(self, options: argparse.Namespace) -> Claim:
        """Return the claim to the fork; some options turn WRITE into READ."""
        reads = self._claim is Claim.WRITE and self._reads and getattr(options, self._reads)
        return Claim.READ if reads else self._claim


def source_options(options: argparse.Namespace) -> SourceOptions:
    """Return the source options of a verb, parsed."""
    return SourceOptions(
        mirrors={n: _from_anywhere(p) for n, p in _pairs("--mirror", options.mirror).items()},
        forced=_pairs("--source", options.source),
        offline=options.offline,
        required=frozenset(options.require),
    )


def _from_anywhere(place: str) -> str:
    """Return a mirror's place as an absolute path or URL, which can be remembered."""
    path = None if place.startswith(("file:", "-")) else local_path(place)
    return str(path.absolute()) if path else place


def known_sources(fork: Fork, options: argparse.Namespace) -> SourceOptions:
    """Return the checked source options of a verb; remember its mirrors.

    Raises:
        UserError: an option names an upstream that the lock lacks.
    """
    chosen = source_options(options)
    chosen.check(fork.lock)
    fork.cache.remember(chosen.mirrors)
    return chosen


def _pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not name or not equals or not rest:
            raise UserError(f"{option} {value}: the value must have the form NAME=VALUE")
        pairs[name] = rest
    return pairs


def version_of(fork: Fork, options: argparse.Namespace) -> Upstream:
    """Return the upstream that a verb names, in the named or the default release's version."""
    if options.version:
        return fork.lock.upstream(options.upstream, options.version)
    return upstream_of(fork, None, options.upstream)[1]


def upstream_of(fork: Fork, release: str | None, name: str) -> tuple[str, Upstream]:
    """Return the name of a release, and its version of the upstream ``name``."""
    chosen, upstreams = fork.lock.release(release)
    for upstream in upstreams:
        if upstream.name == name:
            return chosen, upstream
    raise UserError(
        f"release {chosen} has no upstream {name!r}",
        remedy=f"upstreams: {', '.join(item.name for item in upstreams)}",
    )


def plans_of_release(fork: Fork, options: argparse.Namespace) -> dict[str, TreePlan]:
    """Return the planned trees of a release by upstream, without missing optional upstreams."""
    chosen = known_sources(fork, options)
    plans: dict[str, TreePlan] = {}
    for upstream in fork.lock.release(options.release)[1]:
        try:
            plans[upstream.name] = fork.plan(upstream, chosen)
        except MissingUpstreamError as error:
            if not upstream.optional or upstream.name in options.require:
                raise
            warn(f"{upstream} was left out: {error.attempts[-1]}")
    return plans
