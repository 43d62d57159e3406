# SPDX-License-Identifier: Apache-2.0
"""The changes that upstream could take: each alone, exact, and with a test that tells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from support.archives import unpack

from crosslab.compile.mlc import MlcTools
from crosslab.errors import UserError
from forkpatch.model.fork import open_fork
from forkpatch.model.patchfile import FileDiff, Patch, read_patch
from forkpatch.model.settings import load_settings
from forkpatch.model.weave import check_hunks, split_lines
from forkpatch.sources.history import History
from forkpatch.sources.obtain import SourceOptions, mirrors_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "upstream/base.toml").read_text("utf-8"))
REGISTRATION = "python/tvm/relax/frontend/nn/llm/kv_cache.py"
# Without this one, `import mlc_llm` fails where its native library is not built: the tests of the
# other changes run on top of it, before as after, and fail by what they test alone.
IMPORT = "import-without-native-library.patch"


@dataclass(frozen=True)
class Upstream:
    """Changes to a project, and the form in which it takes them.

    Attributes:
        series: folder of the fixes as they are applied here.
        subject: what a commit's first line is like.
        test: what the path of a change's test is like.
    """

    name: str
    series: Path
    subject: str
    test: str

    @property
    def folder(self) -> Path:
        return ROOT / "upstream" / self.name

    @property
    def base(self) -> str:
        return str(SETTINGS["base"][self.name])

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.patch"))

    def change(self, name: str) -> Patch:
        return read_patch(self.folder / name)


TVM = Upstream(
    "tvm",
    ROOT / "patches/tvm/0.26.0",
    r"\[Relax\]\[Frontend\] [A-Z]",
    r"tests/python/relax/test_frontend_nn_llm_\w+\.py",
)
MLC = Upstream(
    "mlc-llm",
    ROOT / "patches/mlc-llm/79d603f0",
    r"\[(Fix|Feature)\] [A-Z]",
    r"tests/python/(compiler_pass|loader|model|op|support)/test_\w+\.py",
)
UPSTREAMS = [pytest.param(upstream, id=upstream.name) for upstream in (TVM, MLC)]
CHANGES = [
    pytest.param(upstream, name, id=f"{upstream.name}-{name.removesuffix('.patch')}")
    for upstream in (TVM, MLC)
    for name in upstream.names
]


def source_lines(files: Collection[FileDiff]) -> list[tuple[str, bytes]]:
    """The lines that a patch adds to and removes from these files."""
    return [
        (line.kind, line.data)
        for diff in files
        for hunk in diff.hunks
        for line in hunk.lines
        if line.kind != " "
    ]


def added(patch: Patch, tests: bool = True) -> dict[str, bytes]:
    """Path and content of the files that a change adds, tests or others."""
    return {
        str(diff.new): b"".join(line.data for hunk in diff.hunks for line in hunk.lines)
        for diff in patch.files
        if diff.old is None and str(diff.new).startswith("tests/") is tests
    }


def file_of_test(upstream: Upstream, name: str) -> str:
    """File name of the test that a change adds."""
    (path,) = added(upstream.change(name))
    return Path(path).name


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_every_pending_fix_of_the_series_has_one(upstream: Upstream) -> None:
    pending = [
        path.name
        for path in upstream.series.glob("*.patch")
        if read_patch(path).trailer("Upstream-Status") == "Pending"
    ]
    apart = SETTINGS["apart"].get(upstream.name, {})
    assert sorted(pending) == sorted([*upstream.names, *apart])
    assert all(reason.strip() for reason in apart.values())


@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_it_is_the_change_of_the_series(upstream: Upstream, name: str) -> None:
    change = upstream.change(name)
    changed = [diff for diff in change.files if diff.old is not None]
    assert source_lines(changed) == source_lines(read_patch(upstream.series / name).files)
    # What the patch here takes from an overlay is a new file there.
    for path, data in added(change, tests=False).items():
        assert data == (ROOT / "overlays" / upstream.name / path).read_bytes()


@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_form_is_upstreams(upstream: Upstream, name: str) -> None:
    patch = upstream.change(name)
    assert re.match(upstream.subject, patch.subject)
    assert patch.message.strip() and not patch.trailers
    (test,) = added(patch)
    assert re.fullmatch(upstream.test, test)
    assert all(diff.new for diff in patch.files)


@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_it_applies_alone_and_exactly(upstream: Upstream, name: str) -> None:
    fork, base = open_fork(load_settings(ROOT)), upstream.base
    locked = next(iter(fork.lock.versions(upstream.name).values()))
    history = History.find([*mirrors_of(locked, fork.cache, SourceOptions())], base)
    if history is None:
        pytest.skip(
            f"no mirror of {upstream.name} has commit {base[:12]}:"
            f" name one with --mirror {upstream.name}=PATH"
        )
    for diff in upstream.change(name).files:
        if diff.old is None:
            assert history.read(base, str(diff.new)) is None
            continue
        data = history.read(base, diff.old)
        assert data is not None
        check_hunks(split_lines(data), diff, name)


def results(tests: Path, environment: Mapping[str, str], report: Path) -> dict[str, bool]:
    """Outcomes of the tests by file; a file that pytest cannot even collect is left out."""
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    subprocess.run(
        [*command, f"--junitxml={report}", "--rootdir", str(tests), "-c", os.devnull, str(tests)],
        env=dict(environment),
        cwd=tests,
        capture_output=True,
        check=False,
    )
    found: dict[str, bool] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.get("classname"):
            file = f"{case.attrib['classname'].rpartition('.')[2]}.py"
            found[file] = found.get(file, True) and len(case) == 0
    return found


def write_tests(folder: Path, upstream: Upstream, names: Collection[str]) -> Path:
    folder.mkdir()
    for name in names:
        for path, data in added(upstream.change(name)).items():
            (folder / Path(path).name).write_bytes(data)
    return folder


Outcomes = tuple[dict[str, bool], dict[str, bool]]


@pytest.fixture(scope="module")
def tvm_outcomes(tvm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcomes of tests on the pristine files of this release, and with all changes in."""
    patched = Path(str(tvm.__file__)).parents[2]
    folder = tmp_path_factory.mktemp("upstream")
    tests = write_tests(folder / "tests", TVM, TVM.names)
    trees = []
    for label in ("before", "after"):
        tree = folder / label
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(patched / "python/tvm", tree / "tvm", ignore=ignored)
        trees.append(tree)
    # The series changes these files by the fixes alone, and kv_cache.py by what is not upstream's.
    fixed = {str(d.old) for name in TVM.names for d in TVM.change(name).files if d.old}
    for path in (*fixed, REGISTRATION):
        show = ["git", "-C", str(patched), "show", f"refs/forkpatch/base:{path}"]
        pristine = subprocess.run(show, capture_output=True, check=True).stdout
        for tree in trees if path == REGISTRATION else trees[:1]:
            (tree / path.removeprefix("python/")).write_bytes(pristine)
    before, after = (
        results(tests, os.environ | {"PYTHONPATH": str(tree)}, folder / f"{tree.name}.xml")
        for tree in trees
    )
    return before, after


