# SPDX-License-Identifier: Apache-2.0
"""Upstream's test suite at the pinned commit, and the trees for its runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forkpatch.errors import SourceError, UserError
from forkpatch.git.calls import Git, GitError
from forkpatch.git.objects import list_tree, read_available
from forkpatch.model.lock import Upstream
from forkpatch.regression import recorder
from forkpatch.regression.selection import TestTable
from forkpatch.safety import check_path
from forkpatch.sources.history import History
from forkpatch.sources.obtain import SourceOptions, mirrors_of
from forkpatch.tree.fork import Fork, TreePlan
from forkpatch.tree.variants import write_variant
from groundwork.files import atomic_write

PRISTINE = "pristine"
OURS = "ours"
FOLDER = "upstream-tests"
_PLUGIN = "forkpatch_recorder"
_HELPERS = ("conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini")


@dataclass(frozen=True, eq=False)
class Suite:
    """Upstream's tests of a version, written to a folder.

    Attributes:
        table: the fork's table of the tests.
        commit: the commit of the tests.
        folder: folder with the tests at upstream's paths.
        files: contents of the test files, by path.
        absent: files that the mirror lacks.
    """

    upstream: Upstream
    table: TestTable
    commit: str
    folder: Path
    files: Mapping[str, bytes]
    absent: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Side:
    """Trees of all upstreams for runs of tests.

    Attributes:
        name: ``pristine``, ``ours``, or ``without-`` and a patch.
        trees: folder of the tree, by upstream.
        key: hash of all inputs of a test run except the tests.
    """

    name: str
    trees: Mapping[str, Path]
    key: str


class NoSuiteError(SourceError):
    """No mirror has upstream's tests."""

    exit_code = 2


def open_suite(fork: Fork, upstream: Upstream, table: TestTable, chosen: SourceOptions) -> Suite:
    """Write upstream's tests at the pinned commit to a folder.

    Raises:
        NoSuiteError: no mirror on this machine has the commit.
    """
    commit = table.commits.get(upstream.version, upstream.commit)
    if not commit:
        raise UserError(
            f"{upstream}: the lock has no commit of it",
            remedy=f"name the commit of its tests under [commits] in {table.file}",
        )
    history = History.find(mirrors_of(upstream, fork.cache, chosen), commit)
    if history is None:
        raise NoSuiteError(
            f"{upstream}: its tests are in its git repository alone, and no mirror has {commit}",
            remedy=f"type: --mirror {upstream.name}=PATH, a clone of {upstream.url} on this disk",
        )
    files, absent = _read_tests(history.git, commit, table.folder)
    folder = fork.settings.work / FOLDER / f"{upstream.name}-{commit[:12]}"
    for path, data in files.items():
        target = folder / check_path(path, f"commit {commit}")
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, data)
    plugin = folder / ".plugin" / f"{_PLUGIN}.py"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(str(recorder.__file__), plugin)
    atomic_write(plugin.with_name("pytest.ini"), "[pytest]\n")
    return Suite(upstream, table, commit, folder, files, absent)


def _read_tests(git: Git, commit: str, folder: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the contents of the test files of a commit, and the files that the mirror lacks."""
    try:
        listed = list_tree(git, commit, folder, *_HELPERS)
    except GitError as error:
        raise NoSuiteError(f"the mirror lacks folders of commit {commit}: {error.what}") from error
    listed = {path: entry for path, entry in listed.items() if entry[0].startswith("100")}
    blobs = read_available(git, (oid for _, oid in listed.values()))
    contents = {path: blobs[oid] for path, (_, oid) in listed.items()}
    available = {path: data for path, data in contents.items() if data is not None}
    return available, tuple(sorted(set(contents) - set(available)))


def pytest_options(suite: Suite) -> list[str]:
    """Return pytest's options that apply upstream's settings and no others."""
    settings = suite.folder / "pyproject.toml"
    if b"[tool.pytest" not in suite.files.get(settings.name, b""):
        settings = plugin_folder(suite) / "pytest.ini"
    fixed = ["-p", _PLUGIN, "-p", "no:cacheprovider", "-p", "no:xdist"]
    where = ["-c", str(settings), "--rootdir", str(suite.folder)]
    return ["-q", *fixed, *where, "--confcutdir", str(suite.folder)]


def plugin_folder(suite: Suite) -> Path:
    """Return the folder that holds only the recorder."""
    return suite.folder / ".plugin"


def make_side(
    fork: Fork, plans: Mapping[str, TreePlan], name: str, without: Mapping[str, Collection[str]]
) -> Side:
    """Write the trees of a side, unless they exist already.

    The side ``pristine`` has neither patches nor overlays; ``without`` has the patches to leave
    out, by upstream.
    """
    trees, keys = {}, {}
    for upstream, plan in plans.items():
        gone = without.get(upstream, ())
        kept = (
            [] if name == PRISTINE else [patch for patch in plan.weave.patches if patch not in gone]
        )
        key = _tree_key(plan, kept, overlays=name != PRISTINE)
        tree = fork.settings.work / FOLDER / "trees" / f"{upstream}-{key}"
        if not tree.is_dir():
            tree.parent.mkdir(parents=True, exist_ok=True)
            write_variant(plan, kept, tree, with_overlays=name != PRISTINE)
        trees[upstream], keys[upstream] = tree, key
    packages = {(package.name, package.version) for package in importlib.metadata.distributions()}
    return Side(name, trees, _digest([sorted(keys.items()), sys.version, sorted(packages)]))


def _tree_key(plan: TreePlan, kept: Sequence[str], *, overlays: bool) -> str:
    """Return the hash of a tree's base, patches and overlays."""
    hashes = {patch.name: (patch.sha256, patch.positions) for patch in plan.patches}
    files = {path: file.blob for path, file in plan.overlays.items()} if overlays else {}
    return _digest(
        [plan.upstream.tree, [(name, hashes[name]) for name in kept], sorted(files.items())]
    )


def suite_key(suite: Suite, side: Side, path: str) -> str:
    """Return the hash of all inputs of a test file on a side."""
    table = suite.table
    settings = [sorted(table.variables().items()), table.before, table.python]
    helpers = [
        hashlib.sha256(data).hexdigest()
        for name, data in sorted(suite.files.items())
        if name == path or not name.rpartition("/")[2].startswith("test_")
    ]
    source = Path(str(recorder.__file__)).read_text("utf-8")
    return _digest([side.key, settings, helpers, source])


def _digest(value: object) -> str:
    """Return a short hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
