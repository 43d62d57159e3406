# SPDX-License-Identifier: Apache-2.0
"""Rules of the repository's layout: sizes of folders and of the session list, docstrings, names."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = {".py", ".c", ".cc", ".h", ".S"}
MOST_FILES = 15
MOST_SESSIONS = 20
MOST_SESSION_LINES = 15
# Each package has an exception of its own for a mistake of the user's.
SHARED_NAMES = {"UserError"}
VAGUE = {"What", "Where", "Whether", "How", "Which"}


def _tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"not a git checkout: {done.stderr.strip()}")
    files = (ROOT / name for name in done.stdout.split("\0") if name)
    return [file for file in files if file.is_file()]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    """Every tracked Python file, parsed."""
    files = (file for file in _tracked() if file.suffix == ".py")
    return {file.relative_to(ROOT): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def test_no_folder_of_code_grows_past_its_limit() -> None:
    count = Counter(file.parent.relative_to(ROOT) for file in _tracked() if file.suffix in CODE)
    assert {str(folder): n for folder, n in count.items() if n > MOST_FILES} == {}


def test_the_list_of_sessions_fits_on_a_page(modules: dict[Path, ast.Module]) -> None:
    functions = [n for n in modules[Path("noxfile.py")].body if isinstance(n, ast.FunctionDef)]
    assert functions
    assert len(functions) <= MOST_SESSIONS
    length = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions}
    assert {name: n for name, n in length.items() if n > MOST_SESSION_LINES} == {}


def test_docstrings_say_what_a_thing_is_or_does(modules: dict[Path, ast.Module]) -> None:
    vague = [
        f"{path}: {text.splitlines()[0]}"
        for path, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and (text := ast.get_docstring(node))
        and text.split()[0] in VAGUE
    ]
    assert vague == []


def test_a_class_name_stands_for_one_thing(modules: dict[Path, ast.Module]) -> None:
    places = defaultdict(list)
    for path, tree in modules.items():
        if "tests" not in path.parts:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path))
    again = {name for name, found in places.items() if len(found) > 1} - SHARED_NAMES
    assert {name: places[name] for name in again} == {}
