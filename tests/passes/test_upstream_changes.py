# SPDX-License-Identifier: Apache-2.0
"""The patches that upstream could take: each has upstream's form, applies alone, and has a test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from support.archives import unpack

from crosslab.compile.mlc import MlcTools
from crosslab.errors import UserError
from forkpatch.errors import SourceError
from forkpatch.git.objects import list_tree, read_blobs
from forkpatch.model.lock import Upstream as Locked
from forkpatch.model.patchfile import Patch, read_patch
from forkpatch.model.settings import load_settings
from forkpatch.model.weave import Weave
from forkpatch.series.submit import submit
from forkpatch.sources.history import History
from forkpatch.sources.obtain import SourceOptions, mirrors_of
from forkpatch.tree.fork import open_fork

ROOT = Path(__file__).resolve().parents[2]
FORK = open_fork(load_settings(ROOT))
MAP = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["forkpatch"]["map"]
REGISTRATION = "python/tvm/relax/frontend/nn/llm/kv_cache.py"
# Without this one, `import mlc_llm` fails where its native library is not built: the tests of the
# other changes run on top of it, before as after, and fail by what they test alone.
IMPORT = "import-without-native-library.patch"
TRAILERS = {"Upstream-Status", "Test", "Submit-With"}


@dataclass(frozen=True)
class Upstream:
    """Patches that a project could take, and the form in which it takes them.

    Attributes:
        subject: pattern of a commit's first line.
        test: pattern of the path of a change's test.
    """

    name: str
    subject: str
    test: str

    @property
    def newest(self) -> str:
        """The newest commit known."""
        return str(MAP["upstreams"][self.name]["until"])

    @property
    def locked(self) -> Locked:
        """Its version in the default release."""
        (version,) = (one for one in FORK.lock.release()[1] if one.name == self.name)
        return version

    @cached_property
    def changes(self) -> dict[str, Patch]:
        """The patches by name, in the order of the default release's series."""
        statuses = ((one, one.trailer("Upstream-Status") or "") for one in FORK.series(self.locked))
        return {one.name: one for one, status in statuses if re.match("Pending|Submitted", status)}

    def added(self, name: str) -> dict[str, bytes]:
        """Path and content of the new files with which a patch goes upstream."""
        patch = self.changes[name]
        named = FORK.submitted_with(self.locked, patch)
        return added(patch) | {path: file.data for path, file in named.items()}

    def test_of(self, name: str) -> str:
        """Path of the test with which a patch goes upstream."""
        (path,) = (path for path in self.added(name) if path.startswith("tests/"))
        return path

    def functions_of(self, name: str) -> set[str]:
        """Names of a change's test functions: where changes share a file, each has one.

        It has the patch's name.
        """
        path = self.test_of(name)
        found = re.findall(rb"^def (test_\w+)", self.added(name)[path], re.MULTILINE)
        functions = {function.decode() for function in found}
        sharing = {other for other in self.changes if self.test_of(other) == path}
        if sharing == {name}:
            return functions
        named = {f"test_{other.removesuffix('.patch').replace('-', '_')}" for other in sharing}
        assert functions == named
        return {f"test_{name.removesuffix('.patch').replace('-', '_')}"}


TVM = Upstream(
    "tvm",
    r"\[(Relax|Relax\]\[Frontend|TVMScript)\] [A-Z]",
    r"tests/python/(relax/test_(frontend_nn_llm|transform_legalize_ops)|tvmscript/test_tvmscript)_\w+\.py",
)
MLC = Upstream(
    "mlc-llm",
    r"\[(Fix|Feature)\] [A-Z]",
    r"tests/python/(compiler_pass|loader|model|op|support)/test_\w+\.py",
)
UPSTREAMS = [pytest.param(upstream, id=upstream.name) for upstream in (TVM, MLC)]
CHANGES = [
    pytest.param(upstream, name, id=f"{upstream.name}-{name.removesuffix('.patch')}")
    for upstream in (TVM, MLC)
    for name in upstream.changes
]


def source_lines(patch: Patch) -> list[tuple[str | None, str, bytes]]:
    """The lines that a patch adds to and removes from files that upstream has."""
    return [
        (diff.new, line.kind, line.data)
        for diff in patch.files
        for hunk in diff.hunks
        for line in hunk.lines
        if diff.old is not None and line.kind != " "
    ]


def added(patch: Patch) -> dict[str, bytes]:
    """Path and content of the files that a patch adds."""
    return {
        str(diff.new): b"".join(line.data for hunk in diff.hunks for line in hunk.lines)
        for diff in patch.files
        if diff.old is None
    }


