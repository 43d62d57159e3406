# SPDX-License-Identifier: Apache-2.0
"""Imports between the packages of the workspace."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    folder.name: folder
    for source in (ROOT / "scripts", *ROOT.glob("packages/*/src"))
    for folder in source.iterdir()
    if (folder / "__init__.py").is_file()
}
# The fork's own path imports no companion. Companions import it, and each other not at all.
ALLOWED = {
    "groundwork": set(),
    "forkpatch": {"groundwork"},
    "crosslab": {"groundwork"},
    "sessions": {"groundwork"},
    "report": {"groundwork", "forkpatch"},
    "costmodel": {"groundwork"},
    "accelerator": {"groundwork", "costmodel", "crosslab"},
    "boardfarm": {"groundwork", "crosslab"},
    "torchroad": {"groundwork", "crosslab"},
}


def modules(path: Path) -> set[str]:
    """Names of all modules that a file imports, inside functions as well."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(package: str) -> set[str]:
    """Top-level names of all imports in a package."""
    names = set().union(*map(modules, PLACES[package].rglob("*.py")))
    return {name.partition(".")[0] for name in names}


def test_each_package_has_a_rule() -> None:
    assert ALLOWED.keys() == PLACES.keys()


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    assert imported(package) & PLACES.keys() <= {package, *ALLOWED[package]}


def test_groundwork_needs_nothing_that_has_to_be_installed() -> None:
    assert imported("groundwork") <= {"groundwork", *sys.stdlib_module_names}


# The rooms of crosslab from the lowest to the highest: each imports those before it. The main job
# knows no peer, bench or zoo.
LAYERS = (
    *("errors", "json_table", "cached_build", "address", "remote", "host", "tokenizer", "models"),
    *("run", "cores", "loops"),
    *("compile", "build", "artifact", "job", "peers", "bench", "zoo", "__main__"),
)


def test_no_room_of_crosslab_imports_one_above_it() -> None:
    root, upward = PLACES["crosslab"], []
    for path in sorted(root.rglob("*.py")):
        room = path.relative_to(root).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        above = LAYERS[LAYERS.index(room) + 1 :]
        names = {name for name in modules(path) if name.startswith("crosslab.")}
        upward += [f"{path}: {name}" for name in names if name.split(".")[1] in above]
    assert upward == []
