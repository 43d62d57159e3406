# SPDX-License-Identifier: Apache-2.0
"""Upstream's test files: those of a commit, and those that touch the fork's changes.

A test file that touches the changes, by its imports or by names, is in one of the lists of
``patches/<upstream>/upstream-tests.toml``, so that a new version or patch brings its tests along.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from groundwork.errors import CommandError
from groundwork.files import atomic_write
from sessions.options import mistake

TABLE = "upstream-tests.toml"
_MODULE = "<file>"  # forkpatch's name of the lines outside of functions
_FORM = (
    "it has folder, python, packages, run, left-out;"
    " perhaps symbols, commits, environment, folders, before"
)
_HELPERS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")
BEFORE = "upstream_before"


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
    """Return the table in a file; None without the file.

    Raises:
        CommandError: the file is not of the right form, or a test file is in both its lists.
    """
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
        raise mistake(f"{path}: {error!r}", _FORM) from error
    if both := set(table.run) & set(table.left_out):
        raise mistake(f"{path}: {min(both)} is in both lists, run and left-out", "strike one")
    return table


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
    for record in run_git(git_dir, *words).decode("utf-8", "surrogateescape").split("\0")[:-1]:
        meta, _, path = record.partition("\t")
        mode, _, oid = meta.split(" ")
        if mode.startswith("100") and ".." not in PurePosixPath(path).parts:
            listed[path] = oid
    here = run_git(git_dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    present = set(here.decode("ascii").split())
    wanted = {path: oid for path, oid in listed.items() if oid in present}
    out, at, files = (
        run_git(git_dir, "cat-file", "--batch", stdin="\n".join(wanted.values())),
        0,
        {},
    )
    for path in wanted:
        start = out.index(b"\n", at) + 1
        at = start + int(out[at:start].split()[2])
        files[path], at = out[start:at], at + 1
    suite = Suite(upstream, table, folder, files, frozenset(listed) - frozenset(files))
    own = {f".plugin/{BEFORE}.py": table.before.encode(), ".plugin/pytest.ini": b"[pytest]\n"}
    for path, data in {**files, **own}.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, data)
    return suite


def mirror_with(places: Iterable[str], commit: str) -> Path | None:
    """Return the git directory of the first folder that is a mirror with a commit, or None."""
    for place in places:
        git_dir = next((path for path in (Path(place, ".git"), Path(place)) if path.is_dir()), None)
        with suppress(CommandError):
            if git_dir and run_git(git_dir, "cat-file", "-e", f"{commit}^{{commit}}") == b"":
                return git_dir
    return None


def run_git(git_dir: Path, *words: str, stdin: str = "") -> bytes:
    """Return the output of git in a mirror, without the network.

    Raises:
        CommandError: git fails.
    """
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

    Only Python files below ``table.python`` count. A package's ``__init__`` counts as no module,
    and a name of a method or of one word as no name.
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
