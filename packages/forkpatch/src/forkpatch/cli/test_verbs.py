# SPDX-License-Identifier: Apache-2.0
"""The verb ``upstream-tests``: upstream's own tests on the pristine trees and on our trees."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forkpatch.cli.options import Registry, add_source_options, known_sources, plans_of_release
from forkpatch.errors import UserError
from forkpatch.output import console, counted, print_table, say, warn, write_report
from forkpatch.regression.comparison import ComparedTest, TestChange, compare_files, counts
from forkpatch.regression.notice import noticing_tests
from forkpatch.regression.runner import Outcome, TestFile, TestRunner
from forkpatch.regression.selection import TABLE, Choice, choose, read_table, touched_by_fork
from forkpatch.regression.suite import (
    OURS,
    PRISTINE,
    NoSuiteError,
    Suite,
    make_side,
    open_suite,
)
from forkpatch.tree.derive import record_of
from forkpatch.tree.fork import Fork, TreePlan

RESULTS = "out/upstream-tests"
_REASON = 110  # characters of a reason in a table


@dataclass(frozen=True)
class TestPlan:
    """Upstream's tests of a release, ready to run.

    Attributes:
        plans: the planned tree of each available upstream.
        suites: tests of each upstream with available tests, and the choice among them.
    """

    release: str
    plans: dict[str, TreePlan]
    suites: dict[str, tuple[Suite, Choice]]


def register(verbs: Registry) -> None:
    """Add the verb of this module to the command line."""
    verb = verbs.add("upstream-tests", run_upstream_tests)
    add_source_options(verb)
    add_run_options(verb)
    verb.add_argument(
        "files", nargs="*", metavar="FILE", help="run only test files whose path contains this"
    )
    verb.add_argument(
        "--only", default="", metavar="TEXT", help="run only tests whose id contains this"
    )
    verb.add_argument("--release", metavar="R", help="the release (default: the lock's)")
    verb.add_argument(
        "--choose",
        action="store_true",
        help="run nothing; list the tests that touch what the fork changes",
    )


def add_run_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of a run of upstream's tests."""
    verb.add_argument("--test-timeout", type=float, default=600, metavar="S", help="for one test")
    verb.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="number of test files to run at the same time",
    )


def run_upstream_tests(fork: Fork, options: argparse.Namespace) -> int:
    """Run upstream's tests on the pristine tree and on ours; none may get worse."""
    planned = plan_tests(fork, options)
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
        compared = _compare(fork, options, planned)
        if options.json != "-":
            _print(planned, compared)
        write_report(options.json, {"release": planned.release, "tests": compared})
        wrong += [f"worse: {_name(test)}" for test in compared if test.change is TestChange.WORSE]
        if not any(test.before.outcome is Outcome.PASSED for test in compared):
            wrong.append("no test passes on the pristine trees: nothing was compared")
    warn(*wrong)
    return 1 if wrong else 0


def plan_tests(fork: Fork, options: argparse.Namespace) -> TestPlan:
    """Plan the trees of a release, and write out the available tests.

    Raises:
        NoSuiteError: no upstream's tests are available.
    """
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
        places = [item for group in record_of(fork, plan).patches.values() for item in group]
        choice = choose(table, touched_by_fork(fork, plan, places, table), suite.files)
        suites[name] = suite, choice
    if missing and not suites:
        raise missing[0]
    if not suites:
        raise UserError(
            "the fork lists no tests of upstream's",
            remedy=f"write {fork.settings.patches / 'UPSTREAM' / TABLE}",
        )
    return TestPlan(fork.lock.release(options.release)[0], plans, suites)


def _compare(
    fork: Fork, options: argparse.Namespace, planned: TestPlan
) -> tuple[ComparedTest, ...]:
    """Run the chosen test files on both sides, and compare their results."""
    sides = [make_side(fork, planned.plans, name, {}) for name in (PRISTINE, OURS)]
    files = _wanted(planned, options.files)
    jobs = [[TestFile(suite, side, path) for suite, path in files] for side in sides]
    runner = make_runner(fork, options, planned.release)
    with progress("upstream's tests", sum(map(len, jobs)), quiet=options.json == "-") as step:
        results = runner.run([job for both in zip(*jobs, strict=True) for job in both], step)
    before, after = ({job: results[job] for job in side_jobs} for side_jobs in jobs)
    return compare_files(before, after)


def noticing(
    fork: Fork, options: argparse.Namespace
) -> Callable[[str, str], tuple[str, ...] | None]:
    """Return a function of upstream and patch that lists the tests worse without the patch."""
    planned = plan_tests(fork, options)
    suites = {name: suite for name, (suite, _) in planned.suites.items()}
    runner = make_runner(fork, options, planned.release)
    records = {name: record_of(fork, plan) for name, plan in planned.plans.items()}

    def noticed(upstream: str, patch: str) -> tuple[str, ...] | None:
        places = records[upstream].patches[patch]
        return noticing_tests(fork, planned.plans, suites, runner, (upstream, patch, places))

    return noticed


def make_runner(fork: Fork, options: argparse.Namespace, release: str) -> TestRunner:
    """Return the runner for a verb's options."""
    folder = fork.settings.root / RESULTS / release
    only: str = getattr(options, "only", "")
    return TestRunner(folder, options.test_timeout, options.jobs, only)


def _wanted(planned: TestPlan, names: Sequence[str]) -> list[tuple[Suite, str]]:
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


@contextmanager
def progress(text: str, total: int, *, quiet: bool) -> Iterator[Callable[[TestFile], None]]:
    """Show progress over test files; yield the function to call after each file."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console(), disable=quiet)
    with bar:
        task = bar.add_task(text, total=total)

        def step(job: TestFile) -> None:
            bar.update(task, advance=1, description=f"{job.side.name}: {job.path.split('/')[-1]}")

        yield step


def _name(item: ComparedTest) -> str:
    """Return a test and the change of its outcome in words."""
    test = item.test if item.test.startswith(item.path) else f"{item.path}: {item.test}"
    reason = " ".join(item.after.reason.split())[:_REASON]
    return f"{test}: {item.before.outcome} -> {item.after.outcome}: {reason}"


def _print(planned: TestPlan, compared: tuple[ComparedTest, ...]) -> None:
    """Print the changed tests and a table of outcomes."""
    for change in (TestChange.FAILS_ON_BOTH, TestChange.BETTER, TestChange.WORSE):
        changed = [test for test in compared if test.change is change]
        if changed:
            say(f"{change}:", *(f"  {_name(test)}" for test in changed))
    kinds = {test.before.outcome for test in compared} | {test.after.outcome for test in compared}
    shown = [outcome for outcome in Outcome if outcome in kinds]
    rows = []
    for name, (before, after) in counts(compared).items():
        changes = [test.change for test in compared if test.upstream == name]
        for side, numbers in ((PRISTINE, before), (OURS, after)):
            rows.append(
                (
                    str(planned.suites[name][0].upstream),
                    side,
                    *(str(numbers[outcome]) for outcome in shown),
                    str(changes.count(TestChange.WORSE)) if side == OURS else "",
                )
            )
    columns = ("upstream", "tree", *(str(outcome) for outcome in shown), "worse")
    print_table(columns, rows, title=f"release {planned.release}")
    say(f"{counted(len(compared), 'test')} compared")
