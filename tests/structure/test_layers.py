# SPDX-License-Identifier: Apache-2.0
"""Rules of imports that import-linter cannot state; pyproject.toml has the others."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_package_has_a_rule() -> None:
    sources = (ROOT / "scripts", *ROOT.glob("packages/*/src"))
    packages = {path.parent.name for source in sources for path in source.glob("*/__init__.py")}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linted = table["tool"]["importlinter"]
    assert packages == set(linted["root_packages"])
    layers = linted["contracts"][0]["layers"]
    assert packages == {name for layer in layers for name in layer.split(" | ")}


def test_groundwork_needs_nothing_that_has_to_be_installed() -> None:
    names = set()
    for path in ROOT.glob("packages/groundwork/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module).partition(".")[0])
    assert names <= {"groundwork", *sys.stdlib_module_names}


def test_models_are_imported_on_a_tvm_without_the_overlay() -> None:
    # Stock TVM, too, is measured with the patched MLC-LLM; passes are loaded for kernels alone.
    overlay, models = ROOT / "overlays/tvm/python", ROOT / "overlays/mlc-llm/python/mlc_llm"
    added = {
        ".".join(path.relative_to(overlay).with_suffix("").parts) for path in overlay.rglob("*.py")
    }
    assert added
    for path in models.rglob("*.py"):
        if "compiler_pass" not in path.parts:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            imports = [node for node in body if isinstance(node, ast.ImportFrom)]
            names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
            assert not added & (names | {str(node.module) for node in imports}), path
