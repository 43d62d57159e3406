# SPDX-License-Identifier: Apache-2.0
"""Verbs that run tests: upstream-tests, necessity."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import Progress

from forkpatch.cli.options import (
    RELEASE,
    SOURCES,
    Verb,
    flag,
    known_sources,
    plans_of_release,
    value,
)
from forkpatch.errors import UserError
from forkpatch.model.patchfile import Patch
from forkpatch.output import console, counted, print_table, say, warn, write_report
from forkpatch.regression.necessity import (
    NothingComparedError,
    Verdict,
    judge,
    noticing_tests,
    open_trees,
)
from forkpatch.regression.runner import (
    ComparedTest,
    Outcome,
    TestChange,
    TestFile,
    TestRunner,
    compare_files,
)
from forkpatch.regression.selection import TABLE, Choice, choose, read_table
from forkpatch.regression.suite import OURS, PRISTINE, NoSuiteError, Suite, make_side, open_suite
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.variants import patch_name

RESULTS = "out/upstream-tests"
_REASON = 110  # characters of a reason in a table


@dataclass(frozen=True)
class _Planned:
    """Upstream's tests of a release, ready to run.

    Attributes:
        plans: the planned tree of each available upstream.
        suites: tests of each upstream with available tests, and the choice among them.
    """

    release: str
    plans: dict[str, TreePlan]
    suites: dict[str, tuple[Suite, Choice]]
    runner: TestRunner


def run_upstream_tests(fork: Fork, options: argparse.Namespace) -> int:
    """Run upstream's tests on the pristine tree and on ours; none may get worse."""
    planned = _plan(fork, options, options.only)
    wrong = [
        f"{suite.table.file}: {path} is in neither list, and it {choice.reasons[path]}"
        for suite, choice in planned.suites.values()
        for path in choice.unlisted
    ]
    if options.choose:
        for suite, choice in planned.suites.values():
            say(f"{suite.upstream} at {suite.commit[:12]}:")
            say(*(f"  {path}: {reason}" for path, reason in choice.reasons.items()))
        write_report(options.json, {name: choice for name, (_, choice) in planned.suites.items()})
    else:
        compared = _compared(fork, options, planned)
        _print(planned, compared)
        write_report(options.json, {"release": planned.release, "tests": compared})
        wrong += [f"worse: {_name(test)}" for test in compared if test.change is TestChange.WORSE]
        if not any(test.before.outcome is Outcome.PASSED for test in compared):
            wrong.append("no test passes on the pristine trees: nothing was compared")
    warn(*wrong)
    return 1 if wrong else 0


def _plan(fork: Fork, options: argparse.Namespace, only: str = "") -> _Planned:
    """Plan the trees of a release, and write out the available tests."""
    chosen = known_sources(fork, options)
    plans = plans_of_release(fork, options)
    suites: dict[str, tuple[Suite, Choice]] = {}
    missing: list[NoSuiteError] = []
    for name, plan in plans.items():
        table = read_table(fork, name)
        if table is None:
            continue
        try:
            suite = open_suite(fork, plan.upstream, table, chosen)
        except NoSuiteError as error:
            if name in options.require:
                raise
            warn(f"not run: {error}")
            missing.append(error)
            continue
        suites[name] = suite, choose(fork, plan, table, suite.files)
    if missing and not suites:
        raise missing[0]
    if not suites:
        raise UserError(
            "the fork lists no tests of upstream's",
            remedy=f"write {fork.settings.patches / 'UPSTREAM' / TABLE}",
        )
    release = fork.lock.release(options.release)[0]
    folder = fork.settings.root / RESULTS / release
    runner = TestRunner(folder, options.test_timeout, options.jobs, only)
    return _Planned(release, plans, suites, runner)


def _compared(
    fork: Fork, options: argparse.Namespace, planned: _Planned
) -> tuple[ComparedTest, ...]:
    """Run the chosen test files on both sides, and compare their results."""
    sides = [make_side(fork, planned.plans, name, {}) for name in (PRISTINE, OURS)]
    files = _wanted(planned, options.files)
    jobs = [[TestFile(suite, side, path) for suite, path in files] for side in sides]
    with Progress(console=console(), disable=options.json == "-") as bar:
        task = bar.add_task("upstream's tests", total=2 * len(files))

        def step(job: TestFile) -> None:
            bar.update(task, advance=1, description=f"{job.side.name}: {job.path.split('/')[-1]}")

        results = planned.runner.run(
            [job for both in zip(*jobs, strict=True) for job in both], step
        )
    before, after = ({job: results[job] for job in side_jobs} for side_jobs in jobs)
    return compare_files(before, after)


