# SPDX-License-Identifier: Apache-2.0
"""Registry of verbs, their options as a text, and the options that several verbs share."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

from forkpatch.errors import UserError
from forkpatch.model.lock import Upstream
from forkpatch.output import warn
from forkpatch.sources.obtain import MissingUpstreamError, SourceOptions
from forkpatch.sources.repository import local_path
from forkpatch.tree.claim import Claim
from forkpatch.tree.fork import Fork, TreePlan
from groundwork.command_line import output_file, seconds_of

#: Function of a verb: returns the result, which ``--json`` writes, and the exit code.
Run = Callable[[Fork, argparse.Namespace], tuple[object, int]]

UPSTREAM = "UPSTREAM\n"
RELEASE = "--release R  the release (default: the lock's)\n"
VERSION = "--version V  default: the default release's version\n"
#: The options that choose the sources of upstreams.
SOURCES = """
--mirror* NAME=PATH_OR_URL  a git repository that has the upstream; the cache remembers it
--source* NAME=wheel|git  take the upstream from this source only
--require* NAME  fail when the optional upstream is missing
--offline  contact no package index and no upstream server
"""


def _text(word: str) -> str:
    """Return an option's value, which is not empty: verbs take an empty one as a missing one."""
    if not word:
        raise argparse.ArgumentTypeError("the value is empty")
    return word


def _folder(word: str) -> Path:
    return Path(_text(word))


def _report(word: str) -> str:
    return word if word == "-" else str(output_file(_text(word)))


#: Type of a value, by its name in the help; the words of a user's command may be empty.
_TYPES: dict[str, Callable[[str], Any]] = {
    "DIR": _folder,
    "FOLDER": _folder,
    "REPORT": _report,
    "SECONDS": seconds_of,
    "COMMAND": str,
}


class Verb:
    """A verb of the command line; the first line of ``run``'s docstring is its help.

    A line of ``options`` has an option or a word, its value, and its help after two blanks. A line
    that is indented goes on with the help above. Further signs:

    - ``--option* X`` may be typed several times; ``X...`` has one value or more; ``[X]`` may be
      left out, and so may ``[X...]``; ``a|b`` is a choice of two values.
    - ``| --other`` excludes the option above, ``! --option`` must be typed, or one of those that
      exclude it.

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
        *options: str,
        claim: Claim = Claim.NONE,
        reads: str = "",
        begins: bool = False,
    ) -> None:
        self.name, self.run, self.begins = name, run, begins
        self._claim, self._reads = claim, reads
        self._options = ["--json REPORT  write the result as JSON; - prints it", *options]

    def add_to(self, verbs: Any) -> None:
        """Add the verb, with its options, to argparse's subparsers."""
        line = (self.run.__doc__ or "").splitlines()[0]
        parser: argparse.ArgumentParser = verbs.add_parser(self.name, help=line, description=line)
        parser.set_defaults(run=self)
        text = "\n".join(dedent(part).strip() for part in self._options)
        rows = re.sub(r"\n +", " ", text).splitlines()
        group: Any = parser
        for row, after in pairwise([*rows, ""]):
            if not row.startswith("|"):
                group, must = parser, row.startswith("!")
                if after.startswith("|"):
                    group, must = parser.add_mutually_exclusive_group(required=must), False
            _add(group, row.lstrip("|! "), must=must)

    def claim_of(self, options: argparse.Namespace) -> Claim:
        """Return the claim to the fork; the option ``reads``, if typed, turns WRITE into READ."""
        reads = self._claim is Claim.WRITE and self._reads and getattr(options, self._reads)
        return Claim.READ if reads else self._claim


def _add(parser: Any, row: str, *, must: bool) -> None:
    """Add the option or word of a line, as in :class:`Verb`, to a parser or a group of options."""
    form, _, text = row.partition("  ")
    name, _, value = form.partition(" ")
    settings: dict[str, Any] = {"help": text.strip() or None}
    word = value or name
    metavar = word.strip("[]").removesuffix("...")
    if name.startswith("-"):
        plain = name.strip("-*").replace("-", "_")
        settings |= {"required": must, "dest": f"{plain}_" if keyword.iskeyword(plain) else plain}
    if name.startswith("-") and not value:
        settings["action"] = "store_true"
    elif re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", value):
        settings["choices"] = value.split("|")
    else:
        settings |= {"metavar": metavar, "type": _TYPES.get(metavar, _text)}
    if name.endswith("*"):
        settings |= {"action": "append", "default": []}
    elif word.endswith(("...", "...]")):
        settings |= {"nargs": "*" if word.endswith("]") else "+", "default": []}
    elif word.endswith("]") and not value:
        settings["nargs"] = "?"
    parser.add_argument(name.rstrip("*") if name.startswith("-") else metavar.lower(), **settings)


def source_options(options: argparse.Namespace) -> SourceOptions:
    """Return the parsed source options of a verb; raise UserError unless each is NAME=VALUE."""
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
    """Return the upstream that a verb names, in the named version or that of its release."""
    if options.version:
        return fork.lock.upstream(options.upstream, options.version)
    return upstream_of(fork, vars(options).get("release"), options.upstream)[1]


def upstream_of(fork: Fork, release: str | None, name: str) -> tuple[str, Upstream]:
    """Return a release's name and its version of an upstream; raise UserError if it has none."""
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
