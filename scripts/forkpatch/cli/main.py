# SPDX-License-Identifier: Apache-2.0
"""Command line: entry point, and options that verbs share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forkpatch
from forkpatch.errors import ForkError, UserError
from forkpatch.machine import require_git
from forkpatch.model.fork import Fork, open_fork
from forkpatch.model.lock import Upstream
from forkpatch.model.settings import load_settings
from forkpatch.sources.obtain import SourceOptions

Verb = Callable[[Fork, argparse.Namespace], int]


@dataclass(frozen=True)
class Registry:
    """Registry to which modules add their verbs."""

    parsers: Any

    def add(self, name: str, run: Verb) -> argparse.ArgumentParser:
        """Add a verb; the first line of ``run``'s docstring is its help."""
        line = (run.__doc__ or "").splitlines()[0]
        verb: argparse.ArgumentParser = self.parsers.add_parser(name, help=line, description=line)
        verb.set_defaults(run=run)
        verb.add_argument("--json", metavar="PATH", help="write the result as JSON; - prints it")
        return verb


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Returns:
        0 when all is well, 1 for a failure or a finding, 2 for a mistake in the input.
    """
    options = _parser().parse_args(argv)
    try:
        require_git()
        fork = open_fork(load_settings(options.root))
        verb: Verb = options.run
        return verb(fork, options)
    except ForkError as error:
        return _failed(options.verb, error)
    except KeyboardInterrupt:
        print(f"forkpatch {options.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _failed(options.verb, UserError.from_os_error(error))


def _failed(verb: str, error: ForkError) -> int:
    sys.stdout.flush()
    print(f"forkpatch {verb}: {error}", file=sys.stderr)
    return error.exit_code


def _parser() -> argparse.ArgumentParser:
    from forkpatch.cli import check_verbs, series_verbs, tree_verbs, version_verbs  # noqa: PLC0415 - they import this module

    parser = argparse.ArgumentParser(
        prog="forkpatch",
        description=forkpatch.__doc__,
        epilog="Exit code 0: all is well; 1: a failure or a finding; 2: a mistake in the"
        " input: options, or the fork's own files.",
    )
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the fork's root (default: .)"
    )
    verbs = Registry(parser.add_subparsers(dest="verb", required=True, metavar="VERB"))
    for module in (tree_verbs, check_verbs, series_verbs, version_verbs):
        module.register(verbs)
    return parser


def add_source_options(verb: argparse.ArgumentParser) -> None:
    """Add the options that choose the sources of upstreams."""
    for option, metavar, text in (
        ("--mirror", "NAME=PATH_OR_URL", "a git repository that has the upstream; remembered"),
        ("--source", "NAME=wheel|git", "take the upstream from this source only"),
        ("--require", "NAME", "fail when the optional upstream is missing"),
    ):
        verb.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    verb.add_argument("--offline", action="store_true", help="ask no index and no upstream server")


def source_options(options: argparse.Namespace) -> SourceOptions:
    """Source options of a verb, parsed."""
    return SourceOptions(
        mirrors=_pairs("--mirror", options.mirror),
        forced=_pairs("--source", options.source),
        offline=options.offline,
        required=frozenset(options.require),
    )


def _pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, rest = value.partition("=")
        if not name or not equals or not rest:
            raise UserError(f"{option} {value}: it has the form NAME=VALUE")
        pairs[name] = rest
    return pairs


def upstream_of(fork: Fork, release: str | None, name: str) -> tuple[str, Upstream]:
    """Name of the release, and its version of the upstream ``name``."""
    chosen, upstreams = fork.lock.release(release)
    for upstream in upstreams:
        if upstream.name == name:
            return chosen, upstream
    raise UserError(
        f"release {chosen} has no upstream {name!r}",
        remedy=f"upstreams: {', '.join(one.name for one in upstreams)}",
    )
