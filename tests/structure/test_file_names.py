# SPDX-License-Identifier: Apache-2.0
"""Names of test files, by which pytest imports those outside of packages, and marks in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def folders() -> list[Path]:
    return [PROJECT / "tests", *PROJECT.glob("packages/*/tests")]


def test_only_test_files_have_thorough_tests() -> None:
    """`.ci/run` finds these tests by the mark in the text of a test file."""
    mark = "mark." + "thorough"
    files = [path for folder in folders() for path in folder.rglob("*.py")]
    marked = [path.name for path in files if mark in path.read_text(encoding="utf-8")]
    assert len(marked) > 20
    assert [name for name in marked if not name.startswith("test_")] == []


def test_no_two_files_outside_of_packages_have_one_name() -> None:
    files = [path for folder in folders() for path in folder.rglob("test_*.py")]
    names = Counter(path.name for path in files if not (path.parent / "__init__.py").exists())
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []
