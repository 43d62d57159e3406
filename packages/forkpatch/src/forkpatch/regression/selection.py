# SPDX-License-Identifier: Apache-2.0
"""Selection of upstream's tests that touch what a fork changes, by imports and symbols.

``patches/<upstream>/upstream-tests.toml`` lists the test files that are run, and with a reason
those that are not; a file that touches what the fork changes and is in neither list is an error,
so that a new version of upstream, or a new patch, brings its tests along.
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
from forkpatch.model.overlays import read_shadows
from forkpatch.model.record import SymbolPlace
from forkpatch.symbols.outline import MODULE
from forkpatch.tree.fork import Fork, TreePlan

TABLE = "upstream-tests.toml"
_FORM = (
    "it has folder, python, packages, run, left-out;"
    " perhaps symbols, commits, environment, folders, before"
)
_IDENTIFIER = re.compile(rb"[A-Za-z_]\w*")


@dataclass(frozen=True)
class TestTable:
    """Table of the fork about an upstream's tests.

    Attributes:
        file: the table's file.
        folder: folder of the tests in upstream's tree.
        python: folder of upstream's tree that its packages lie in.
        packages: dotted names; a test that imports one, or what is in it, touches what we change.
        symbols: names whose mention in a test counts as well.
        run: test files that are run.
        left_out: reason by test file that is not.
        commits: the commit to take the tests from, by version, where it is not the lock's.
        environment: variables of the tests' processes.
        folders: more of these, each a folder that the environment's packages have, as ``a/lib``.
        before: statements of Python to execute before a test file is imported.
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
        """Variables of the tests' processes.

        Raises:
            UserError: no package of this Python has a folder that is asked for.
        """
        found = dict(self.environment)
        for name, folder in self.folders.items():
            place = next(
                (Path(one, folder) for one in sys.path if Path(one, folder).is_dir()), None
            )
            if place is None:
                raise UserError(
                    f"{self.file}: {name}: no package of {sys.executable} has a folder {folder}",
                    remedy="install what the tests need",
                )
            found[name] = str(place)
        return found


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
    """Test files that touch what a fork changes, with the reason of each.

    Attributes:
        reasons: why, by test file.
        unlisted: those that the table has in neither list.
        lost: files that the table lists and this version does not have.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def read_table(fork: Fork, upstream: str) -> TestTable | None:
    """The table of an upstream; None when it has none.

    Raises:
        UserError: it is malformed.
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
        " ".join((*words, *table.run, *(value for one in tables for value in one.values())))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: {error!r}", remedy=_FORM) from error
    if both := set(table.run) & set(table.left_out):
        raise UserError(
            f"{path}: {min(both)} is in both lists, run and left-out", remedy="strike one"
        )
    return table


def touched_by_fork(
    fork: Fork, plan: TreePlan, places: Iterable[SymbolPlace], table: TestTable
) -> Touched:
    """Everything that series and overlays of a planned tree change.

    Args:
        fork: the fork.
        plan: the planned tree.
        places: what its patches change.
        table: says where packages lie.
    """
    shadows = read_shadows(fork.overlay_folder(plan.upstream))
    shadowed = [SymbolPlace(one.path, one.symbol, "") for one in shadows]
    overlays = [SymbolPlace(path, MODULE, "") for path in plan.overlays]
    return touched_by_places([*places, *shadowed, *overlays], table)


def touched_by_places(places: Iterable[SymbolPlace], table: TestTable) -> Touched:
    """Modules and names of places; whole packages, of which everything is a part, are left out."""
    modules, names = set(), set()
    root = table.python.rstrip("/") + "/"
    for place in places:
        if not (place.path.startswith(root) and place.path.endswith(".py")):
            continue
        if not place.path.endswith("/__init__.py"):
            modules.add(place.path.removeprefix(root).removesuffix(".py").replace("/", "."))
        symbol = place.symbol.partition("#")[0]
        # A name of one word, as main, says nothing where it is met in another file.
        if symbol != MODULE and "." not in symbol and "_" in symbol.strip("_"):
            names.add(symbol)
    return Touched(frozenset(modules), frozenset(names))


def imports_of(data: bytes) -> frozenset[str]:
    """Dotted names that a file imports anywhere, members of modules too; empty for no Python."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def reason_to_run(data: bytes, touched: Touched, table: TestTable, *, wide: bool) -> str:
    """Reason for which a test file touches what is changed; empty when it does not.

    Args:
        data: the test file.
        touched: what is changed.
        table: whose packages count.
        wide: the import of a package of the table is a reason by itself; else only when a changed
            module is in the package, and in no smaller one of the table.
    """
    packages = table.packages
    if not wide:
        packages = tuple({_package_of(one, packages) for one in touched.modules} - {""})
    imported = sorted(imports_of(data))
    for name in imported:
        for module in touched.modules:
            if name == module or name.startswith(f"{module}."):
                return f"imports {module}"
    for name in imported:
        for package in sorted(packages):
            if name == package or name.startswith(f"{package}."):
                return f"imports {package}"
    words = {word.decode() for word in _IDENTIFIER.findall(data)}
    named = words & (touched.names | (table.symbols if wide else frozenset()))
    return f"names {min(named)}" if named else ""


def _package_of(module: str, packages: Iterable[str]) -> str:
    """The smallest of the packages that a module is in; empty when it is in none."""
    around = (package for package in packages if module.startswith(f"{package}."))
    return max(around, key=len, default="")


def choose(table: TestTable, touched: Touched, files: Mapping[str, bytes]) -> Choice:
    """Choose among the test files of one version.

    Args:
        table: the fork's table.
        touched: what the fork changes.
        files: content of upstream's test files.
    """
    choice = Choice()
    # A file that mentions neither need not be parsed: what imports a.b.c says both b and c.
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
