# SPDX-License-Identifier: Apache-2.0
"""Verbs about newer upstream versions: probe, watch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from forkpatch.cli.options import SOURCES, Verb, known_sources, value, version_of
from forkpatch.errors import UserError
from forkpatch.output import counted, print_table, say, write_report
from forkpatch.sources.obtain import mirrors_of
from forkpatch.tree.fork import Fork

if TYPE_CHECKING:
    from forkpatch.inspect.applicability import MapCell, SeriesMap

_MOST_COLUMNS = 6  # versions in a table with a column for each
_MOST_NAMES = 5  # newer versions that are listed


def run_probe(fork: Fork, options: argparse.Namespace) -> int:
    """List the upstream versions on which each patch applies, and the commit that broke it."""
    from forkpatch.inspect.applicability import map_fork, map_upstream  # noqa: PLC0415

    if options.upstream is None:
        if wrong := [name for name in ("version", "versions") if getattr(options, name)]:
            raise UserError(f"--{wrong[0]} is about one upstream", remedy="name it: probe NAME")
        result = map_fork(fork, known_sources(fork, options))
    else:
        chosen = known_sources(fork, options)
        upstream = version_of(fork, options)
        result = map_upstream(fork, upstream, chosen, options.versions or (), options.to)
    for series in result.sets if options.json != "-" else ():
        if options.upstream is None:
            say(f"{series.upstream} {series.set}:")
        key = series.upstream, series.set
        _say_probe(series, [row for row in result.rows if (row.upstream, row.set) == key])
    write_report(options.json, result)
    return 0


def _say_probe(series: SeriesMap, rows: Sequence[MapCell]) -> None:
    """Print the fits of the patches on each version, and the commits that changed a fit."""
    versions = dict.fromkeys(row.version for row in rows)
    fits = {(row.patch, row.version): row.outcome for row in rows}
    if len(versions) <= _MOST_COLUMNS:
        cells = [[patch, *(fits[patch, each] for each in versions)] for patch in series.patches]
        print_table(("patch", *versions), cells)
    else:
        by_patch = ({each: fits[patch, each] for each in versions} for patch in series.patches)
        cells = [
            [patch, line]
            for patch, known in zip(series.patches, by_patch, strict=True)
            for line in _ranges(known)
        ]
        print_table(("patch", f"on {len(versions)} versions"), cells)
    commits = counted(series.commits, "upstream commit")
    say(f"{commits} since {series.set} changed these files; each was probed")
    for turn in series.turns:
        again = "; it applies again later" if turn.again else ""
        say(f"{turn.patch}: {turn.fit} since {turn.commit[:12]} {turn.subject}{again}")


def _ranges(fits: Mapping[str, str]) -> Iterator[str]:
    """Yield a fit and its first and last version, for each run of versions with the same fit."""
    for fit, run in groupby(fits, key=fits.__getitem__):
        first, *others = run
        yield f"{fit}: {first}{f' to {others[-1]}' if others else ''}"


def _newest(names: Sequence[str]) -> str:
    """Return the newest releases of a list in words, or its newest versions without releases."""
    from forkpatch.pins.versions import version_of as number_of  # noqa: PLC0415 - for this verb only

    releases = [name for name in names if (known := number_of(name)) and not known.is_prerelease]
    shown = (releases or list(names))[-_MOST_NAMES:]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more (--json lists them)" if rest else "")


def run_watch(fork: Fork, options: argparse.Namespace) -> int:
    """List upstream versions that are newer than the pinned ones."""
    from forkpatch.pins.versions import news_of  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    news = []
    for upstream in fork.lock.release()[1]:
        places = list(mirrors_of(upstream, fork.cache, chosen))
        if not options.offline:
            places.append(upstream.url)
        news.append(news_of(upstream, places, index=not options.offline))
    print_table(
        ("upstream", "pinned", "newer tags", "newer wheels", "newest commit"),
        [
            (
                item.upstream,
                item.version,
                _newest(item.tags) or ("-" if item.tags_understood else "tags not understood"),
                _newest(item.wheels) or "-",
                item.head[:12] or "-",
            )
            for item in news
        ],
    )
    say(*(f"{item.upstream}: not asked: {note}" for item in news for note in item.notes))
    write_report(options.json, news)
    return 0


VERBS = (
    Verb(
        "probe",
        run_probe,
        *SOURCES,
        value("upstream", "NAME", "upstream to probe (default: all series)", nargs="?"),
        value("--version", "V", "version whose series is probed (default: the release's)"),
        value("--versions", "V", "tags, commits or wheel versions to probe", nargs="+"),
        value("--to", "REF", "scan the commits up to this one", default="HEAD"),
    ),
    Verb("watch", run_watch, *SOURCES),
)
