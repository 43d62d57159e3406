# SPDX-License-Identifier: Apache-2.0
"""Verbs that verify a series: check, record, necessity; and on newer versions: probe, watch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    Verb,
    known_sources,
    plans_of_release,
    version_of,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import RECORD
from forkpatch.output import counted, print_table, say, warn
from forkpatch.series.shared import homes_first, record_version
from forkpatch.sources.obtain import MissingUpstreamError, SourceOptions, places_of
from forkpatch.tree.claim import Claim
from forkpatch.tree.drift import Drift, compare, files_to_compare
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.swap import scratch_folder
from forkpatch.tree.variants import patch_name

if TYPE_CHECKING:
    from forkpatch.inspect.probe import MapCell, SeriesMap

_MOST_COLUMNS = 6  # versions in a table with a column for each
_MOST_NAMES = 5  # newer versions that are listed


def run_check(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Lint patches, series and overlays; print each finding with its place and fix."""
    from forkpatch.inspect.lint import check_fork  # noqa: PLC0415 - for this verb only

    if options.together is not None:
        return _check_together(fork, options.together)
    report = check_fork(fork)
    say(*(str(finding) for finding in report.findings))
    say(*(f"not checked: {note}" for note in report.notes))
    count = counted(len(report.findings), "finding") if report.findings else "no findings"
    unchecked = f" in what was checked; not checked: {', '.join(report.unchecked)}"
    say(f"{count}{unchecked if report.unchecked else ''}")
    return report, 1 if report.findings else 0


def _check_together(fork: Fork, branch: str) -> tuple[object, int]:
    """Print how the changes of a branch and those here clash; return the report and exit code."""
    from forkpatch.inspect.together import check_together  # noqa: PLC0415 - for this option only

    report = check_together(fork, branch, SourceOptions())
    notes = (*report.notes, *report.missing)
    say(*map(str, report.clashes), *(f"not compared: {note}" for note in notes))
    if any(not clash.conflict for clash in report.clashes):
        say(
            "it merges, but its file has to be written again: merge the branches, take its line"
            " out of the series, and type:",
            f"  {typed('apply')}; git -C TREE am -3 FILE; {typed('export')}",
        )
    if not report.clashes:
        none = "" if report.orders or report.missing else "; no series is changed on both sides"
        compared = ", as far as they were compared" if report.missing else none
        say(f"{branch} and the changes here apply together{compared}")
        say(*(f"  {name}: {', '.join(order)}" for name, order in report.orders.items()))
    return report, 1 if report.clashes or report.missing else 0


