# SPDX-License-Identifier: Apache-2.0
"""A Python that is too old prints what is needed, and how to get it."""

from __future__ import annotations

import ast
import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("scripts/bootstrap.py", "scripts/sessions/__init__.py")
OLD = ("2.7", "3.6", "3.10")
# The syntax that Python 2.7 shares; annotations, f-strings and the like are other nodes.
SHARED = (
    *(ast.Module, ast.Expr, ast.Assign, ast.FunctionDef, ast.Return, ast.If, ast.For, ast.Break),
    *(ast.Import, ast.ImportFrom, ast.alias, ast.Call, ast.keyword, ast.Attribute, ast.Name),
    *(ast.Constant, ast.Tuple, ast.List, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp),
    *(
        ast.BoolOp,
        ast.boolop,
        ast.IfExp,
        ast.Compare,
        ast.GeneratorExp,
        ast.ListComp,
        ast.comprehension,
        ast.arguments,
        ast.arg,
    ),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.cmpop),
)


@pytest.mark.parametrize("name", FIRST)
def test_every_python_can_read_the_first_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="ascii")
    for node in ast.walk(ast.parse(text)):
        assert isinstance(node, SHARED), ast.dump(node)
        if isinstance(node, ast.arg | ast.FunctionDef):
            assert getattr(node, "annotation", None) is getattr(node, "returns", None) is None


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_says_what_to_do(version: str, tmp_path: Path) -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # HOME is a test's own
    near = map(str, home.glob(f".pyenv/versions/{version}.*/bin/python"))
    python = next(near, None) or shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"Python {version} is not installed")
    (place := tmp_path / "a b").symlink_to(ROOT)
    command = [python, "-B", str(place / "scripts" / "bootstrap.py"), "model", "--", "x"]
    done = run(command, "")
    assert done.returncode == 2
    what, *hints = done.stderr.splitlines()
    assert what.startswith(f"bootstrap: Python 3.11 or newer is needed; this is Python {version}.")
    assert "apt-get" in hints[0] and "uv run" in hints[-1]
    (newer := tmp_path / "python3.12").touch(0o755)
    assert run(command, str(newer.parent)).stderr.splitlines()[1:] == [
        f'  type: python3.12 "{place}/scripts/bootstrap.py" model -- x'
    ]


def run(command: list[str], path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
