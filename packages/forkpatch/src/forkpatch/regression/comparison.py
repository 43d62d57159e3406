# SPDX-License-Identifier: Apache-2.0
"""Comparison of the results of upstream's tests on two sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from forkpatch.regression.runner import FILE, RANKS, Outcome, TestFile, TestResult

_ABSENT = TestResult(Outcome.ABSENT, "it is not collected here")


class TestChange(StrEnum):
    """Change of a test's outcome from the first side to the second side."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    FAILS_ON_BOTH = "fails on both"


@dataclass(frozen=True)
class ComparedTest:
    """Results of one of upstream's tests on two sides.

    Attributes:
        path: path of the test file.
        test: pytest id of the test; ``<file>`` for a file that cannot be collected.
        before: result on the first side.
        after: result on the second side.
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
    """Compare the results of the same files on two sides, test by test."""
    sides_after = {(job.suite.upstream.name, job.path): tests for job, tests in after.items()}
    compared: list[ComparedTest] = []
    for job, results in before.items():
        name = job.suite.upstream.name
        other_results = sides_after[name, job.path]
        for test in dict.fromkeys([*results, *other_results]):
            if test == FILE and not (test in results and test in other_results):
                # A side that collected the file lists each test.
                continue
            old = results.get(test, _stand_in(results))
            new = other_results.get(test, _stand_in(other_results))
            compared.append(ComparedTest(name, job.path, test, change(old, new), old, new))
    return tuple(compared)


def _stand_in(results: Mapping[str, TestResult]) -> TestResult:
    """Return the outcome of a test that a side lacks: the outcome of its file, else absent."""
    return results.get(FILE, _ABSENT)


def change(before: TestResult, after: TestResult) -> TestChange:
    """Return the change of an outcome; a test absent on the first side cannot become worse."""
    old_rank, new_rank = RANKS.get(before.outcome, 0), RANKS.get(after.outcome, 0)
    if new_rank < old_rank:
        return TestChange.WORSE
    if new_rank > old_rank:
        return TestChange.BETTER
    return TestChange.FAILS_ON_BOTH if old_rank == 0 else TestChange.SAME


def counts(compared: Iterable[ComparedTest]) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Return the number of tests by outcome on both sides, by upstream."""
    numbers: dict[str, tuple[Counter[str], Counter[str]]] = {}
    for test in compared:
        both = numbers.setdefault(test.upstream, (Counter(), Counter()))
        both[0][test.before.outcome] += 1
        both[1][test.after.outcome] += 1
    return numbers