def run_record(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Write derived.json beside each series, or check that it is up to date."""
    pins = [pin for versions in fork.lock.upstreams.values() for pin in versions.values()]
    if options.upstream:
        versions = fork.lock.versions(options.upstream)
        pins = [fork.lock.upstream(options.upstream, options.version)] if options.version else []
        pins = pins or list(versions.values())
    elif options.version:
        pins = [pin for pin in pins if pin.version == options.version]
        if not pins:
            raise UserError(
                f"no upstream has a version {options.version!r}",
                remedy=f"name one of {fork.lock.path.name}, or add it: {typed('lock --add')}",
            )
    chosen = known_sources(fork, options)
    result = []
    wrong = False
    for upstream in homes_first(fork, pins):
        try:
            done = record_version(
                fork,
                upstream,
                lambda pin: fork.pristine(pin, chosen),
                check=options.check,
            )
        except MissingUpstreamError as error:
            if not (upstream.optional or options.check) or upstream.name in options.require:
                raise
            warn(f"{upstream} was left out: {error.attempts[-1]}")
            continue
        old, new = done.old, done.new
        findings = compare(old, new, files_to_compare(done.plan, old, new)) if old else ()
        result.append({"upstream": upstream.name, "version": upstream.version, "places": findings})
        drifted = [finding for finding in findings if finding.drift is not Drift.UNCHANGED]
        say(*(str(finding) for finding in drifted))
        state = "up to date" if done.same else "differs" if options.check else "written"
        places = sum(len(one.places) for one in new.patches.values()) + len(new.shadows)
        say(f"{upstream}: {counted(places, 'place')}, {RECORD} {state}")
        wrong |= options.check and not done.same
    return result, 1 if wrong else 0


def run_necessity(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """Run each patch's test without the patch, to find patches that are no longer needed."""
    from forkpatch.regression.necessity import TIMEOUT, NecessityTrees, Verdict, judge  # noqa: PLC0415

    plans = plans_of_release(fork, options)
    judgements = []
    with scratch_folder(fork.settings.work / "necessity") as scratch:
        trees = NecessityTrees(fork, plans, scratch, options.timeout or TIMEOUT)
        for upstream, patch in _patches(plans, options.patch):
            judgements.append(judge(trees, upstream, patch))
            say(f"{patch.name}: {judgements[-1].verdict}: {judgements[-1].reason}")
    print_table(
        ("upstream", "patch", "verdict", "left out with it"),
        [
            (item.upstream, item.patch, item.verdict, ", ".join(item.along) or "-")
            for item in judgements
        ],
    )
    return judgements, 0 if all(item.verdict is Verdict.NEEDED for item in judgements) else 1


def _patches(plans: dict[str, TreePlan], names: list[str]) -> list[tuple[str, Patch]]:
    """Return upstream and patch of the patches ``names``; of all without names."""
    pairs = [(upstream, patch) for upstream, plan in plans.items() for patch in plan.patches]
    if not names:
        return pairs
    known = [patch.name for _, patch in pairs]
    chosen = {patch_name(known, name) for name in names}
    selected = [pair for pair in pairs if pair[1].name in chosen]
    if len({patch.name for _, patch in selected}) != len(selected):
        raise UserError("two upstreams have a patch of that name", remedy="rename one of them")
    return selected


def run_probe(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """List the upstream versions on which each patch applies, and the commit that broke it."""
    from forkpatch.inspect.probe import map_fork, map_upstream  # noqa: PLC0415

    if options.upstream is None:
        if wrong := [name for name in ("version", "versions", "to") if getattr(options, name)]:
            raise UserError(f"--{wrong[0]} is about one upstream", remedy="name it: probe NAME")
        result = map_fork(fork, known_sources(fork, options))
    else:
        chosen = known_sources(fork, options)
        upstream = version_of(fork, options)
        result = map_upstream(fork, upstream, chosen, options.versions, options.to or "")
    for series in result.sets if options.json != "-" else ():
        if options.upstream is None:
            say(f"{series.upstream} {series.set}:")
        key = series.upstream, series.set
        _say_probe(series, [row for row in result.rows if (row.upstream, row.set) == key])
    return result, 0


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
    """Return in words the newest releases, at most five; the newest names if none is a release."""
    from forkpatch.pins.versions import version_of as number_of  # noqa: PLC0415 - for this verb only

    releases = [name for name in names if (known := number_of(name)) and not known.is_prerelease]
    shown = (releases or list(names))[-_MOST_NAMES:]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more (--json lists them)" if rest else "")


def run_watch(fork: Fork, options: argparse.Namespace) -> tuple[object, int]:
    """List upstream versions that are newer than the pinned ones."""
    from forkpatch.pins.versions import news_of  # noqa: PLC0415 - for this verb only

    chosen = known_sources(fork, options)
    news = []
    for upstream in fork.lock.release()[1]:
        places = places_of(upstream, fork.cache, chosen)
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
    return news, 0


VERBS = (
    Verb(
        "check",
        run_check,
        "--together BRANCH  check instead whether the changes of BRANCH and here apply together",
    ),
    Verb(
        "record",
        run_record,
        SOURCES,
        """
        [UPSTREAM]  default: all
        --version V  default: every version in the lock
        --check  write nothing; exit with 1 if a derived.json is out of date
        """,
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "necessity",
        run_necessity,
        SOURCES,
        "[PATCH...]  patches to test (default: all)",
        RELEASE,
        "--timeout SECONDS  for one run of a test (default: 1800)",
    ),
    Verb(
        "probe",
        run_probe,
        SOURCES,
        """
        [UPSTREAM]  upstream to probe (default: all series)
        --version V  version whose series is probed (default: the release's)
        --versions V...  tags, commits or wheel versions to probe
        --to REF  scan the commits up to this one (default: HEAD)
        """,
    ),
    Verb("watch", run_watch, SOURCES),
)
