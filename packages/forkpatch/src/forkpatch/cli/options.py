# SPDX-License-Identifier: Apache-2.0
"""Registry of verbs, and the options that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forkpatch.errors import UserError
from forkpatch.model.lock import Upstream
from forkpatch.output import warn
from forkpatch.sources.obtain import MissingUpstreamError, SourceOptions, obtain
from forkpatch.sources.repository import local_path
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork, TreePlan, plan_tree

Verb = Callable[[Fork, argparse.Namespace], int]


@dataclass(frozen=True)
class Registry:
    """Parser to which each module adds its verbs."""

    parsers: Any

    def add(
        self,
        name: str,
        run: Verb,
        claim: Claim = Claim.NONE,
        *,
        reads: str = "",
        begins: bool = False,
    ) -> argparse.ArgumentParser:
        """Add a verb; the first line of ``run``'s docstring is its help.

        Args:
            name: name of the verb.
            run: function of the verb.
            claim: claim of the verb to the fork.
            reads: name of the option that makes a writing verb only read.
            begins: True for a verb that makes the fork.
        """
        line = (run.__doc__ or "").splitlines()[0]
        verb: argparse.ArgumentParser = self.parsers.add_parser(name, help=line, description=line)
        verb.set_defaults(run=run, claim=claim, reads=reads, begins=begins)
        verb.add_argument("--json", metavar="PATH", help="write the result as JSON; - prints it")
        return verb


def claim_of(options: argparse.Namespace) -> Claim:
    """Return the claim of a verb to the fork; some options turn WRITE into READ."""
    claim: Claim = options.claim
    reads = claim is Claim.WRITE and options.reads and getattr(options, options.reads)
    return Claim.READ if reads else claim


def add_source_options(verb: argparse.ArgumentParser) -> None:
    """Add the options that choose the sources of upstreams."""
    for option, metavar, text in (
        (
            "--mirror",
            "NAME=PATH_OR_URL",
            "a git repository that has the upstream; the cache remembers it",
        ),
        ("--source", "NAME=wheel|git", "take the upstream from this source only"),
        ("--require", "NAME", "fail when the optional upstream is missing"),
    ):
        verb.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    verb.add_argument(
        "--offline", action="store_true", help="contact no package index and no upstream server"
    )


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
    """Return the values ``NAME=VALUE`` of an option as a mapping."""
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
            pristine = obtain(upstream, fork.cache, chosen).pristine
        except MissingUpstreamError as error:
            if not upstream.optional or upstream.name in options.require:
                raise
            warn(f"{upstream} was left out: {error.attempts[-1]}")
            continue
        plans[upstream.name] = plan_tree(fork, upstream, pristine)
    return plans
