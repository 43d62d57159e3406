# SPDX-License-Identifier: Apache-2.0
"""A conversion through MLC-LLM that was killed goes on where its last whole shard ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.mlc_tree import ROOT, TINY, hf_weights, tools, write_model

from groundwork.hashing import sha256_by_path

pytestmark = pytest.mark.slow

SHARD_BYTES = 40_000
# MLC-LLM's Python, with small shards, which ends its caller and itself after so many of them and
# says what is quantized.
PYTHON = f"""#!{sys.executable}
import os, runpy, signal, sys
if not any(word.endswith("resumable_convert.py") for word in sys.argv):
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
import functools
from pathlib import Path
from tvm.contrib import tvmjs

class Shards(tvmjs.TensorCacheShardingManager):
    def __init__(self, folder, prefix, cap, **options):
        super().__init__(folder, prefix, {SHARD_BYTES}, **options)

    def append_or_update(self, *arguments, **options):
        if len(self.shard_records) == int(os.environ["KILLED_AT"]):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        super().append_or_update(*arguments, **options)

tvmjs.TensorCacheShardingManager = Shards
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
CONVERT = """
import sys
from pathlib import Path
from crosslab.compile.mlc import MlcTools, convert_weight
mlc, tvm, python, model, quantization, cache = sys.argv[1:]
sys.executable = python
convert_weight(MlcTools(Path(mlc), Path(tvm)), Path(model), quantization, Path(cache))
"""


@pytest.mark.parametrize(
    ("quantization", "damaged"),
    [("q4f16_1", True), pytest.param("q0f32", False, marks=pytest.mark.thorough)],
)
def test_a_killed_conversion_goes_on(tmp_path: Path, quantization: str, damaged: bool) -> None:
    mlc = tools()
    model = write_model(tmp_path / "model", hf_weights(TINY, 7))
    python = tmp_path / "python"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)

    def convert(cache: str, killed_at: int = -1) -> subprocess.CompletedProcess[str]:
        words = [mlc.mlc_tree, mlc.tvm_tree, python, model, quantization, tmp_path / cache]
        return subprocess.run(
            [sys.executable, "-c", CONVERT, *map(str, words)],
            env={"PYTHONPATH": str(ROOT / "packages/crosslab/src"), "KILLED_AT": str(killed_at)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def result(cache: str) -> dict[str, str]:
        return sha256_by_path(next((tmp_path / cache).glob("mlc-params-*")))

    def quantized(cache: str) -> int:
        (log,) = (tmp_path / cache / "logs").iterdir()
        return log.read_text(encoding="utf-8").count("uantized] Parameter")

    whole = convert("whole")
    assert whole.returncode == 0, whole.stderr
    assert convert("cache", killed_at=4).returncode == -signal.SIGKILL
    (part,) = (tmp_path / "cache").glob(".mlc-params-*-part")
    if damaged:
        (part / "params_shard_2.bin").write_bytes(b"short")

    again = convert("cache")

    assert again.returncode == 0, again.stderr
    said = f"{2 if damaged else 4} finished shards of an interrupted run are reused"
    assert said in " ".join(again.stderr.split())
    assert quantized("cache") < quantized("whole")
    assert result("cache") == result("whole")
    assert "tensor-cache.json" in result("cache")
