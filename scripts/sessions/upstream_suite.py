# SPDX-License-Identifier: Apache-2.0
"""Upstream's test files: those that touch the fork's changes, run on two sides and compared.

A test file that touches the changes, by its imports or by names, is in one of the lists of
``patches/<upstream>/upstream-tests.toml``, so that a new version or patch brings its tests along.

Each file has a pytest of its own. pytest-xdist goes on with the next test after a crash, and
pytest-timeout ends a test without end like a crash.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from groundwork.errors import USER_MISTAKE, CommandError
from groundwork.files import atomic_write
from groundwork.hashing import digest

TABLE = "upstream-tests.toml"
FILE = "<file>"  # test id of a file that cannot be collected
_MODULE = "<file>"  # forkpatch's name of the lines outside of functions
_FORM = (
    "it has folder, python, packages, run, left-out;"
    " perhaps symbols, commits, environment, folders, before"
)
_HELPERS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
_BEFORE = "upstream_before"
_CRASHES = 30  # of tests in a file, after which the rest is not run
_PATIENCE = 20  # times of a test that a whole file may take
_TAIL = 300  # characters kept from the end of a process's output


@dataclass(frozen=True)
class Table:
    """A fork's table of an upstream's tests.

    Attributes:
        folder: folder of the tests in upstream's tree.
        python: folder of the packages in upstream's tree.
        packages: dotted names; a test that imports one of them, or a part of it, touches the fork.
        symbols: names; a test that mentions one of them touches the fork.
        run: test files to run.
        left_out: reason for each test file that is not run.
        commits: commit of the tests by version, if it is not the lock's commit.
        environment: environment variables of the tests' processes.
        folders: further variables, each with a folder of the installed packages, as ``a/lib``.
        before: Python statements to execute before the import of a test file.
    """

    folder: str
    python: str
    packages: tuple[str, ...]
    symbols: frozenset[str]
    run: tuple[str, ...]
    left_out: Mapping[str, str]
    commits: Mapping[str, str]
    environment: Mapping[str, str]
    folders: Mapping[str, str]
    before: str


def read_table(path: Path) -> Table | None:
    """Return the table in a file; None without the file."""
    if not path.is_file():
        return None
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        maps = {key: dict(raw.get(key, {})) for key in ("commits", "environment", "folders")}
        table = Table(
            folder=raw["folder"],
            python=raw["python"],
            packages=tuple(raw["packages"]),
            symbols=frozenset(raw.get("symbols", [])),
            run=tuple(raw["run"]),
            left_out=dict(raw["left-out"]),
            before=raw.get("before", ""),
            **maps,
        )
        values = (value for one in (table.left_out, *maps.values()) for value in one.values())
        texts = (table.folder, table.python, table.before, *table.packages, *table.symbols)
        "".join((*texts, *table.run, *values))  # a TypeError where one is not a text
    except (ValueError, KeyError, TypeError) as error:
        raise _mistake(f"{path}: {error!r}", _FORM) from error
    if both := set(table.run) & set(table.left_out):
        raise _mistake(f"{path}: {min(both)} is in both lists, run and left-out", "strike one")
    return table


def _mistake(what: str, remedy: str) -> CommandError:
    return CommandError(what, remedy=remedy, exit_code=USER_MISTAKE)


@dataclass(frozen=True, eq=False)
class Suite:
    """Upstream's tests of a version, written to a folder.

    Attributes:
        folder: folder with the tests at upstream's paths.
        files: contents of the test files, by path.
        absent: files that the mirror lacks.
    """

    upstream: str
    table: Table
    folder: Path
    files: Mapping[str, bytes]
    absent: frozenset[str]

    @property
    def plugins(self) -> Path:
        """Folder with the statements to execute before the tests, and pytest's empty settings."""
        return self.folder / ".plugin"


def write_suite(upstream: str, table: Table, git_dir: Path, commit: str, folder: Path) -> Suite:
    """Write the tests of a commit to a folder; a partial mirror may lack some files."""
    words = ("ls-tree", "-r", "-z", commit, "--", table.folder, *_HELPERS)
    listed = {}
    for record in _git(git_dir, *words).decode("utf-8", "surrogateescape").split("\0")[:-1]:
        meta, _, path = record.partition("\t")
        mode, _, oid = meta.split(" ")
        if mode.startswith("100") and ".." not in PurePosixPath(path).parts:
            listed[path] = oid
    here = _git(git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    present = set(here.decode("ascii").split())
    wanted = {path: oid for path, oid in listed.items() if oid in present}
    out, at, files = _git(git_dir, "cat-file", "--batch", stdin="\n".join(wanted.values())), 0, {}
    for path in wanted:
        start = out.index(b"\n", at) + 1
        at = start + int(out[at:start].split()[2])
        files[path], at = out[start:at], at + 1
    suite = Suite(upstream, table, folder, files, frozenset(listed) - frozenset(files))
    own = {f".plugin/{_BEFORE}.py": table.before.encode(), ".plugin/pytest.ini": b"[pytest]\n"}
    for path, data in {**files, **own}.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, data)
    return suite


