# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest: where the time of the tests goes, beside the budget of each folder.

The seconds of each file are kept in ``out/test-durations.json``; the next run begins with the
longest files, so that no core has to wait for one of them in the end.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from groundwork.files import atomic_write_json

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "out" / "test-durations.json"
BUDGET = ROOT / "tests" / "budget.toml"


class Durations:
    """Seconds of each test file: of the last runs, and of this one."""

    def __init__(self) -> None:
        try:
            self.kept: dict[str, float] = json.loads(KEPT.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.kept = {}
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the longest files first, and files that no run has timed last."""
        items.sort(key=lambda item: -self.kept.get(_file_of(item.nodeid), 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the time of one phase of a test."""
        self.seconds[_file_of(report.nodeid)] += report.duration

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
            terminalreporter.section("folders that took longer than their budget")
        for folder, seconds in sorted(over.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds:6.0f} s of {budget[folder]:4} s  {folder}")
        rounded = {file: round(seconds, 2) for file, seconds in self.seconds.items()}
        atomic_write_json(KEPT, self.kept | rounded)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Durations(), "durations")
