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


def imported(package: str) -> set[str]:
    """Top-level names of all imports in a package."""
    names = set()
    for path in PLACES[package].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    return names


def test_each_package_has_a_rule() -> None:
    assert ALLOWED.keys() == PLACES.keys()


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    assert imported(package) & PLACES.keys() <= {package, *ALLOWED[package]}


def test_groundwork_needs_nothing_that_has_to_be_installed() -> None:
    assert imported("groundwork") <= {"groundwork", *sys.stdlib_module_names}