def mlc_results(
    folder: Path, trees: Path, changes: Collection[str], tested: Collection[str]
) -> dict[str, bool]:
    """Outcomes of the tests of ``tested`` on the pristine MLC-LLM with ``changes`` put on it."""
    tree = folder / "tree"
    pristine = folder / "pristine.tar"
    archive = ["git", "-C", str(trees / "mlc-llm"), "archive", f"--output={pristine}"]
    subprocess.run([*archive, "refs/forkpatch/base", "python"], check=True)
    unpack(pristine, tree)
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)}
    for name in changes:
        apply = ["git", "apply", "--include=python/*", str(MLC.folder / name)]
        subprocess.run(apply, cwd=tree, env=outside, check=True)
    tests = write_tests(folder / "tests", MLC, tested)
    return results(tests, MlcTools(tree, trees / "tvm").environment({}), folder / "report.xml")


@pytest.fixture(scope="module")
def mlc_outcomes(
    tvm: ModuleType, trees: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Outcomes of tests without their change, and with all changes in."""
    del tvm  # it skips where there is no TVM to run on
    try:
        MlcTools(trees / "mlc-llm", trees / "tvm").check()
    except UserError as error:
        pytest.skip(str(error))
    others = [name for name in MLC.names if name != IMPORT]
    make = tmp_path_factory.mktemp
    before = mlc_results(make("pristine"), trees, [], [IMPORT])
    before |= mlc_results(make("before"), trees, [IMPORT], others)
    return before, mlc_results(make("after"), trees, MLC.names, MLC.names)


@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_its_test_fails_before_and_passes_after(
    request: pytest.FixtureRequest, upstream: Upstream, name: str
) -> None:
    fixture = f"{upstream.name.partition('-')[0]}_outcomes"
    before, after = request.getfixturevalue(fixture)
    file = file_of_test(upstream, name)
    assert before.get(file) is False
    assert after.get(file) is True
