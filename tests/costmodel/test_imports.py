# SPDX-License-Identifier: Apache-2.0
"""The cost model stands by itself: of this project's packages it imports ``common`` alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
FILES = sorted(p.relative_to(SCRIPTS).as_posix() for p in SCRIPTS.glob("costmodel/**/*.py"))
OURS = {p.name for p in SCRIPTS.iterdir() if p.is_dir()} | {p.stem for p in SCRIPTS.glob("*.py")}


@pytest.mark.parametrize("name", FILES)
def test_imports_nothing_else_of_the_project(name: str) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse((SCRIPTS / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    assert found & (OURS | {"tvm", "tvm_ffi"}) <= {"costmodel", "common"}
