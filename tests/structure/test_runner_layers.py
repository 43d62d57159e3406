# SPDX-License-Identifier: Apache-2.0
"""Includes between the folders and the files of the C++ runner."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "runner"
# From the lowest to the highest: a file includes files of its own folder and of lower ones.
LAYERS = ("input", "picture", "text", "grammar", "tensors", "model", "engine", "api")
LAYERS += ("server", "program")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def includes(root: Path) -> list[tuple[str, str]]:
    """Pairs of a file and a file that it includes. Generated headers do not count."""
    files = [path for path in root.rglob("*") if path.suffix in (".cc", ".h")]
    found = [(path, name) for path in files for name in _INCLUDE.findall(path.read_text("utf-8"))]
    return [(p.relative_to(root).as_posix(), name) for p, name in found if (root / name).is_file()]


def upward(root: Path) -> list[tuple[str, str]]:
    """Includes of a file in a higher folder."""

    def height(name: str) -> int:
        return LAYERS.index(name.partition("/")[0])

    return [(name, other) for name, other in includes(root) if height(name) < height(other)]


def check_no_cycle(root: Path) -> None:
    """Raise CycleError if components include each other. A header and its source are one."""
    graph: dict[str, set[str]] = {}
    for name, included in includes(root):
        one, other = (each.rpartition(".")[0] for each in (name, included))
        graph.setdefault(one, set()).update({other} - {one})
    TopologicalSorter(graph).prepare()


def test_each_folder_has_a_layer() -> None:
    folders = {path.relative_to(RUNNER).parts[0] for path in RUNNER.glob("*/*")}
    assert folders == {*LAYERS, "cmake"}
    assert not [*RUNNER.glob("*.cc"), *RUNNER.glob("*.h")]


def test_no_include_goes_up() -> None:
    assert len(includes(RUNNER)) > 100
    assert upward(RUNNER) == []


def test_no_components_include_each_other() -> None:
    check_no_cycle(RUNNER)


def test_an_include_that_goes_up_and_a_cycle_are_found(tmp_path: Path) -> None:
    lines = {
        "text/a.h": '#include "input/b.h"\n',
        "input/b.h": "#pragma once\n",
        "input/b.cc": '#include "input/b.h"\n#include "text/a.h"\n#include "text/generated.h"\n',
    }
    for name, text in lines.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    assert upward(tmp_path) == [("input/b.cc", "text/a.h")]
    with pytest.raises(CycleError):
        check_no_cycle(tmp_path)
