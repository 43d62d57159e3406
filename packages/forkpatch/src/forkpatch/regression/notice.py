# SPDX-License-Identifier: Apache-2.0
"""Upstream's own tests that notice the lack of a patch on our trees."""

from __future__ import annotations

from collections.abc import Mapping

from forkpatch.command import typed
from forkpatch.errors import ForkError
from forkpatch.model.record import SymbolPlace
from forkpatch.regression.comparison import TestChange, compare_files
from forkpatch.regression.runner import Outcome, TestFile, TestRunner
from forkpatch.regression.selection import reason_to_run, touched_by_places
from forkpatch.regression.suite import OURS, Suite, make_side, passing_side
from forkpatch.tree.fork import Fork, TreePlan

_REASON = 200  # characters of a test's reason in a message


class NothingComparedError(ForkError):
    """All upstream tests that touch a patch fail with the patch, too."""


def noticing_tests(
    fork: Fork,
    plans: Mapping[str, TreePlan],
    suites: Mapping[str, Suite],
    runner: TestRunner,
    patch: tuple[str, str, tuple[SymbolPlace, ...]],
) -> tuple[str, ...] | None:
    """Return the upstream tests with a worse result without a patch.

    ``patch`` is the patch's upstream, its name, and the places that it changes.

    Returns:
        The ids of the tests; None when no listed test touches the patch's changes.

    Raises:
        NothingComparedError: all tests that touch the changes fail on our trees already.
    """
    upstream, name, places = patch
    files = []
    for suite in suites.values():
        touched = touched_by_places(places, suite.table)
        for path in suite.table.run:
            data = suite.files.get(path)
            if data is not None and reason_to_run(data, touched, suite.table, wide=False):
                files.append((suite, path))
    if not files:
        return None
    ours = make_side(fork, plans, OURS, {})
    gone = [name, *plans[upstream].weave.dependents([name])]
    whole = runner.run([TestFile(suite, ours, path) for suite, path in files])
    results = [result for file_results in whole.values() for result in file_results.values()]
    if not any(result.outcome is Outcome.PASSED for result in results):
        reason = next((result.reason for result in results if result.reason), "there is no result")
        raise NothingComparedError(
            f"{name}: no upstream test that touches it passes on our trees:"
            f" {' '.join(reason.split())[:_REASON]}",
            remedy=f"all of them, with the reason of each: {typed('upstream-tests')}",
        )
    with passing_side(fork, plans, upstream, name, gone) as without:
        reduced = runner.run([TestFile(suite, without, path) for suite, path in files])
    compared = compare_files(whole, reduced)
    return tuple(item.test for item in compared if item.change is TestChange.WORSE)
