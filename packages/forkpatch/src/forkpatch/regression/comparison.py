# SPDX-License-Identifier: Apache-2.0
"""Comparison of upstream's tests on two sides, test by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.regression.runner import FILE, RANKS, Outcome, TestFile, TestResult

_ABSENT = TestResult(Outcome.ABSENT, "it is not collected here")


class TestChange(StrEnum):
    """Change of a test's outcome from one side to the other."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    FAILS_ON_BOTH = "fails on both"


@dataclass(frozen=True)
class ComparedTest:
    """One of upstream's tests on two sides.

    Attributes:
        path: its file.
        test: its pytest id; ``<file>`` for a file that cannot be collected.
        before: on the first side.
        after: on the second side.
    """

    upstream: str
    path: str
    test: str
    change: TestChange
    before: TestResult
    after: TestResult


def compare_files(
    before: Mapping[TestFile, Mapping[str, TestResult]],
    after: Mapping[TestFile, Mapping[str, TestResult]],
) -> tuple[ComparedTest, ...]:
    """Compare what the same files gave on two sides.

    Args:
        before: results by file on the side that is the measure.
        after: results of the same files on the other side.
    """
    others = {(job.suite.upstream.name, job.path): found for job, found in after.items()}
    compared: list[ComparedTest] = []
    for job, results in before.items():
        name = job.suite.upstream.name
        there = others[name, job.path]
        for test in dict.fromkeys([*results, *there]):
            if test == FILE and not (test in results and test in there):
                # Where the file can be collected, its tests are listed one by one.
                continue
            one = results.get(test, _stand_in(results))
            other = there.get(test, _stand_in(there))
            compared.append(ComparedTest(name, job.path, test, change(one, other), one, other))
    return tuple(compared)


def _stand_in(results: Mapping[str, TestResult]) -> TestResult:
    """The outcome of a test that a side does not know: that of its file, if it has one."""
    return results.get(FILE, _ABSENT)


def change(before: TestResult, after: TestResult) -> TestChange:
    """Change of an outcome; a test that is absent on the first side cannot be worse."""
    one, other = RANKS.get(before.outcome, 0), RANKS.get(after.outcome, 0)
    if other < one:
        return TestChange.WORSE
    if other > one:
        return TestChange.BETTER
    return TestChange.FAILS_ON_BOTH if one == 0 else TestChange.SAME


def counts(compared: Iterable[ComparedTest]) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Number of tests by outcome on both sides, by upstream."""
    found: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for one in compared:
        both = found.setdefault(one.upstream, (Counter(), Counter()))
        both[0][one.before.outcome] += 1
        both[1][one.after.outcome] += 1
    return found
