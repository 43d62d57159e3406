# SPDX-License-Identifier: Apache-2.0
"""The whole job under faults, from a warm cache: killed, interrupted, at odd paths, twice at once.

The model is a tiny one: nothing here depends on its size.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny_model
from support.shared_builds import CACHE, cross, runtime, tvm_tree

from crosslab.artifact.dist import OBJECTS
from crosslab.artifact.manifest import MANIFEST
from crosslab.artifact.package import main as package_main
from crosslab.artifact.package import tarball_of
from crosslab.errors import UserError

pytestmark = pytest.mark.usefixtures("counting_emulator")

KILLS = int(os.environ.get("CROSSLAB_KILLS", "1"))
SEED = 20261121
LIMIT = 900
# Made anew in an emptied cache: all but the model, the runtime and the runner's own objects.
# Ending the compilation of those is tried on small files, in test_cache.
BUILT = (
    *("counter-", "device-tokenizer-", "kernels-", "library-", "relink-", "runner-riscv64-"),
    "verdict-",
)
# The job, which then names the builds that it made or took.
NAMING = """
from crosslab import cached_build
from crosslab.__main__ import main
if main() == 0:
    print(*cached_build.whole_builds, sep="\\n")
"""


@dataclass(frozen=True)
class Place:
    """A project folder with patched trees in it, as the sessions would call the job there.

    Attributes:
        root: the folder.
        builds: folders in the cache that the job needs.
    """

    root: Path
    builds: frozenset[Path] = frozenset()

    @property
    def report(self) -> Path:
        return self.root / "out" / "report.json"

    def start(self, *options: str, **extra: str) -> subprocess.Popen[str]:
        return self._start(["-m", "crosslab"], *options, **extra)

    def _start(self, how: list[str], *options: str, **extra: str) -> subprocess.Popen[str]:
        words = ["--project", str(self.root), "--tvm-tree", str(self.root / "tvm")]
        words += ["--model", tiny_model.NAME, "--release", "faults", "--json", str(self.report)]
        words += ["--max-new", "2", *options]
        return subprocess.Popen(
            [sys.executable, *how, "build-and-test", *words],
            env={**os.environ, "COLUMNS": "200", **extra},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *options: str, **extra: str) -> tuple[int, str]:
        process = self.start(*options, **extra)
        _, said = process.communicate(timeout=LIMIT)
        return process.returncode, said

    def made(self) -> frozenset[Path]:
        """Run the job; the folders in the cache that it needs."""
        process = self._start(["-c", NAMING])
        printed, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
        return frozenset(Path(line) for line in printed.splitlines() if line.startswith("/"))

    @property
    def kept(self) -> bool:
        """True if the last run took the verdict of an earlier one."""
        return bool(json.loads(self.report.read_text(encoding="utf-8"))["kept"])

    def check(self) -> None:
        """The answer is there, and right as far as it goes."""
        report = json.loads(self.report.read_text(encoding="utf-8"))
        assert report["right"], report
        assert report["tokens"] == report["reference_tokens"]
        assert len(report["tokens"]) == 2
        tensorized = {entry["block"] for entry in report["tensorized"] if entry["symbol"]}
        assert {"S_gemm", "O_gemm"} <= tensorized
        assert report["counters"]["prefill"]["vector"] > 0
        assert self.manifest()["release"] == "faults"
        assert self.manifest()["verdict"] == "right"

    @property
    def model(self) -> Path:
        """The finished model."""
        found = (path.parent for path in (self.root / "dist").glob(f"*/*/*/{MANIFEST}"))
        (folder,) = (path for path in found if not path.name.endswith(OBJECTS))
        return folder

    def manifest(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads((self.model / MANIFEST).read_text(encoding="utf-8"))
        return table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A project at a path with blanks and letters that are not ASCII; everything in the cache."""
    cross()
    runtime()
    place = Place(tmp_path_factory.mktemp("faults") / "ä b" / "模型 'q'")
    tiny_model.make_project(place.root)
    shutil.copytree(tvm_tree(), place.root / "tvm", symlinks=True)
    builds = place.made()
    place.check()
    return replace(place, builds=builds)


@dataclass(frozen=True)
class Robbed:
    """A run whose library was taken from the cache, and the run after it.

    Attributes:
        folder: where the cache is.
        code: exit code of the first.
        said: what the first said.
        seconds: what the second took, which had to compile and link.
    """

    folder: Path
    code: int
    said: str
    seconds: float


@pytest.fixture(scope="module")
def robbed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Robbed:
    """A cache of links to the real one; the library goes while the job runs. There is no home."""
    folder = tmp_path_factory.mktemp("robbed")
    cache = linked_cache(folder, *BUILT)
    process = place.start(XDG_CACHE_HOME=str(folder))
    while process.poll() is None:
        for entry in cache.glob("library-*"):
            shutil.rmtree(entry, ignore_errors=True)
        time.sleep(0.01)
    _, first = process.communicate(timeout=LIMIT)
    began = time.monotonic()
    code, said = place.run(HOME="/no/home", XDG_CACHE_HOME=str(folder))
    assert code == 0, said
    place.check()
    return Robbed(folder, process.returncode, first, time.monotonic() - began)


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def linked_cache(folder: Path, *without: str) -> Path:
    """A cache of links to the user's own, but for what begins with these names."""
    cache = folder / "mlc-rvv" / "crosslab"
    cache.mkdir(parents=True)
    for entry in CACHE.iterdir():
        if entry.is_dir() and not entry.name.startswith((".", *without)):
            (cache / entry.name).symlink_to(entry)
    return cache


