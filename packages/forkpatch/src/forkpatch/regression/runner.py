# SPDX-License-Identifier: Apache-2.0
"""Runs of upstream's test files, each in its own process, with a record of each test.

A test that crashes the interpreter, or runs out of time, affects only its own outcome: the file
continues with the next test. An interrupted file continues in the next run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from forkpatch.regression.suite import Side, Suite, plugin_folder, pytest_options, suite_key
from groundwork.files import atomic_write
from groundwork.locks import locked

_LOCK = ".lock"
_LOOK = 0.2  # seconds between two checks of a running test
_TAIL = 1000  # characters kept from the end of a process's output
FILE = "<file>"  # test id of a file that cannot be collected


class Outcome(StrEnum):
    """Outcome of a test."""

    PASSED = "passed"
    EXPECTED = "expected failure"
    SKIPPED = "skipped"
    FAILED = "failed"
    CRASHED = "crashed"
    ENDLESS = "timed out"
    ABSENT = "absent"


#: Rank of each outcome, higher is better; 0 for the other outcomes.
RANKS = {Outcome.PASSED: 2, Outcome.EXPECTED: 1, Outcome.SKIPPED: 1}


@dataclass(frozen=True)
class TestResult:
    """Outcome of a test, with its reason unless it passed."""

    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TestFile:
    """A test file on a side."""

    suite: Suite
    side: Side
    path: str


@dataclass
class TestRunner:
    """Runner of test files.

    Attributes:
        results: folder of the records, which is kept between runs.
        timeout: most seconds for one test, and for the import of a file.
        jobs: number of files that run at the same time.
        only: part of the ids of the tests to run; empty for all tests.
    """

    results: Path
    timeout: float
    jobs: int = 1
    only: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(
        self, jobs: Sequence[TestFile], ended: Callable[[TestFile], None] = lambda _: None
    ) -> dict[TestFile, dict[str, TestResult]]:
        """Run files in parallel, except the tests that are on record.

        If another run writes the same records, this run waits for its end.

        Another run that writes the same records is waited for.

        ``ended`` is called after each file.

        Returns:
            Results by test for each file; under ``<file>`` for a file that cannot be collected.
        """
        results = {}
        self.results.mkdir(parents=True, exist_ok=True)
        with (
            locked(self.results / _LOCK, str(self.results)),
            ThreadPoolExecutor(max_workers=self.jobs) as pool,
        ):
            tasks = {pool.submit(self._run_file, job): job for job in jobs}
            try:
                for task in as_completed(tasks):
                    results[tasks[task]] = task.result()
                    ended(tasks[task])
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return {job: results[job] for job in jobs}

    def record_of(self, job: TestFile) -> Path:
        """Return the path of the record of a test file."""
        name = job.path.replace("/", ".").removesuffix(".py")
        return self.results / job.side.name / job.suite.upstream.name / f"{name}.jsonl"

    def _run_file(self, job: TestFile) -> dict[str, TestResult]:
        """Run a test file until its end or an interrupt; return the results by test."""
        record = self.record_of(job)
        record.parent.mkdir(parents=True, exist_ok=True)
        key = {"key": suite_key(job.suite, job.side, job.path)}
        if next(_lines(record), None) != key:
            atomic_write(record, json.dumps(key) + "\n")
        ended = False
        while not (ended or self._stop.is_set()):
            state = read_record(record)
            if state.ended:
                break
            _end_line(record)
            ended, output = self._run_process(job, record)
            after = read_record(record)
            if self._stop.is_set():
                break  # an interrupt is no outcome of a test
            if ended and not self.only:
                _append(record, {"ended": True})
            elif not (ended or after.ended) and len(after.results) == len(state.results):
                _append(record, {"uncollected": Outcome.CRASHED, "reason": output})
        tests = read_record(record).results
        return {test: item for test, item in tests.items() if self.only in test or test == FILE}

    def _run_process(self, job: TestFile, record: Path) -> tuple[bool, str]:
        """Run pytest until its end, or until a test's time is up.

        Returns:
            True if pytest ended by itself, with every test; and the end of its output.
        """
        suite = job.suite
        pythons = [job.side.trees[name] / suite.table.python for name in _order(job)]
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTHONPATH")},
            **suite.table.variables(),
            "PYTHONPATH": os.pathsep.join(map(str, [*pythons, plugin_folder(suite)])),
            "FORKPATCH_RECORD": str(record),
            "FORKPATCH_BEFORE": suite.table.before,
            "FORKPATCH_ONLY": self.only,
        }
        with (record.with_suffix(".log")).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *pytest_options(suite), job.path],
                cwd=suite.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                reason = self._watch(process, record)
            finally:
                _kill(process)
        output = record.with_suffix(".log").read_bytes().decode("utf-8", "replace").strip()[-_TAIL:]
        begun = read_record(record).begun
        if begun:
            outcome = Outcome.ENDLESS if reason else Outcome.CRASHED
            why = reason or f"{_ending(process.returncode)}: {output[-300:]}"
            if not self._stop.is_set():
                _append(record, {"test": begun, "outcome": outcome, "reason": why, "seconds": 0})
        ended = not begun and not reason and process.returncode in (0, 1, 5)
        return ended, reason or f"{_ending(process.returncode)}: {output}"

    def _watch(self, process: subprocess.Popen[bytes], record: Path) -> str:
        """Wait for a process; return why it must be ended, empty when it ended by itself."""
        size, since = -1, time.monotonic()
        while process.poll() is None:
            current = record.stat().st_size
            if current != size:
                size, since = current, time.monotonic()
            if time.monotonic() - since > self.timeout:
                return f"no end within {self.timeout:.0f} s"
            if self._stop.wait(_LOOK):
                return "interrupted"
        return ""


@dataclass
class RecordState:
    """State of a record.

    Attributes:
        results: results by test.
        begun: the test that began but has no outcome.
        ended: True when no test is left to run.
    """

    results: dict[str, TestResult] = field(default_factory=dict)
    begun: str = ""
    ended: bool = False


def read_record(record: Path) -> RecordState:
    """Return the state of a record that a recorder and its runner wrote."""
    state = RecordState()
    broken: TestResult | None = None
    for line in _lines(record):
        if "begun" in line:
            state.begun = line["begun"]
        elif "test" in line:
            outcome = Outcome(line["outcome"])
            state.results[line["test"]] = TestResult(outcome, line["reason"], line["seconds"])
            state.begun = ""
        elif "uncollected" in line:
            broken = TestResult(Outcome(line["uncollected"]), line["reason"])
            state.ended = True
        elif "ended" in line:
            state.ended = True
    if broken is not None:
        state.results[FILE] = broken
    return state


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a record; a dying process may leave an incomplete line."""
    if not record.is_file():
        return
    for line in record.read_text("utf-8").split("\n")[:-1]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _append(record: Path, line: Mapping[str, Any]) -> None:
    """Append a line to a record."""
    _end_line(record)
    with record.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")


def _end_line(record: Path) -> None:
    """End an incomplete line of a dead process, so that a new line can follow."""
    if not record.read_bytes().endswith(b"\n"):
        with record.open("ab") as file:
            file.write(b"\n")


def _order(job: TestFile) -> list[str]:
    """Return the upstreams' names, with the upstream of the test file first."""
    first = job.suite.upstream.name
    return [first, *(name for name in job.side.trees if name != first)]


def _ending(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is not None and code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its child processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
