# SPDX-License-Identifier: Apache-2.0
"""The whole job under faults, from a warm cache: killed, interrupted, at odd paths, twice at once.

``CROSSLAB_KILLS`` sets how often it is killed and interrupted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from runner_kit import CACHE, PROJECT, cross, need_emulator, runtime, tvm_tree

from crosslab.artifact.manifest import MANIFEST
from crosslab.errors import LabError
from crosslab.models.asset import fetch_asset
from crosslab.pins import read_pins

KILLS = int(os.environ.get("CROSSLAB_KILLS", "1"))
SEED = 20261121
LIMIT = 900


@dataclass(frozen=True)
class Place:
    """A project folder with patched trees in it, as the sessions would call the job there."""

    root: Path

    @property
    def report(self) -> Path:
        return self.root / "out" / "report.json"

    def start(self, **extra: str) -> subprocess.Popen[str]:
        words = ["--project", str(self.root), "--tvm-tree", str(self.root / "tvm")]
        words += ["--release", "faults", "--json", str(self.report), "--max-new", "2"]
        return subprocess.Popen(
            [sys.executable, "-m", "crosslab", "build-and-test", *words],
            env={**os.environ, "PYTHONPATH": str(PROJECT / "scripts"), "COLUMNS": "200", **extra},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, **extra: str) -> tuple[int, str]:
        process = self.start(**extra)
        _, said = process.communicate(timeout=LIMIT)
        return process.returncode, said

    def check(self) -> None:
        """The answer is there, and right as far as it goes."""
        report = json.loads(self.report.read_text(encoding="utf-8"))
        assert report["right"], report
        assert report["tokens"] == report["reference_tokens"] == [504, 3575]
        (manifest,) = (self.root / "dist").glob(f"*/*/*/{MANIFEST}")
        assert json.loads(manifest.read_text(encoding="utf-8"))["release"] == "faults"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A project at a path with blanks and letters that are not ASCII; everything in the cache."""
    need_emulator(plugins=True)
    cross()
    runtime()
    try:
        fetch_asset(read_pins(PROJECT).asset("smollm2-135m"), CACHE)
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")
    place = Place(tmp_path_factory.mktemp("faults") / "ä b" / "模型 'q'")
    place.root.mkdir(parents=True)
    for name in ("VERSIONS.lock", "pyproject.toml"):
        shutil.copy(PROJECT / name, place.root)
    for name in ("patches", "overlays", "kernels"):
        shutil.copytree(PROJECT / name, place.root / name)
    shutil.copytree(tvm_tree(), place.root / "tvm", symlinks=True)
    code, said = place.run()
    assert code == 0, said
    place.check()
    return place


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def test_private_umask_and_clock_set_back(place: Place, umask: None) -> None:
    shutil.rmtree(place.root / "dist")
    for path in [*CACHE.iterdir(), *place.root.rglob("*")]:
        os.utime(path, (4e9, 4e9), follow_symlinks=False)
    code, said = place.run()
    assert code == 0, said
    assert ": building" not in said
    place.check()


def _ended(
    place: Place, how: Callable[[subprocess.Popen[str]], None], span: float
) -> Iterator[tuple[int, str]]:
    chance = random.Random(SEED)
    for _ in range(KILLS):
        process = place.start()
        time.sleep(chance.uniform(0.05, 1.0) * span)
        how(process)
        _, said = process.communicate(timeout=LIMIT)
        yield process.returncode, said


def test_killed_and_interrupted_at_random_moments(place: Place) -> None:
    began = time.monotonic()
    assert place.run()[0] == 0
    span = time.monotonic() - began
    for code, said in _ended(place, lambda process: process.send_signal(signal.SIGINT), span):
        assert code in (0, 130), said
        assert "Traceback" not in said
        assert code == 0 or "interrupted" in said
    for code, _ in _ended(place, subprocess.Popen.kill, span):
        assert code in (0, -signal.SIGKILL)
    code, said = place.run()
    assert code == 0, said
    place.check()
    left = [p.name for p in (place.root / "out").iterdir() if p != place.report]
    assert not left


def test_two_runs_at_once(place: Place) -> None:
    shutil.rmtree(place.root / "dist", ignore_errors=True)
    first, second = place.start(), place.start()
    for process in (first, second):
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
    place.check()


def test_stage_removed_from_the_cache_is_made_again(place: Place, tmp_path: Path) -> None:
    """A cache of links to the real one; what is built in it goes while the job runs."""
    cache = tmp_path / "mlc-rvv" / "crosslab"
    cache.mkdir(parents=True)
    for entry in CACHE.iterdir():
        if entry.is_dir():
            (cache / entry.name).symlink_to(entry)
    for entry in cache.glob("library-*"):
        entry.unlink()
    process = place.start(XDG_CACHE_HOME=str(tmp_path))
    while process.poll() is None:
        for entry in cache.glob("library-*"):
            shutil.rmtree(entry, ignore_errors=True)
        time.sleep(0.01)
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode in (0, 1, 2)
    assert "Traceback" not in said
    # What went is named, whichever step missed it.
    assert process.returncode == 0 or ("error: " in said and str(tmp_path) in said), said
    code, said = place.run(XDG_CACHE_HOME=str(tmp_path))
    assert code == 0, said
    place.check()
