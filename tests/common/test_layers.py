# SPDX-License-Identifier: Apache-2.0
"""Imports between the packages; common needs the standard library alone."""

import ast
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
OURS = {path.parent.name for path in SCRIPTS.glob("*/__init__.py")}
ALLOWED = {
    "common": set(),
    "forkpatch": {"common"},
    "crosslab": {"common"},
    "costmodel": {"common"},
    "accelerator": {"common", "costmodel", "crosslab"},
}


def imported(package: str) -> set[str]:
    """Top-level names of all imports in a package."""
    names = set()
    for path in (SCRIPTS / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    assert imported(package) & OURS <= {package, *ALLOWED[package]}


def test_common_needs_nothing_that_has_to_be_installed() -> None:
    assert imported("common") <= {"common", *sys.stdlib_module_names}
