# SPDX-License-Identifier: Apache-2.0
"""Imports between the parts of forkpatch go downwards only, those inside functions included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import forkpatch

#: The parts of forkpatch, each a module or a sub-package; a part imports only those before it.
LAYERS = (
    *("command", "errors", "machine", "safety", "output", "runtest"),
    *("git", "model", "symbols", "sources", "tree", "pins", "series"),
    *("foreign", "inspect", "rebase", "regression", "cli", "__main__"),
)
ROOT = Path(forkpatch.__file__).parent


def upward(tree: ast.AST, part: str) -> Iterator[str]:
    """The modules that the code of ``part`` imports and that lie above it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports in forkpatch are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]  # the argument of import_module
        else:
            continue
        for name in names:
            other = name.removeprefix("forkpatch.").partition(".")[0]
            if name.startswith("forkpatch.") and other in LAYERS[LAYERS.index(part) + 1 :]:
                yield name


def test_every_part_has_a_layer() -> None:
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__pycache__"} == set(LAYERS)


def test_no_part_imports_one_above_it() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for part in LAYERS
        for path in [ROOT / f"{part}.py", *(ROOT / part).rglob("*.py")]
        if path.is_file()
        for name in upward(ast.parse(path.read_text(encoding="utf-8")), part)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import forkpatch.cli.main",
        "from forkpatch.cli import main",
        "from forkpatch import cli",
        "def late():\n    from forkpatch.cli.main import run",
        "importlib.import_module('forkpatch.cli.main')",
    ],
)
def test_an_import_upwards_is_found(code: str) -> None:
    assert list(upward(ast.parse(code), "model"))
