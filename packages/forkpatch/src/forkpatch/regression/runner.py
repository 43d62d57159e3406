# SPDX-License-Identifier: Apache-2.0
"""Runs of upstream's test files, each in its own process, and comparisons of their results.

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
_RANKS = {Outcome.PASSED: 2, Outcome.EXPECTED: 1, Outcome.SKIPPED: 1}


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


#: Results of a file by test; under FILE for a file that cannot be collected.
Results = Mapping[str, TestResult]


@dataclass
class _Record:
    """Record of a test file, which the recorder and the runner write: a line of JSON an event."""

    path: Path
    results: dict[str, TestResult] = field(default_factory=dict)
    begun: str = ""  # the test that began but has no outcome
    ended: bool = False

    def read(self) -> _Record:
        """Return the record with the present state of its file."""
        now = _Record(self.path)
        for line in _lines(self.path):
            if "begun" in line:
                now.begun = line["begun"]
            elif "test" in line:
                outcome = Outcome(line["outcome"])
                now.results[line["test"]] = TestResult(outcome, line["reason"], line["seconds"])
                now.begun = ""
            elif "uncollected" in line:
                now.results[FILE] = TestResult(Outcome(line["uncollected"]), line["reason"])
            now.ended |= "uncollected" in line or "ended" in line
        return now

    def add(self, **line: object) -> None:
        """Append a line, after the end of a line that a dead process left."""
        start = b"" if self.path.read_bytes().endswith(b"\n") else b"\n"
        with self.path.open("ab") as file:
            file.write(start + (json.dumps(line).encode() + b"\n" if line else b""))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a record; a dying process may leave an incomplete line."""
    for line in path.read_text("utf-8").split("\n")[:-1] if path.is_file() else ():
        with suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


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
    ) -> dict[TestFile, Results]:
        """Run files in parallel, except the tests that are on record; wait for another run.

        ``ended`` is called after each file.
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

    def _run_file(self, job: TestFile) -> Results:
        """Run a test file until its end or an interrupt."""
        name = f"{job.path.replace('/', '.').removesuffix('.py')}.jsonl"
        path = self.results / job.side.name / job.suite.upstream.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        key = {"key": suite_key(job.suite, job.side, job.path)}
        if next(_lines(path), None) != key:
            atomic_write(path, json.dumps(key) + "\n")
        record = _Record(path).read()
        while not (record.ended or self._stop.is_set()):
            record.add()
            ended, output = self._run_process(job, record)
            now = record.read()
            if ended and self.only:
                record = now
                break
            if ended:
                record.add(ended=True)
            elif not (self._stop.is_set() or now.ended) and len(now.results) == len(record.results):
                record.add(uncollected=Outcome.CRASHED, reason=output)
            record = record.read()
        tests = record.results
        return {test: item for test, item in tests.items() if self.only in test or test == FILE}

    def _run_process(self, job: TestFile, record: _Record) -> tuple[bool, str]:
        """Run pytest until its end, or until a test's time is up.

        Returns:
            True if pytest ended by itself, with every test; and the end of its output.
        """
        suite, first = job.suite, job.suite.upstream.name
        trees = [first, *(name for name in job.side.trees if name != first)]
        pythons = [job.side.trees[name] / suite.table.python for name in trees]
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTHONPATH")},
            **suite.table.variables(),
            "PYTHONPATH": os.pathsep.join(map(str, [*pythons, plugin_folder(suite)])),
            "FORKPATCH_RECORD": str(record.path),
            "FORKPATCH_BEFORE": suite.table.before,
            "FORKPATCH_ONLY": self.only,
        }
        log_path = record.path.with_suffix(".log")
        with log_path.open("wb") as log:
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
                reason = self._watch(process, record.path)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        output = log_path.read_bytes().decode("utf-8", "replace").strip()[-_TAIL:]
        ending = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        begun = record.read().begun
        if begun and not self._stop.is_set():
            outcome = Outcome.ENDLESS if reason else Outcome.CRASHED
            why = reason or f"{ending}: {output[-300:]}"
            record.add(test=begun, outcome=outcome, reason=why, seconds=0)
        ended = not begun and not reason and code in (0, 1, 5)
        return ended, reason or f"{ending}: {output}"

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
    before: Mapping[TestFile, Results], after: Mapping[TestFile, Results]
) -> tuple[ComparedTest, ...]:
    """Compare the results of the same files on two sides, test by test.

    A test that a side lacks has the outcome of its file there, else it is absent.
    """
    compared: list[ComparedTest] = []
    absent = TestResult(Outcome.ABSENT, "it is not collected here")
    for (job, first), second in zip(before.items(), after.values(), strict=True):
        # A side that collected the file lists each test.
        both = FILE in first and FILE in second
        for test in (one for one in dict.fromkeys([*first, *second]) if one != FILE or both):
            old, new = (side.get(test, side.get(FILE, absent)) for side in (first, second))
            where = job.suite.upstream.name, job.path, test
            compared.append(ComparedTest(*where, _change(old, new), old, new))
    return tuple(compared)


def _change(before: TestResult, after: TestResult) -> TestChange:
    """Return the change of an outcome; a test absent on the first side cannot become worse."""
    old, new = _RANKS.get(before.outcome, 0), _RANKS.get(after.outcome, 0)
    if new == old:
        return TestChange.SAME if old else TestChange.FAILS_ON_BOTH
    return TestChange.BETTER if new > old else TestChange.WORSE
