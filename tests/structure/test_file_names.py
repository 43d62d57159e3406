# SPDX-License-Identifier: Apache-2.0
"""Names of test files: pytest imports a file outside of a package by its name alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def test_no_two_files_outside_of_packages_have_one_name() -> None:
    folders = [PROJECT / "tests", *PROJECT.glob("packages/*/tests")]
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    names = Counter(path.name for path in files if not (path.parent / "__init__.py").exists())
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []
