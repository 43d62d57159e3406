# SPDX-License-Identifier: Apache-2.0
"""Runs of upstream's test files on two sides, and their comparison.

Each file has a pytest of its own. pytest-xdist goes on with the next test after a crash, and
pytest-timeout ends a test without end like a crash.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from groundwork.hashing import digest
from sessions.options import mistake
from sessions.upstream_suite import BEFORE, Suite, Table, run_git

FILE = "<file>"  # test id of a file that cannot be collected
_CRASHES = 30  # of tests in a file, after which the rest is not run
_PATIENCE = 20  # times of a test that a whole file may take
_TAIL = 300  # characters kept from the end of a process's output


class Outcome(StrEnum):
    """Outcome of a test."""

    PASSED = "passed"
    EXPECTED = "expected failure"
    SKIPPED = "skipped"
    FAILED = "failed"
    CRASHED = "crashed"
    ABSENT = "absent"


#: Rank of each outcome, higher is better; 0 for the other outcomes.
_RANKS = {Outcome.PASSED: 2, Outcome.EXPECTED: 1, Outcome.SKIPPED: 1}


@dataclass(frozen=True)
class Result:
    """Outcome of a test, with its reason unless it passed."""

    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Side:
    """Trees of all upstreams, by name, and the packages beside them.

    Attributes:
        name: ``pristine``, ``ours`` or ``without``.
        packages: the folder of the installed packages.
    """

    name: str
    trees: Mapping[str, Path]
    packages: Path

    @property
    def key(self) -> str:
        """Hash of the trees' contents, and of the names and versions of the packages."""
        ids = [run_git(tree / ".git", "rev-parse", "HEAD^{tree}") for tree in self.trees.values()]
        return digest(*ids, *sorted(path.name for path in self.packages.glob("*.dist-info")))

    def variables(self, table: Table) -> dict[str, str]:
        """Return the environment variables of the tests' processes.

        Raises:
            CommandError: no package has a folder that the table names.
        """
        values = dict(table.environment)
        for name, folder in table.folders.items():
            if not (self.packages / folder).is_dir():
                raise mistake(f"{name}: no package has a folder {folder}", "install its package")
            values[name] = str(self.packages / folder)
        return values


@dataclass(frozen=True)
class SuiteFile:
    """A test file on a side."""

    suite: Suite
    side: Side
    path: str


#: Results of a file by test; under FILE for a file that cannot be collected.
Results = Mapping[str, Result]


class Runner:
    """Runner of test files.

    Args:
        python: the Python that has pytest, pytest-xdist and pytest-timeout.
        results: folder of the results, which are kept until an input of the tests changes.
        timeout: most seconds for a test.
        jobs: number of files that run at the same time.
        only: expression of pytest's ``-k`` that chooses tests; their results are not kept.
    """

    def __init__(
        self, python: Path, results: Path, timeout: float, jobs: int = 1, only: str = ""
    ) -> None:
        self._python, self._results, self._timeout = python, results, timeout
        self._jobs, self._only = jobs, only
        self._running = set[subprocess.Popen[bytes]]()

    def run(self, files: Sequence[SuiteFile]) -> dict[SuiteFile, Results]:
        """Return the results of each file; run those without kept results."""
        keys = {file.side: file.side.key for file in files}
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                found = pool.map(lambda file: self._results_of(file, keys[file.side]), files)
                return dict(zip(files, found, strict=True))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in self._running:
                    _end(process)
                raise

    def _results_of(self, file: SuiteFile, side_key: str) -> Results:
        suite, settings = file.suite, repr(file.side.variables(file.suite.table))
        helpers = [
            data
            for path, data in sorted(suite.files.items())
            if path == file.path or not PurePosixPath(path).name.startswith("test_")
        ]
        folder = self._results / file.side.name / suite.upstream
        name, only = file.path.replace("/", "."), self._only
        key = digest(side_key, settings, suite.table.before, suite.table.python, only, *helpers)
        kept = folder / f"{name}.{key}.xml"
        if not kept.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            new = kept.with_suffix(".new")
            new.unlink(missing_ok=True)
            output = self._pytest(file, new)
            if not new.is_file() or (output and not read_results(new, file.path)):
                return {FILE: Result(Outcome.CRASHED, output)}
            for old in folder.glob(f"{name}.*.xml"):
                old.unlink()
            new.rename(kept)
        return read_results(kept, file.path)

    def _pytest(self, file: SuiteFile, report: Path) -> str:
        """Run pytest on a file; return why it did not end as usual, empty when it did."""
        suite, trees = file.suite, file.side.trees
        first = suite.upstream
        pythons = [trees[name] / suite.table.python for name in sorted(trees, key=first.__ne__)]
        settings = suite.folder / "pyproject.toml"
        if b"[tool.pytest" not in suite.files.get(settings.name, b""):
            settings = suite.plugins / "pytest.ini"
        command = [
            *(str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", BEFORE),
            *("-p", "xdist", "-n", "1", f"--max-worker-restart={_CRASHES}"),
            *("-p", "timeout", f"--timeout={self._timeout}", "--timeout-method=thread"),
            *("-c", str(settings), "--rootdir", str(suite.folder)),
            *("--confcutdir", str(suite.folder), f"--junitxml={report}"),
            *(["-k", self._only] if self._only else []),
            file.path,
        ]
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTHONPATH")}
        environment = {
            **kept,
            **file.side.variables(suite.table),
            "PYTHONPATH": os.pathsep.join(map(str, [*pythons, suite.plugins])),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            command,
            cwd=suite.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            out, _ = process.communicate(timeout=self._timeout * _PATIENCE)
        except subprocess.TimeoutExpired:
            return f"no end within {self._timeout * _PATIENCE:.0f} s"
        finally:
            _end(process)
            self._running.discard(process)
        said = out.decode("utf-8", "replace").strip()[-_TAIL:]
        return "" if process.returncode in (0, 1, 5) else f"exit code {process.returncode}: {said}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def read_results(report: Path, path: str) -> dict[str, Result]:
    """Return the results of a test file in pytest's JUnit report, by test."""
    module, found = path.removesuffix(".py").replace("/", "."), dict[str, Result]()
    for case in ElementTree.parse(report).iter("testcase"):
        scope, name = case.get("classname", ""), case.get("name", "")
        inner = scope.removeprefix(module).split(".")[1:]
        test, result = "::".join((path, *inner, name)) if scope else FILE, _result(case)
        # The tear-down of a test may be a case of its own.
        if test not in found or found[test].outcome is Outcome.PASSED:
            found[test] = result
    return found


def _result(case: ElementTree.Element) -> Result:
    """Return the result of a test from its element in a JUnit report."""
    part = next((one for one in case if one.tag in ("error", "failure", "skipped")), None)
    if part is None:
        return Result(Outcome.PASSED)
    reason = part.get("message", "")
    if part.tag == "skipped":
        is_expected = part.get("type") == "pytest.xfail"
        return Result(Outcome.EXPECTED if is_expected else Outcome.SKIPPED, reason)
    if "crashed while running" in reason:
        return Result(Outcome.CRASHED, reason)
    errors = [line[2:].strip() for line in (part.text or "").splitlines() if line[:2] == "E "]
    return Result(Outcome.FAILED, errors[-1] if part.tag == "error" and errors else reason)


class Change(StrEnum):
    """Change of a test's outcome from the first side to the second side."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    FAILS_ON_BOTH = "fails on both"


@dataclass(frozen=True)
class ComparedTest:
    """Results of one of upstream's tests on two sides; FILE is a file that cannot be collected."""

    upstream: str
    path: str
    test: str
    change: Change
    before: Result
    after: Result

    def __str__(self) -> str:
        test = self.test if self.test.startswith(self.path) else f"{self.path}: {self.test}"
        reason = " ".join(self.after.reason.split())[:110]
        return f"{test}: {self.before.outcome} -> {self.after.outcome}: {reason}"


def compare(
    before: Mapping[SuiteFile, Results], after: Mapping[SuiteFile, Results]
) -> list[ComparedTest]:
    """Compare the results of the same files on two sides, test by test.

    A test that a side lacks has the outcome of its file there, else it is absent.
    """
    compared = []
    absent = Result(Outcome.ABSENT, "it is not collected here")
    for (file, first), second in zip(before.items(), after.values(), strict=True):
        # A side that collected the file lists each test.
        both = FILE in first and FILE in second
        for test in (one for one in {**first, **second} if one != FILE or both):
            old, new = (side.get(test, side.get(FILE, absent)) for side in (first, second))
            where = file.suite.upstream, file.path, test
            compared.append(ComparedTest(*where, _change(old.outcome, new.outcome), old, new))
    return compared


def _change(before: Outcome, after: Outcome) -> Change:
    """Return the change of an outcome; a test absent on the first side cannot become worse."""
    old, new = _RANKS.get(before, 0), _RANKS.get(after, 0)
    if new == old:
        return Change.SAME if old else Change.FAILS_ON_BOTH
    return Change.BETTER if new > old else Change.WORSE