@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_a_patch_has_upstreams_form(upstream: Upstream, name: str) -> None:
    patch = upstream.changes[name]
    assert re.match(upstream.subject, patch.subject)
    assert patch.message.strip().count("\n\n") >= 2  # subject, reason, trailers
    assert {key for key, _ in patch.trailers} <= TRAILERS
    assert re.fullmatch(upstream.test, upstream.test_of(name))
    assert all(diff.new for diff in patch.files)


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_all_patches_are_made_for_the_newest_commit(upstream: Upstream, tmp_path: Path) -> None:
    locked = list(FORK.lock.versions(upstream.name).values())[-1]
    history = History.find([*mirrors_of(locked, FORK.cache, SourceOptions())], upstream.newest)
    if history is None:
        pytest.skip(
            f"no mirror of {upstream.name} has commit {upstream.newest[:12]}:"
            f" name one with --mirror {upstream.name}=PATH"
        )
    try:
        report = submit(FORK, locked, upstream.newest, tmp_path / "out", SourceOptions())
    except SourceError as error:
        pytest.skip(str(error))
    assert not report.conflicts
    files = [read_patch(tmp_path / "out" / name) for name in report.patches]
    submitted = {patch.name.partition("-")[2]: patch for patch in files}
    assert sorted(submitted) == sorted(upstream.changes)
    listed = list_tree(history.git, upstream.newest)

    def read(path: str) -> bytes:
        oid = listed[path][1]
        return read_blobs(history.git, [oid])[oid] or b""

    weave = Weave({path: mode for path, (mode, _) in listed.items()}, read)
    known: set[str] = set()
    for name, patch in submitted.items():
        assert patch.message == upstream.changes[name].message
        assert source_lines(patch) == source_lines(upstream.changes[name])
        # The first of those that share a test brings it.
        wanted = upstream.added(name)
        assert added(patch) == {path: wanted[path] for path in wanted.keys() - known}
        known |= wanted.keys()
        weave.apply(patch)  # exactly, or not at all
        assert not weave.needs(patch.name)  # and alone


Results = dict[tuple[str, str], bool]


def results(tests: Path, environment: Mapping[str, str], report: Path) -> Results:
    """Outcomes of the tests by file and function; a file that pytest cannot collect is left out."""
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib"]  # two files have the same name
    subprocess.run(
        [*command, f"--junitxml={report}", "--rootdir", str(tests), "-c", os.devnull, str(tests)],
        env=dict(environment),
        cwd=tests,
        capture_output=True,
        check=False,
    )
    found: Results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.get("classname"):
            file = f"{case.attrib['classname'].replace('.', '/')}.py"
            test = file, case.attrib["name"].partition("[")[0]
            found[test] = found.get(test, True) and len(case) == 0
    return found


def write_tests(folder: Path, upstream: Upstream, names: Collection[str]) -> Path:
    for name in names:
        path = upstream.test_of(name)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(upstream.added(name)[path])
    return folder


Outcomes = tuple[Results, Results]


@pytest.fixture(scope="module")
def tvm_outcomes(tvm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcomes of tests on the pristine files of this release, and with all changes in."""
    patched = Path(str(tvm.__file__)).parents[2]
    folder = tmp_path_factory.mktemp("upstream")
    tests = write_tests(folder / "tests", TVM, TVM.changes)
    trees = []
    for label in ("before", "after"):
        tree = folder / label
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(patched / "python/tvm", tree / "tvm", ignore=ignored)
        trees.append(tree)
    # The series changes these files by the fixes alone, and kv_cache.py by what is not upstream's.
    fixed = {str(d.old) for patch in TVM.changes.values() for d in patch.files if d.old}
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
) -> Results:
    """Outcomes of the tests of ``tested`` on the pristine MLC-LLM with ``changes`` put on it."""
    tree = folder / "tree"
    pristine = folder / "pristine.tar"
    archive = ["git", "-C", str(trees / "mlc-llm"), "archive", f"--output={pristine}"]
    subprocess.run([*archive, "refs/forkpatch/base", "python"], check=True)
    unpack(pristine, tree)
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder)}
    for name in changes:
        patch = FORK.patch_file(MLC.locked, MLC.changes[name])
        apply = ["git", "apply", "--include=python/*", str(patch)]
        subprocess.run(apply, cwd=tree, env=outside, check=True)
        for path, data in MLC.added(name).items():
            if path.startswith("python/"):
                (tree / path).write_bytes(data)
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
    others = [name for name in MLC.changes if name != IMPORT]
    make = tmp_path_factory.mktemp
    before = mlc_results(make("pristine"), trees, [], [IMPORT])
    before |= mlc_results(make("before"), trees, [IMPORT], others)
    return before, mlc_results(make("after"), trees, MLC.changes, MLC.changes)


@pytest.mark.slow
@pytest.mark.parametrize(("upstream", "name"), CHANGES)
def test_the_test_of_a_patch_fails_without_it_and_passes_with_it(
    request: pytest.FixtureRequest, upstream: Upstream, name: str
) -> None:
    fixture = f"{upstream.name.partition('-')[0]}_outcomes"
    before, after = request.getfixturevalue(fixture)
    file, functions = upstream.test_of(name), upstream.functions_of(name)
    # As a whole: of several functions one may pass before.
    assert all((file, function) in before for function in functions)
    assert not all(before[file, function] for function in functions)
    assert all(after.get((file, function)) for function in functions)
