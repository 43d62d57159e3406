# SPDX-License-Identifier: Apache-2.0
"""The changes that upstream could take: each alone, exact, and with a test that tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forkpatch.fork import open_fork
from forkpatch.history import History
from forkpatch.patchfile import Patch, read_patch
from forkpatch.settings import load_settings
from forkpatch.sources import SourceOptions, mirrors_of
from forkpatch.weave import check_hunks, split_lines

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "upstream/tvm"
BASE = tomllib.loads((ROOT / "upstream/base.toml").read_text("utf-8"))["tvm"]
NAMES = sorted(path.name for path in FOLDER.glob("*.patch"))
TESTS = "tests/python/relax/"
SERIES = ROOT / "patches/tvm/0.26.0"
REGISTRATION = "python/tvm/relax/frontend/nn/llm/kv_cache.py"


def change(name: str) -> Patch:
    return read_patch(FOLDER / name)


def source_lines(patch: Patch) -> list[tuple[str, bytes]]:
    """The lines that a patch adds to and removes from files outside the tests."""
    return [
        (line.kind, line.data)
        for diff in patch.files
        if not str(diff.new).startswith("tests/")
        for hunk in diff.hunks
        for line in hunk.lines
        if line.kind != " "
    ]


def test_every_pending_fix_of_the_series_has_one() -> None:
    pending = [
        path.name
        for path in SERIES.glob("*.patch")
        if read_patch(path).trailer("Upstream-Status") == "Pending"
    ]
    assert sorted(pending) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_change_of_the_series(name: str) -> None:
    assert source_lines(change(name)) == source_lines(read_patch(SERIES / name))


@pytest.mark.parametrize("name", NAMES)
def test_form_is_upstreams(name: str) -> None:
    patch = change(name)
    assert re.match(r"\[Relax\]\[Frontend\] [A-Z]", patch.subject)
    assert patch.message.strip() and not patch.trailers
    new = [diff.new for diff in patch.files if diff.old is None]
    assert len(patch.files) == 2 and len(new) == 1
    assert str(new[0]).startswith(f"{TESTS}test_frontend_nn_llm_")


@pytest.mark.parametrize("name", NAMES)
def test_it_applies_alone_and_exactly(name: str) -> None:
    fork = open_fork(load_settings(ROOT))
    upstream = next(iter(fork.lock.versions("tvm").values()))
    history = History.find([*mirrors_of(upstream, fork.cache, SourceOptions())], BASE)
    if history is None:
        pytest.skip(f"no mirror of tvm has commit {BASE[:12]}: name one with --mirror tvm=PATH")
    for diff in change(name).files:
        if diff.old is None:
            assert history.read(BASE, str(diff.new)) is None
            continue
        data = history.read(BASE, diff.old)
        assert data is not None
        check_hunks(split_lines(data), diff, name)


def added(patch: Patch) -> tuple[str, bytes]:
    """Name and content of the test that a change adds."""
    (diff,) = (diff for diff in patch.files if diff.old is None)
    data = b"".join(line.data for hunk in diff.hunks for line in hunk.lines)
    return Path(str(diff.new)).name, data


def results(tree: Path, tests: Path) -> dict[str, bool]:
    """Which of the tests pass on the TVM in ``tree``, by file."""
    report = tests.parent / f"{tree.name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    subprocess.run(
        [*command, f"--junitxml={report}", "--rootdir", str(tests), str(tests)],
        env=environment,
        cwd=tests,
        capture_output=True,
        check=False,
    )
    cases = re.findall(r'<testcase classname="([\w.]+)"[^>]*?(/>|>)', report.read_text("utf-8"))
    found: dict[str, bool] = {}
    for name, end in cases:
        file = f"{name.rpartition('.')[2]}.py"
        found[file] = found.get(file, True) and end == "/>"
    return found


@pytest.fixture(scope="module")
def outcomes(
    tvm: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bool], dict[str, bool]]:
    """Which tests pass on the pristine files of this release, and which with all changes in."""
    patched = Path(str(tvm.__file__)).parents[2]
    folder = tmp_path_factory.mktemp("upstream")
    tests = folder / "tests"
    tests.mkdir()
    for name in NAMES:
        file, data = added(change(name))
        (tests / file).write_bytes(data)
    trees = []
    for label in ("before", "after"):
        tree = folder / label
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(patched / "python/tvm", tree / "tvm", ignore=ignored)
        trees.append(tree)
    # The series changes these files by the fixes alone, and kv_cache.py by what is not upstream's.
    fixed = {str(d.old) for name in NAMES for d in change(name).files if d.old}
    for path in (*fixed, REGISTRATION):
        show = ["git", "-C", str(patched), "show", f"refs/forkpatch/base:{path}"]
        pristine = subprocess.run(show, capture_output=True, check=True).stdout
        for tree in trees if path == REGISTRATION else trees[:1]:
            (tree / path.removeprefix("python/")).write_bytes(pristine)
    return results(trees[0], tests), results(trees[1], tests)


@pytest.mark.parametrize("name", NAMES)
def test_its_test_fails_before_and_passes_after(outcomes: Any, name: str) -> None:
    before, after = outcomes
    file, _ = added(change(name))
    assert before[file] is False
    assert after[file] is True
