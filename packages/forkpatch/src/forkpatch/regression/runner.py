# SPDX-License-Identifier: Apache-2.0
"""Runs of upstream's test files, each in a process of its own, test by test on record.

A test that crashes the interpreter, or runs out of time, affects its own outcome only: the file is
continued at the next test. So is a file whose run was interrupted.
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
_LOOK = 0.2  # seconds between two looks at a running test
_TAIL = 1000  # characters of a process's last words
FILE = "<file>"  # the id of a test file that cannot be collected


class Outcome(StrEnum):
    """Outcome of one test."""

    PASSED = "passed"
    EXPECTED = "expected failure"
    SKIPPED = "skipped"
    FAILED = "failed"
    CRASHED = "crashed"
    ENDLESS = "timed out"
    ABSENT = "absent"


#: How good an outcome is; one that sinks is worse.
RANKS = {Outcome.PASSED: 2, Outcome.EXPECTED: 1, Outcome.SKIPPED: 1}


@dataclass(frozen=True)
class TestResult:
    """Outcome of one test, with its reason unless it passed."""

    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TestFile:
    """One test file on one side."""

    suite: Suite
    side: Side
    path: str


@dataclass
class TestRunner:
    """Runner of test files.

    Attributes:
        results: folder in which records are kept, from run to run.
        timeout: seconds that one test may take, and the import of a file.
        jobs: files that run at the same time.
        only: a part of the ids of the tests to run; empty for all of a file.
    """

    results: Path
    timeout: float
    jobs: int = 1
    only: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(
        self, jobs: Sequence[TestFile], ended: Callable[[TestFile], None] = lambda _: None
    ) -> dict[TestFile, dict[str, TestResult]]:
        """Run files, as many at a time as ``jobs`` says; what is on record is not run again.

        Another run that writes the same records is waited for.

        Args:
            jobs: the files.
            ended: called after each.

        Returns:
            the results by test; those of a file that cannot be collected under ``<file>``.
        """
        found = {}
        self.results.mkdir(parents=True, exist_ok=True)
        with (
            locked(self.results / _LOCK, str(self.results)),
            ThreadPoolExecutor(max_workers=self.jobs) as pool,
        ):
            tasks = {pool.submit(self._run_file, job): job for job in jobs}
            try:
                for task in as_completed(tasks):
                    found[tasks[task]] = task.result()
                    ended(tasks[task])
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return {job: found[job] for job in jobs}

    def record_of(self, job: TestFile) -> Path:
        """The file that a job's outcomes are written to."""
        name = job.path.replace("/", ".").removesuffix(".py")
        return self.results / job.side.name / job.suite.upstream.name / f"{name}.jsonl"

    def _run_file(self, job: TestFile) -> dict[str, TestResult]:
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
            ended, said = self._run_process(job, record)
            after = read_record(record)
            if self._stop.is_set():
                break  # an interrupt says nothing of a test
            if ended and not self.only:
                _append(record, {"ended": True})
            elif not (ended or after.ended) and len(after.results) == len(state.results):
                _append(record, {"uncollected": Outcome.CRASHED, "reason": said})
        found = read_record(record).results
        return {test: one for test, one in found.items() if self.only in test or test == FILE}

    def _run_process(self, job: TestFile, record: Path) -> tuple[bool, str]:
        """Run pytest until its end, or the end of a test's time.

        Returns:
            True when it came to its end by itself, with every test; and its last words.
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
        said = record.with_suffix(".log").read_bytes().decode("utf-8", "replace").strip()[-_TAIL:]
        begun = read_record(record).begun
        if begun:
            outcome = Outcome.ENDLESS if reason else Outcome.CRASHED
            why = reason or f"{_ending(process.returncode)}: {said[-300:]}"
            if not self._stop.is_set():
                _append(record, {"test": begun, "outcome": outcome, "reason": why, "seconds": 0})
        ended = not begun and not reason and process.returncode in (0, 1, 5)
        return ended, reason or f"{_ending(process.returncode)}: {said}"

    def _watch(self, process: subprocess.Popen[bytes], record: Path) -> str:
        """Wait; returns why the process has to be ended, empty when it ended by itself."""
        size, since = -1, time.monotonic()
        while process.poll() is None:
            now = record.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > self.timeout:
                return f"no end within {self.timeout:.0f} s"
            if self._stop.wait(_LOOK):
                return "interrupted"
        return ""


@dataclass
class RecordState:
    """State of a record.

    Attributes:
        results: outcomes by test.
        begun: the test that began and has no outcome.
        ended: nothing is left to be run.
    """

    results: dict[str, TestResult] = field(default_factory=dict)
    begun: str = ""
    ended: bool = False


def read_record(record: Path) -> RecordState:
    """Read what a recorder and its runner wrote."""
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
    """The whole lines of a record; one that was being written when its process died is not."""
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
    _end_line(record)
    with record.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")


def _end_line(record: Path) -> None:
    """End the line at which a process died: what follows is a line of its own."""
    if not record.read_bytes().endswith(b"\n"):
        with record.open("ab") as file:
            file.write(b"\n")


def _order(job: TestFile) -> list[str]:
    """The upstreams, that of the test file first."""
    own = job.suite.upstream.name
    return [own, *(name for name in job.side.trees if name != own)]


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
