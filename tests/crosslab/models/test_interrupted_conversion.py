# SPDX-License-Identifier: Apache-2.0
"""A conversion that was killed goes on where its last whole shard ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import param_shapes, random_model
from groundwork.hashing import sha256_by_path

CONFIG = LlamaConfig(
    hidden=64, intermediate=96, layers=3, heads=2, kv_heads=1, head_dim=32, vocab=100
)
CONVERT = """
import functools, os, pathlib, signal, sys
from crosslab.errors import UserError
from crosslab.models import llama_params as lab

def traced(model, config, but=(), fuse=lab.fuse_weights):
    for number, (name, values) in enumerate(fuse(model, config, but)):
        if number == int(sys.argv[3]) and len(sys.argv) > 4:
            full = OSError(28, "No space left on device")
            raise {"disk": full, "input": UserError("bad")}[sys.argv[4]]
        if number == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        print(name, flush=True)
        yield name, values

lab.fuse_weights = traced
lab.write_params = functools.partial(lab.write_params, shard_bytes=20000)
lab.convert_params(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
"""


def convert(
    model: Path, cache: Path, ends_at: int = -1, *error: str
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", CONVERT, str(model), str(cache), str(ends_at), *error]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def result(cache: Path) -> dict[str, str]:
    return sha256_by_path(next(cache.glob("params-q0f32-*")))


@pytest.mark.parametrize("damage", ["nothing", "a shard", "the journal"])
def test_a_killed_conversion_goes_on_after_its_last_whole_shard(
    tmp_path: Path, damage: str
) -> None:
    model = random_model(CONFIG, 1, tmp_path / "models")
    whole, cache = tmp_path / "whole", tmp_path / "cache"
    assert convert(model, whole).returncode == 0
    killed = convert(model, cache, ends_at=14)
    assert killed.returncode == -signal.SIGKILL
    assert not list(cache.glob("params-q0f32-*"))
    part = next(cache.glob(".params-q0f32-*-part"))
    shards = sorted(part.glob("params_shard_*.bin"))
    assert len(shards) >= 3
    if damage == "a shard":
        shards[1].write_bytes(bytes(shards[1].stat().st_size))
    if damage == "the journal":
        journal = part / "finished-shards.jsonl"
        journal.write_text(journal.read_text()[:-9])
    reused = {"nothing": len(shards), "a shard": 1, "the journal": len(shards) - 1}[damage]

    again = convert(model, cache)

    assert again.returncode == 0, again.stderr
    assert f"{reused} finished shards of an interrupted run are reused" in again.stderr
    assert len(again.stdout.splitlines()) < len(param_shapes(CONFIG))
    assert result(cache) == result(whole)
    assert not list(cache.glob(".params-q0f32-*-part"))


@pytest.mark.parametrize(("error", "kept"), [("disk", True), ("input", False)])
def test_a_full_disk_keeps_the_finished_shards_and_refused_weights_do_not(
    tmp_path: Path, error: str, kept: bool
) -> None:
    model = random_model(CONFIG, 1, tmp_path / "models")
    failed = convert(model, tmp_path, 14, error)
    assert failed.returncode == 1
    part = list(tmp_path.glob(".params-q0f32-*-part"))
    assert bool(part) == kept
    assert ("kept for the next run" in failed.stderr) == kept
    again = convert(model, tmp_path)
    assert again.returncode == 0, again.stderr
    assert ("are reused" in again.stderr) == kept
