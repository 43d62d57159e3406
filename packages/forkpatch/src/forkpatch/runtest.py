# SPDX-License-Identifier: Apache-2.0
"""Run one pytest test, with its outcome as exit code.

pytest exits with 0 when its only test was skipped, so that a test that cannot run would count as
passed. It exits with 1 when the test's setup failed, which proves nothing.
"""

from __future__ import annotations

import sys

PASSED = 0
FAILED = 1
NOT_RUN = 77  # automake's code for a skipped test


class _Outcomes:
    """A pytest plugin that collects outcomes and reasons."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.reasons: list[str] = []

    def pytest_runtest_logreport(self, report: object) -> None:
        outcome = str(getattr(report, "outcome", ""))
        called = getattr(report, "when", "") == "call"
        if called:
            self.seen.add(outcome)
        if outcome == "skipped" or (outcome == "failed" and not called):
            self.reasons.append(str(getattr(report, "longrepr", "")))


def main(arguments: list[str]) -> int:
    """Run the test; return PASSED, FAILED, or NOT_RUN if it was skipped or its setup failed."""
    import pytest  # noqa: PLC0415 - for this verb only

    outcomes = _Outcomes()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *arguments], plugins=[outcomes])
    if code == pytest.ExitCode.TESTS_FAILED and "failed" in outcomes.seen:
        return FAILED
    if code == pytest.ExitCode.OK and "passed" in outcomes.seen:
        return PASSED
    print(*outcomes.reasons, sep="\n")
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
