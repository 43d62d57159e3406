# SPDX-License-Identifier: Apache-2.0
"""Verbs that verify a series: check, record, necessity."""

from __future__ import annotations

import argparse

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    Verb,
    flag,
    known_sources,
    plans_of_release,
    value,
)
from forkpatch.command import typed
from forkpatch.errors import UserError
from forkpatch.model.patchfile import Patch
from forkpatch.model.record import RECORD
from forkpatch.output import counted, print_table, say, warn, write_report
from forkpatch.series.shared import homes_first, record_version
from forkpatch.sources.obtain import MissingUpstreamError, SourceOptions
from forkpatch.tree.claim import Claim
from forkpatch.tree.drift import Drift, compare, files_to_compare
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.variants import patch_name


def run_check(fork: Fork, options: argparse.Namespace) -> int:
    """Lint patches, series and overlays; print each finding with its place and fix."""
    from forkpatch.inspect.lint import check_fork  # noqa: PLC0415 - for this verb only

    if options.together:
        return _check_together(fork, options.together, options.json)
    report = check_fork(fork)
    say(*(str(finding) for finding in report.findings))
    say(*(f"not checked: {note}" for note in report.notes))
    count = counted(len(report.findings), "finding") if report.findings else "no findings"
    unchecked = f" in what was checked; not checked: {', '.join(report.unchecked)}"
    say(f"{count}{unchecked if report.unchecked else ''}")
    write_report(options.json, report)
    return 1 if report.findings else 0


def _check_together(fork: Fork, branch: str, target: str | None) -> int:
    """Check whether the changes of a branch and the changes here apply together."""
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
    write_report(target, report)
    return 1 if report.clashes or report.missing else 0


def run_record(fork: Fork, options: argparse.Namespace) -> int:
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
        places = sum(len(items) for items in new.patches.values()) + len(new.shadows)
        say(f"{upstream}: {counted(places, 'place')}, {RECORD} {state}")
        wrong |= options.check and not done.same
    write_report(options.json, result)
    return 1 if wrong else 0


def run_necessity(fork: Fork, options: argparse.Namespace) -> int:
    """Run each patch's test without the patch, to find patches that are no longer needed."""
    from forkpatch.regression.necessity import Verdict, judge, open_trees  # noqa: PLC0415

    plans = plans_of_release(fork, options)
    judgements = []
    with open_trees(fork, plans, options.timeout) as trees:
        for upstream, patch in _patches(plans, options.patches):
            judgements.append(judge(trees, upstream, patch))
            say(f"{patch.name}: {judgements[-1].verdict}: {judgements[-1].reason}")
    print_table(
        ("upstream", "patch", "verdict", "left out with it"),
        [
            (item.upstream, item.patch, item.verdict, ", ".join(item.along) or "-")
            for item in judgements
        ],
    )
    write_report(options.json, judgements)
    return 0 if all(item.verdict is Verdict.NEEDED for item in judgements) else 1


def _patches(plans: dict[str, TreePlan], names: list[str]) -> list[tuple[str, Patch]]:
    """Return upstream and patch of each patch to test."""
    pairs = [(upstream, patch) for upstream, plan in plans.items() for patch in plan.patches]
    if not names:
        return pairs
    known = [patch.name for _, patch in pairs]
    chosen = {patch_name(known, name) for name in names}
    selected = [pair for pair in pairs if pair[1].name in chosen]
    if len({patch.name for _, patch in selected}) != len(selected):
        raise UserError("two upstreams have a patch of that name", remedy="rename one of them")
    return selected


VERBS = (
    Verb(
        "check",
        run_check,
        value(
            "--together",
            "BRANCH",
            "check instead whether the changes of BRANCH and those here apply together",
        ),
    ),
    Verb(
        "record",
        run_record,
        *SOURCES,
        value("upstream", "UPSTREAM", "default: all", nargs="?"),
        value("--version", "V", "default: every version in the lock"),
        flag("--check", "write nothing; exit with 1 if a derived.json is out of date"),
        claim=Claim.WRITE,
        reads="check",
    ),
    Verb(
        "necessity",
        run_necessity,
        *SOURCES,
        value("patches", "PATCH", "patches to test (default: all)", nargs="*"),
        RELEASE,
        value("--timeout", "S", "seconds for one run of a test", type=float, default=1800),
    ),
)
