# SPDX-License-Identifier: Apache-2.0
"""Selection of upstream's tests that touch a fork's changes, by imports and symbols.

``patches/<upstream>/upstream-tests.toml`` lists the test files to run, and the omitted test files
with reasons. A file that touches the fork's changes must be in one list. Thus a new version of
upstream, or a new patch, brings its tests along.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkpatch.errors import UserError
from forkpatch.model.record import SymbolPlace
from forkpatch.symbols.outline import MODULE
from forkpatch.tree.drift import record_of
from forkpatch.tree.fork import Fork, TreePlan

TABLE = "upstream-tests.toml"
_FORM = (
    "it has folder, python, packages, run, left-out;"
    " perhaps symbols, commits, environment, folders, before"
)
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")


@dataclass(frozen=True)
class TestTable:
    """A fork's table of an upstream's tests.

    Attributes:
        file: path of the table.
        folder: folder of the tests in upstream's tree.
        python: folder of the packages in upstream's tree.
        packages: dotted names; a test that imports a listed package, or a part of it, counts as
            touching.
        symbols: names; a test that mentions a listed name counts as touching.
        run: test files to run.
        left_out: reason for each test file that is not run.
        commits: commit of the tests by version, where it differs from the lock's commit.
        environment: environment variables of the tests' processes.
        folders: further variables, each with a folder of the environment's packages, as ``a/lib``.
        before: Python statements to execute before the import of a test file.
    """

    file: Path
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

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the tests' processes.

        Raises:
            UserError: no package of this Python has a folder of the table.
        """
        values = dict(self.environment)
        for name, folder in self.folders.items():
            path = next(
                (Path(root, folder) for root in sys.path if Path(root, folder).is_dir()), None
            )
            if path is None:
                raise UserError(
                    f"{self.file}: {name}: no package of {sys.executable} has a folder {folder}",
                    remedy="install what the tests need",
                )
            values[name] = str(path)
        return values


@dataclass(frozen=True)
class Touched:
    """Modules and names that patches and overlays change.

    Attributes:
        modules: dotted names of files.
        names: names of functions and classes.
    """

    modules: frozenset[str]
    names: frozenset[str]


@dataclass
class Choice:
    """The test files that touch a fork's changes, with reasons.

    Attributes:
        reasons: reason for each test file.
        unlisted: chosen files that are in no list of the table.
        lost: listed files that this version lacks.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def read_table(fork: Fork, upstream: str) -> TestTable | None:
    """Return the table of an upstream; None without a table.

    Raises:
        UserError: the table is malformed.
    """
    path = fork.settings.patches / upstream / TABLE
    if not path.is_file():
        return None
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        table = TestTable(
            file=path,
            folder=raw["folder"],
            python=raw["python"],
            packages=tuple(raw["packages"]),
            symbols=frozenset(raw.get("symbols", [])),
            run=tuple(raw["run"]),
            left_out=dict(raw["left-out"]),
            commits=dict(raw.get("commits", {})),
            environment=dict(raw.get("environment", {})),
            folders=dict(raw.get("folders", {})),
            before=raw.get("before", ""),
        )
        words = (table.folder, table.python, table.before, *table.packages, *table.symbols)
        tables = (table.left_out, table.commits, table.environment, table.folders)
        " ".join((*words, *table.run, *(value for item in tables for value in item.values())))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: {error!r}", remedy=_FORM) from error
    if both := set(table.run) & set(table.left_out):
        raise UserError(
            f"{path}: {min(both)} is in both lists, run and left-out", remedy="strike one"
        )
    return table


def touched_by_places(places: Iterable[SymbolPlace], table: TestTable) -> Touched:
    """Return modules and names of places; a package's ``__init__`` counts as no module."""
    modules, names = set(), set()
    root = table.python.rstrip("/") + "/"
    for place in places:
        if not (place.path.startswith(root) and place.path.endswith(".py")):
            continue
        if not place.path.endswith("/__init__.py"):
            modules.add(place.path.removeprefix(root).removesuffix(".py").replace("/", "."))
        symbol = place.symbol.partition("#")[0]
        # A name of one word, such as main, may mean something else in another file.
        if symbol != MODULE and "." not in symbol and "_" in symbol.strip("_"):
            names.add(symbol)
    return Touched(frozenset(modules), frozenset(names))


def imports_of(data: bytes) -> frozenset[str]:
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


def reason_to_run(data: bytes, touched: Touched, table: TestTable, *, wide: bool) -> str:
    """Return why a test file touches the changes; empty when it does not.

    If ``wide``, any import of a package of the table is a reason; else only an import of the
    smallest package around a changed module.
    """
    packages = table.packages
    if not wide:
        parents = (
            [one for one in packages if item.startswith(f"{one}.")] for item in touched.modules
        )
        packages = tuple({max(found, key=len) for found in parents if found})
    imported = sorted(imports_of(data))
    for group in (sorted(touched.modules), sorted(packages)):
        for name in imported:
            if around := next((one for one in group if f"{name}.".startswith(f"{one}.")), ""):
                return f"imports {around}"
    words = {word.decode() for word in _IDENTIFIER.findall(data)}
    named = words & (touched.names | (table.symbols if wide else frozenset()))
    return f"names {min(named)}" if named else ""


def choose(fork: Fork, plan: TreePlan, table: TestTable, files: Mapping[str, bytes]) -> Choice:
    """Return the test files of a version that touch what patches and overlays change."""
    record, choice = record_of(fork, plan), Choice()
    patched = (place for places in record.patches.values() for place in places)
    overlays = (SymbolPlace(path, MODULE, "") for path in plan.overlays)
    touched = touched_by_places([*patched, *record.shadows, *overlays], table)
    # Parse only files with both words: an import of a.b.c has the words b and c.
    pairs = {tuple(name.encode().split(b".")[-2:]) for name in (*touched.modules, *table.packages)}
    words = [word.encode() for word in (*touched.names, *table.symbols)]
    for path, data in sorted(files.items()):
        name = path.rpartition("/")[2]
        if not (name.startswith("test_") and name.endswith(".py")):
            continue
        named = any(word in data for word in words)
        if not named and not any(all(part in data for part in pair) for pair in pairs):
            continue
        if reason := reason_to_run(data, touched, table, wide=True):
            choice.reasons[path] = reason
    known = {*table.run, *table.left_out}
    choice.unlisted = tuple(path for path in choice.reasons if path not in known)
    choice.lost = tuple(path for path in sorted(known) if path not in files)
    return choice