def _wanted(planned: _Planned, names: Sequence[str]) -> list[tuple[Suite, str]]:
    """Return the test files to run that this version has."""
    files = []
    for suite, choice in planned.suites.values():
        for path in suite.table.run:
            if path in suite.absent:
                warn(f"not run: {path}: the mirror of {suite.upstream.name} does not have it")
            elif path not in choice.lost and (not names or any(name in path for name in names)):
                files.append((suite, path))
    if not files:
        raise UserError(
            f"no test file on the lists has {' or '.join(names) or 'a name'}",
            remedy=f"lists: patches/UPSTREAM/{TABLE}",
        )
    return files


def _name(item: ComparedTest) -> str:
    """Return a test and the change of its outcome in words."""
    test = item.test if item.test.startswith(item.path) else f"{item.path}: {item.test}"
    reason = " ".join(item.after.reason.split())[:_REASON]
    return f"{test}: {item.before.outcome} -> {item.after.outcome}: {reason}"


def _print(planned: _Planned, compared: tuple[ComparedTest, ...]) -> None:
    """Print the changed tests and a table of outcomes."""
    for change in (TestChange.FAILS_ON_BOTH, TestChange.BETTER, TestChange.WORSE):
        changed = [test for test in compared if test.change is change]
        say(*([f"{change}:"] if changed else []), *(f"  {_name(test)}" for test in changed))
    counts = {
        (name, side): Counter(
            (test.before if side == PRISTINE else test.after).outcome
            for test in compared
            if test.upstream == name
        )
        for name in dict.fromkeys(test.upstream for test in compared)
        for side in (PRISTINE, OURS)
    }
    shown = [outcome for outcome in Outcome if any(outcome in one for one in counts.values())]
    worse = Counter(test.upstream for test in compared if test.change is TestChange.WORSE)
    rows = [
        (
            *(str(planned.suites[name][0].upstream), side),
            *(str(numbers[outcome]) for outcome in shown),
            str(worse[name]) if side == OURS else "",
        )
        for (name, side), numbers in counts.items()
    ]
    print_table(("upstream", "tree", *shown, "worse"), rows, title=f"release {planned.release}")
    say(f"{counted(len(compared), 'test')} compared")


def run_necessity(fork: Fork, options: argparse.Namespace) -> int:
    """Run each patch's test without the patch, to find patches that are no longer needed."""
    planned = _plan(fork, options) if options.upstream_tests else None
    plans = planned.plans if planned else plans_of_release(fork, options)
    suites = [suite for suite, _ in planned.suites.values()] if planned else []
    judgements = []
    incomparable = False
    with open_trees(fork, plans, options.timeout) as trees:
        for upstream, patch in _patches(plans, options.patches):
            judgement = judge(trees, upstream, patch)
            try:
                if planned:
                    noticed = noticing_tests(trees, suites, planned.runner, upstream, patch.name)
                    judgement = replace(judgement, noticed=noticed)
            except NothingComparedError as error:
                incomparable = True
                warn(str(error))
            judgements.append(judgement)
            say(f"{patch.name}: {judgement.verdict}: {judgement.reason}")
            say(*(f"  upstream's test notices: {test}" for test in judgement.noticed or ()))
    print_table(
        ("upstream", "patch", "verdict", "left out with it", "noticed by upstream's tests"),
        [
            (
                *(item.upstream, item.patch, item.verdict, ", ".join(item.along) or "-"),
                "-" if item.noticed is None else str(len(item.noticed)),
            )
            for item in judgements
        ],
    )
    write_report(options.json, judgements)
    needed = all(item.verdict is Verdict.NEEDED for item in judgements)
    # The tests of one patch may need a tool that this machine lacks; the tests of all may not.
    silent = incomparable and all(item.noticed is None for item in judgements)
    return 0 if needed and not silent else 1


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


_RUN = (
    value("--test-timeout", "S", "seconds for one test", type=float, default=600),
    value("--jobs", "N", "number of test files to run at the same time", type=int, default=1),
)
VERBS = (
    Verb(
        "upstream-tests",
        run_upstream_tests,
        *SOURCES,
        *_RUN,
        value("files", "FILE", "run only test files whose path contains this", nargs="*"),
        value("--only", "TEXT", "run only tests whose id contains this", default=""),
        RELEASE,
        flag("--choose", "run nothing; list the tests that touch what the fork changes"),
    ),
    Verb(
        "necessity",
        run_necessity,
        *SOURCES,
        value("patches", "PATCH", "patches to test (default: all)", nargs="*"),
        RELEASE,
        value("--timeout", "S", "seconds for one run of a test", type=float, default=1800),
        flag("--upstream-tests", "also print which of upstream's tests fail without the patch"),
        *_RUN,
    ),
)
