# SPDX-License-Identifier: Apache-2.0
"""One lock for all that is written in a fork; a fork that cannot be written is still read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forklab import ForkLab, core

from forkpatch.model.settings import load_settings
from forkpatch.tree.claim import Claim, claimed
from forkpatch.tree.swap import scratch_beside

CORE_PATH = "python/calc/core.py"
WRITERS = {
    "apply": ("apply",),
    "edit": ("edit", "calc"),
    "export": ("export",),
    "import-series": ("import-series", "calc", "FOREIGN"),
    "lock": ("lock",),
    "rebase": ("rebase", "calc", "--abort"),
    "record": ("record",),
}


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    diff = f"--- a/{CORE_PATH}\n+++ b/{CORE_PATH}\n@@ -2,1 +2,2 @@\n     check(a)\n+    log(a)\n"
    (folder / "log.patch").write_text(diff)
    (folder / "series").write_text("log.patch\n")
    return folder


@pytest.mark.parametrize("verb", WRITERS)
def test_each_verb_that_writes_waits_for_the_one_at_work(
    lab: ForkLab, foreign: Path, verb: str
) -> None:
    lab.ok("apply")
    words = [str(foreign) if word == "FOREIGN" else word for word in WRITERS[verb]]
    with claimed(load_settings(lab.root), Claim.WRITE):
        process = lab.spawn(*words)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert f"waiting: {lab.root} is in use by process {os.getpid()}" in line
        assert process.poll() is None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()


def test_readers_leave_the_scratch_folders_of_a_living_run_alone(lab: ForkLab) -> None:
    lab.ok("apply")
    with claimed(load_settings(lab.root), Claim.WRITE):
        living = [scratch_beside(lab.patches), scratch_beside(lab.tree)]
        assert "applied" in lab.ok("status").out
        assert all(folder.is_dir() for folder in living)
    lab.ok("status")
    assert not any(folder.exists() for folder in living), "left by a run that is over"


def test_status_beside_an_import_does_it_no_harm(lab: ForkLab, foreign: Path) -> None:
    process = lab.spawn("import-series", "calc", str(foreign))
    while process.poll() is None:
        lab.ok("status")
    _, err = process.communicate()
    assert process.returncode == 0, err.decode()
    assert (lab.patches / "series").read_text() == "log.patch\n"


def test_read_only_fork_is_read(lab: ForkLab, disk: Callable[..., Any], tmp_path: Path) -> None:
    lab.change("a.patch", {CORE_PATH: core(add="a")})
    lab.ok("record")
    lab.ok("apply")
    frozen = disk("64m", tmp_path / "frozen")
    shutil.copytree(lab.root, frozen.path, dirs_exist_ok=True, symlinks=True)
    lab.root = frozen.path
    frozen.freeze()
    (tree,) = lab.ok("status", "--json", "-").json["upstreams"]
    assert tree["state"] == "applied", tree["reasons"]
    assert lab.ok("export", "--check").out == "calc 1.0: 1 patch, unchanged\n"
    assert "no rebase" in lab.ok("rebase", "calc", "--status").out
    lab.ok("record", "--check")
    lab.ok("lock", "--check")
    done = lab.run("apply")
    assert done.code == 2 and "Read-only file system" in done.err


# Root writes where nobody may, unless it gives up the right to.
POWERLESS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


def test_folder_without_permission_to_write_is_read(lab: ForkLab, tmp_path: Path) -> None:
    prefix = POWERLESS if os.geteuid() == 0 else ()
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root cannot give up its rights here")
    lab.change("a.patch", {CORE_PATH: core(add="a")})
    lab.ok("record")
    lab.ok("apply")
    places = [lab.root, *lab.root.rglob("*")]
    modes = {path: path.stat().st_mode for path in places if not path.is_symlink()}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        for words, code, said in (
            (("status",), 0, "applied"),
            (("export", "--check"), 0, "calc 1.0: 1 patch, unchanged\n"),
            (("rebase", "calc", "--status"), 0, "no rebase of calc is under way\n"),
            (("apply",), 2, "Permission denied"),
        ):
            done = subprocess.run(
                [*prefix, sys.executable, "-m", "forkpatch", "--root", str(lab.root), *words],
                env=dict(os.environ),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == code, (words, done.stderr)
            assert said in done.stdout + done.stderr, words
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