def mirror_with(places: Iterable[str], commit: str) -> Path | None:
    """Return the git directory of the first folder that is a mirror with a commit."""
    for place in places:
        git_dir = next((path for path in (Path(place, ".git"), Path(place)) if path.is_dir()), None)
        with suppress(CommandError):
            if git_dir and _git(git_dir, "cat-file", "-e", f"{commit}^{{commit}}") == b"":
                return git_dir
    return None


def _git(git_dir: Path, *words: str, stdin: str = "") -> bytes:
    """Return the output of git in a mirror, without the network."""
    done = subprocess.run(
        ["git", f"--git-dir={git_dir}", *words],
        input=stdin.encode("ascii"),
        capture_output=True,
        env={**os.environ, "GIT_ALLOW_PROTOCOL": "none"},
        check=False,
    )
    if done.returncode:
        raise CommandError(f"{git_dir}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout


@dataclass(frozen=True)
class Touched:
    """Modules and names that patches and overlays change.

    Attributes:
        modules: dotted names of files.
        names: names of functions and classes.
    """

    modules: frozenset[str]
    names: frozenset[str]


def touched_by(places: Iterable[tuple[str, str]], table: Table) -> Touched:
    """Return modules and names of places, given as path and symbol.

    A package's ``__init__`` counts as no module.
    """
    modules, names = set(), set()
    root = table.python.rstrip("/") + "/"
    for path, symbol in places:
        if not (path.startswith(root) and path.endswith(".py")):
            continue
        if not path.endswith("/__init__.py"):
            modules.add(path.removeprefix(root).removesuffix(".py").replace("/", "."))
        name = symbol.partition("#")[0]
        # A name of one word, such as main, may mean something else in another file.
        if name != _MODULE and "." not in name and "_" in name.strip("_"):
            names.add(name)
    return Touched(frozenset(modules), frozenset(names))


def places_of(series: Path, overlays: Path, patches: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return path and symbol of each place that a series' record has.

    ``patches`` are the only ones to count; without them, overlays count, too.
    """
    record = json.loads((series / "derived.json").read_text("utf-8"))
    named = [record["patches"].get(name, {"places": ()}) for name in patches or record["patches"]]
    places = [(place["path"], place["symbol"]) for one in named for place in one["places"]]
    if not patches:
        places += [(one["path"], one["symbol"]) for one in record["shadows"]]
        files = (path.relative_to(overlays).as_posix() for path in overlays.rglob("*.py"))
        places += [(path, _MODULE) for path in files]
    return places


def _imports_of(data: bytes) -> frozenset[str]:
    """Return the dotted names that a file imports anywhere, members included; empty if invalid."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return frozenset()
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(imported)


def reason_to_run(data: bytes, touched: Touched, table: Table, *, wide: bool) -> str:
    """Return why a test file touches the changes; empty when it does not.

    If ``wide``, any import of a package of the table is a reason; else only an import of the
    smallest package around a changed module.
    """
    packages = table.packages
    if not wide:
        around = ([p for p in packages if item.startswith(f"{p}.")] for item in touched.modules)
        packages = tuple({max(found, key=len) for found in around if found})
    imported = sorted(_imports_of(data))
    for group in (sorted(touched.modules), sorted(packages)):
        for name in imported:
            if outer := next((one for one in group if f"{name}.".startswith(f"{one}.")), ""):
                return f"imports {outer}"
    words = {word.decode() for word in _IDENTIFIER.findall(data)}
    named = words & (touched.names | (table.symbols if wide else frozenset()))
    return f"names {min(named)}" if named else ""


def choose(suite: Suite, touched: Touched) -> dict[str, str]:
    """Return the reason to run each test file that touches the changes."""
    found = {}
    for path, data in sorted(suite.files.items()):
        name = PurePosixPath(path).name
        if name.startswith("test_") and name.endswith(".py"):
            found[path] = reason_to_run(data, touched, suite.table, wide=True)
    return {path: reason for path, reason in found.items() if reason}


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
        ids = [_git(tree / ".git", "rev-parse", "HEAD^{tree}") for tree in self.trees.values()]
        return digest(*ids, *sorted(path.name for path in self.packages.glob("*.dist-info")))

    def variables(self, table: Table) -> dict[str, str]:
        """Return the environment variables of the tests' processes."""
        values = dict(table.environment)
        for name, folder in table.folders.items():
            if not (self.packages / folder).is_dir():
                raise _mistake(f"{name}: no package has a folder {folder}", "install its package")
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
            *(str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", _BEFORE),
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
