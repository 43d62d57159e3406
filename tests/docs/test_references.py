# SPDX-License-Identifier: Apache-2.0
"""References of the hand-written pages: paths and sessions that they name exist.

``mkdocs build --strict`` looks at links and at the list of pages.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = (
    *("*.md", "docs/**/*.md", "cores/**/*.md", "kernels/**/*.md", "runner/**/*.md"),
    *("packages/*/*.md", "packages/*/docs/**/*.md"),
)
# Pages of the patch engine speak of somebody else's fork.
ENGINE = "packages/forkpatch/"
FOUND = sorted(p.relative_to(ROOT).as_posix() for form in WRITTEN for p in ROOT.glob(form))
PAGES = [page for page in FOUND if not page.startswith(ENGINE)]
# A path that begins with a folder of the checkout has to be there.
TOP = (
    "cores",
    "docs",
    "kernels",
    "overlays",
    "packages",
    "patches",
    "runner",
    "scripts",
    "tests",
)
PATH = re.compile(rf"(?<![\w./<-])(?:{'|'.join(TOP)})/[\w./*{{}},-]*[\w*/]")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
SESSION = re.compile(r"\bnox -s ([a-z_]+)")


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if node.decorator_list}


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = {found.group().rstrip("/.") for found in PATH.finditer(LINK.sub("](", text))}
    paths = {path for path in paths if not set("*{}") & set(path)}
    places = (ROOT, (ROOT / page).parent)  # a package's README names paths of its own folder
    assert sorted(path for path in paths if not any((at / path).exists() for at in places)) == []


@pytest.mark.parametrize("page", PAGES)
def test_sessions_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(SESSION.findall(text)) <= sessions()
