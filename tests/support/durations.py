# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest: CPU seconds of the tests, beside the budget of each folder.

CPU seconds, of the test's process and of the processes that it has waited for, do not depend on
other work of the machine. The seconds of each file are kept in ``out/test-durations.json``; the
next run begins with the longest files, so that no core has to wait for one of them in the end.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from groundwork.files import atomic_write_json

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "out" / "test-durations.json"
BUDGET = ROOT / "tests" / "budget.toml"


class Durations:
    """CPU seconds of each test file: of the last runs, and of this one."""

    def __init__(self) -> None:
        try:
            self.kept: dict[str, float] = json.loads(KEPT.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.kept = {}
        self.seconds: Counter[str] = Counter()
        self.used = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the longest files first, and files that no run has timed last."""
        self.used = _cpu_seconds()
        items.sort(key=lambda item: -self.kept.get(_file_of(item.nodeid), 0.0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> None:
        """Note the CPU seconds since the last phase of a test: its own; ``--junitxml`` has them."""
        before, self.used = self.used, _cpu_seconds()
        item.user_properties.append(("cpu", round(self.used - before, 2)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the phases of a test: the report of its last one has the notes of all."""
        if report.when == "teardown":
            phases = (value for name, value in report.user_properties if name == "cpu")
            self.seconds[_file_of(report.nodeid)] += sum(phases)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show folders that exceed their budget, and keep the seconds of this run."""
        if not self.seconds:
            return
        budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["seconds"]
        spent: Counter[str] = Counter()
        for file, seconds in self.seconds.items():
            folder = max((f for f in budget if file.startswith(f"{f}/")), key=len, default="")
            spent[folder] += seconds
        over = {folder: s for folder, s in spent.items() if folder and s > budget[folder]}
        if over:
            terminalreporter.section("folders that took more CPU seconds than their budget")
        for folder, seconds in sorted(over.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds:6.0f} s of {budget[folder]:4} s  {folder}")
        rounded = {file: round(seconds, 2) for file, seconds in self.seconds.items()}
        atomic_write_json(KEPT, self.kept | rounded)


def _cpu_seconds() -> float:
    """CPU seconds of this process, and of all that it has waited for."""
    return sum(os.times()[:4])


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Durations(), "durations")
