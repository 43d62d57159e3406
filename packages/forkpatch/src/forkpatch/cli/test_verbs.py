# SPDX-License-Identifier: Apache-2.0
"""The verb upstream-tests: upstream's own tests on the pristine tree and on ours."""

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
_REASON = 110  # characters of a reason that a table shows


@dataclass(frozen=True)
class TestPlan:
    """Upstream's tests of one release, ready to be run.

    Attributes:
        plans: the planned tree of each upstream that is there.
        suites: the tests of each upstream whose tests are there, with the choice among them.
    """

    release: str
    plans: dict[str, TreePlan]
    suites: dict[str, tuple[Suite, Choice]]


def register(verbs: Registry) -> None:
    """Add this verb to the command line."""
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
        wrong += [f"worse: {_name(one)}" for one in compared if one.change is TestChange.WORSE]
        if not any(one.before.outcome is Outcome.PASSED for one in compared):
            wrong.append("no test passes on the pristine trees: nothing was compared")
    warn(*wrong)
    return 1 if wrong else 0


def plan_tests(fork: Fork, options: argparse.Namespace) -> TestPlan:
    """Plan the trees of a release, and lay out the tests that are to be had.

    Raises:
        NoSuiteError: no upstream's tests are.
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
        places = [one for group in record_of(fork, plan).patches.values() for one in group]
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
    sides = [make_side(fork, planned.plans, name, {}) for name in (PRISTINE, OURS)]
    files = _wanted(planned, options.files)
    jobs = [[TestFile(suite, side, path) for suite, path in files] for side in sides]
    runner = make_runner(fork, options, planned.release)
    with progress("upstream's tests", sum(map(len, jobs)), quiet=options.json == "-") as step:
        found = runner.run([job for both in zip(*jobs, strict=True) for job in both], step)
    before, after = ({job: found[job] for job in one} for one in jobs)
    return compare_files(before, after)


def noticing(
    fork: Fork, options: argparse.Namespace
) -> Callable[[str, str], tuple[str, ...] | None]:
    """Gives for an upstream and its patch the tests of upstream's that are worse without it."""
    planned = plan_tests(fork, options)
    suites = {name: suite for name, (suite, _) in planned.suites.items()}
    runner = make_runner(fork, options, planned.release)
    records = {name: record_of(fork, plan) for name, plan in planned.plans.items()}

    def noticed(upstream: str, patch: str) -> tuple[str, ...] | None:
        places = records[upstream].patches[patch]
        return noticing_tests(fork, planned.plans, suites, runner, (upstream, patch, places))

    return noticed


def make_runner(fork: Fork, options: argparse.Namespace, release: str) -> TestRunner:
    """The runner that a verb's options ask for."""
    folder = fork.settings.root / RESULTS / release
    only: str = getattr(options, "only", "")
    return TestRunner(folder, options.test_timeout, options.jobs, only)


def _wanted(planned: TestPlan, names: Sequence[str]) -> list[tuple[Suite, str]]:
    """The test files to run, of each suite those that this version has."""
    found = []
    for suite, choice in planned.suites.values():
        for path in suite.table.run:
            if path in suite.absent:
                warn(f"not run: {path}: the mirror of {suite.upstream.name} does not have it")
            elif path not in choice.lost and (not names or any(name in path for name in names)):
                found.append((suite, path))
    if not found:
        raise UserError(
            f"no test file on the lists has {' or '.join(names) or 'a name'}",
            remedy=f"lists: patches/UPSTREAM/{TABLE}",
        )
    return found


@contextmanager
def progress(text: str, total: int, *, quiet: bool) -> Iterator[Callable[[TestFile], None]]:
    """Progress over test files; gives what is to be called after each."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console(), disable=quiet)
    with bar:
        task = bar.add_task(text, total=total)

        def step(job: TestFile) -> None:
            bar.update(task, advance=1, description=f"{job.side.name}: {job.path.split('/')[-1]}")

        yield step


def _name(one: ComparedTest) -> str:
    """A test and what became of it."""
    test = one.test if one.test.startswith(one.path) else f"{one.path}: {one.test}"
    reason = " ".join(one.after.reason.split())[:_REASON]
    return f"{test}: {one.before.outcome} -> {one.after.outcome}: {reason}"


def _print(planned: TestPlan, compared: tuple[ComparedTest, ...]) -> None:
    for change in (TestChange.FAILS_ON_BOTH, TestChange.BETTER, TestChange.WORSE):
        those = [one for one in compared if one.change is change]
        if those:
            say(f"{change}:", *(f"  {_name(one)}" for one in those))
    met = {one.before.outcome for one in compared} | {one.after.outcome for one in compared}
    shown = [outcome for outcome in Outcome if outcome in met]
    rows = []
    for name, (before, after) in counts(compared).items():
        changes = [one.change for one in compared if one.upstream == name]
        for side, found in ((PRISTINE, before), (OURS, after)):
            rows.append(
                (
                    str(planned.suites[name][0].upstream),
                    side,
                    *(str(found[outcome]) for outcome in shown),
                    str(changes.count(TestChange.WORSE)) if side == OURS else "",
                )
            )
    columns = ("upstream", "tree", *(str(outcome) for outcome in shown), "worse")
    print_table(columns, rows, title=f"release {planned.release}")
    say(f"{counted(len(compared), 'test')} compared")
