# SPDX-License-Identifier: Apache-2.0
"""Verbs and entry points name what is there; a companion's verb names the package to install."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from crosslab.__main__ import COMMANDS, COMPANIONS, VERBS, Verb

ROOT = Path(__file__).resolve().parents[2]


PROJECTS = {
    path.parent: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in ROOT.glob("packages/*/pyproject.toml")
}


def names_of(source: Path, module: str) -> set[str]:
    """The functions and constants of a module."""
    place = source / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_module_of_a_verb_has_its_function(verb: Verb) -> None:
    assert verb.function in names_of(ROOT / "packages/crosslab/src", verb.module)


def test_a_verb_that_is_not_installed_names_its_package() -> None:
    found = {
        verb: project["name"]
        for project in PROJECTS.values()
        for verb in project.get("entry-points", {}).get(COMMANDS, {})
    }
    assert found == COMPANIONS


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda folder: folder.name)
def test_an_entry_point_names_what_its_package_has(folder: Path) -> None:
    groups = PROJECTS[folder].get("entry-points", {}).values()
    for point in [value for group in groups for value in group.values()]:
        module, _, name = point.partition(":")
        assert (name or "main") in names_of(folder / "src", module), point


def test_every_command_answers_a_mistake_with_the_nearest_word() -> None:
    """By groundwork's parser; a board has a part of groundwork only."""
    sources = [ROOT / "scripts", *ROOT.glob("packages/*/src")]
    own = [
        path.name
        for source in sources
        for path in source.rglob("*.py")
        if "argparse.ArgumentParser(" in path.read_text(encoding="utf-8")
    ]
    assert own == ["real_board.py"]