def copied_cache(folder: Path, stages: set[str]) -> Path:
    """A cache of its own with these stages, and what is known of them."""
    cache = folder / "mlc-rvv" / "crosslab"
    cache.mkdir(parents=True)
    copy = ["cp", "--archive", "--reflink=auto"]
    for name in stages:
        paths = [CACHE / name, CACHE / f".{name}.sums"]
        subprocess.run([*copy, *map(str, paths), str(cache)], check=True)
    return cache


def test_the_verdict_on_the_same_inputs_is_kept(place: Place) -> None:
    code, said = place.run()
    assert code == 0, said
    assert place.kept
    assert "emulator:" not in said and "kept from" in said
    # The user's cache has no verdict on a new prompt.
    for options in (("--again",), ("--prompt", f"hi {time.time_ns()}")):
        code, said = place.run(*options)
        assert code == 0, said
        assert not place.kept
        assert "emulator: " in said
    place.check()


def test_private_umask_and_clock_set_back(place: Place, umask: None, tmp_path: Path) -> None:
    """All that lies there is from the future; the user's own cache is left alone."""
    cache = copied_cache(tmp_path, {path.name for path in place.builds})
    shutil.rmtree(place.root / "dist")
    for path in [*cache.rglob("*"), *place.root.rglob("*")]:
        os.utime(path, (4e9, 4e9), follow_symlinks=False)
    code, said = place.run(XDG_CACHE_HOME=str(tmp_path))
    assert code == 0, said
    assert ": building" not in said and ": damaged" not in said
    place.check()


@pytest.mark.thorough
def test_stage_removed_from_the_cache_is_made_again(robbed: Robbed) -> None:
    assert robbed.code in (0, 1, 2)
    assert "Traceback" not in robbed.said
    # What went is named, whichever step missed it.
    named = "error: " in robbed.said and str(robbed.folder) in robbed.said
    assert robbed.code == 0 or named, robbed.said


@pytest.mark.thorough
def test_home_that_is_missing_is_not_needed(robbed: Robbed) -> None:
    assert (robbed.folder / "mlc-rvv").is_dir()
    assert not Path("/no").exists()


def test_read_only_home_names_the_way_out(
    place: Place, disk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = disk("64k", tmp_path / "home")
    home.freeze()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    code, said = place.run(HOME=str(home.path))
    assert code == 2, said
    assert "Read-only file system" in said and "XDG_CACHE_HOME=DIR" in said
    assert "Traceback" not in said


def _ended(place: Place, signum: int, moment: float, folder: Path) -> tuple[int, str]:
    """A run that is sent a signal after so many seconds."""
    process = place.start(XDG_CACHE_HOME=str(folder))
    time.sleep(moment)
    process.send_signal(signum)
    _, said = process.communicate(timeout=LIMIT)
    return process.returncode, said


@pytest.mark.thorough
def test_ended_at_random_moments(place: Place, robbed: Robbed, tmp_path: Path) -> None:
    """Killed, and interrupted on what that left, each while it has to compile and link."""
    chance = random.Random(SEED)
    for turn in range(KILLS):
        folder = tmp_path / str(turn)
        cache = linked_cache(folder, *BUILT)
        killed, interrupted = (chance.uniform(0.05, 1.0) * robbed.seconds for _ in range(2))
        code, said = _ended(place, signal.SIGKILL, killed, folder)
        assert code in (0, -signal.SIGKILL), said
        code, said = _ended(place, signal.SIGINT, interrupted, folder)
        # While Python itself starts or shuts down, the signal ends it: 130 to a shell.
        assert code in (0, 130, -signal.SIGINT), said
        assert "Traceback" not in said
        assert code != 130 or "interrupted" in said
        assert code != -signal.SIGINT or not said or "report " in said
        # The next run on the same cache takes nothing half-made, and leaves nothing of it.
        again, told = place.run(XDG_CACHE_HOME=str(folder))
        assert again == 0, told
        place.check()
        assert not [path.name for path in cache.glob(".*") if path.is_dir()]
        assert list((place.root / "out").iterdir()) == [place.report]


# An emulator with a fault: its CPU writes a wrong logit, or the program ends without an answer.
FAULTY = """#!/bin/sh
case "$FAULT $*" in "crash "*" --logits "*) exit 1 ;; esac
{qemu} "$@" || exit
for word; do
  [ "$last" != --logits ] || printf '\\0\\0\\100\\100' | dd of="$word" conv=notrunc 2>/dev/null
  last=$word
done
"""


@pytest.mark.parametrize("fault", ["number", "crash"])
def test_a_model_that_failed_is_not_packed(place: Place, tmp_path: Path, fault: str) -> None:
    """Nor the right one of an earlier run, whose place it takes."""
    faulty = tmp_path / "qemu-riscv64"
    faulty.write_text(FAULTY.format(qemu=shutil.which("qemu-riscv64")), encoding="utf-8")
    faulty.chmod(0o755)
    older = tarball_of(place.model, "faults", place.model.parent.name, place.root / "dist")
    older.touch()
    code, said = place.run(PATH=f"{tmp_path}:{os.environ['PATH']}", FAULT=fault)
    assert code == 1, said
    assert f"earlier build: {older} is not of this run" in said
    assert place.manifest()["verdict"] == "wrong"
    with pytest.raises(UserError, match="its answer was wrong, or it gave none"):
        package_main(["--project", str(place.root)])
    assert older.stat().st_size == 0
    older.unlink()


@pytest.mark.thorough
def test_two_runs_at_once(place: Place) -> None:
    shutil.rmtree(place.root / "dist", ignore_errors=True)
    first, second = place.start(), place.start()
    for process in (first, second):
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
    place.check()
