# SPDX-License-Identifier: Apache-2.0
"""A compiled tiny model whose linear layers a device computes: on this machine and for RVV."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds, tiny_runner
from support.tiny_runner import CHUNK, CONFIG, VLEN

from accelerator.device import load_device
from accelerator.host.driver import driver_objects
from accelerator.host.params import int8_params
from accelerator.model import IntegerProduct
from crosslab.build.link import LinkRequest, link_runner
from crosslab.compile.driver import CompiledModel, CompileRequest, compile_llama
from crosslab.compile.modes import KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.models.params import read_params
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine, run_guest

pytestmark = pytest.mark.slow
DEVICE = load_device("vta-1x16x16")
PROMPT = [5, 17, 3, 88, 41, 60, 2, 9, 33, 71, 12]
NEW = 6
# The device's sums are exact: what differs is the order of float32 sums around it.
CLOSE = 1e-5
ROUNDED = 0.2


def compiled(target: LabTarget) -> CompiledModel:
    mode = KernelMode(accelerator=DEVICE.name)
    tree = shared_builds.tvm_tree()
    request = CompileRequest(tree, CONFIG, target, prefill_chunk=CHUNK, gemv=False, mode=mode)
    return compile_llama(request, shared_builds.CACHE)


def linked(model: CompiledModel, request: LinkRequest) -> Path:
    shapes = [param["shape"] for param in model.metadata["params"]]
    objects = driver_objects(
        DEVICE,
        [(shape[0], shape[1]) for shape in shapes if len(shape) == 2],
        request.runtime,
        request.toolchain,
        shared_builds.CACHE,
        request.sanitizers,
    )
    return link_runner(
        replace(request, library=model.library, objects=objects), shared_builds.CACHE
    )


def words(params: Path, logits: Path, prompt: Sequence[int] = PROMPT) -> list[str]:
    ids = ",".join(map(str, prompt))
    asked = ["--params", str(params), "--tokens", ids, "--max-new", str(NEW)]
    return [*asked, "--json", "--logits", str(logits)]


def parameters(model: CompiledModel, tmp_path: Path) -> tuple[Path, Path]:
    """The same random parameters in float32, and as the device's runner loads them."""
    tmp_path.joinpath("float32").mkdir()
    folder = tiny_runner.write_random_params(model.library, tmp_path / "float32")
    return folder, int8_params(folder, tmp_path / "cache")


def check(params: Path, report: dict[str, Any], logits: Path) -> None:
    weights = read_params(params)
    integer = answer(CONFIG, weights, PROMPT, max_new=NEW, product=IntegerProduct())
    plain = answer(CONFIG, weights, PROMPT, max_new=NEW)
    assert report["tokens"] == list(integer.tokens)
    rows = np.fromfile(logits, "<f4").reshape(-1, CONFIG.vocab)
    largest = np.abs(integer.logits).max()
    assert np.abs(rows - integer.logits).max() < CLOSE * largest
    # That the CPU did not multiply in its place:
    assert CLOSE * largest < np.abs(rows[0] - plain.logits[0]).max() < ROUNDED * largest


@pytest.mark.long
def test_answers_on_this_machine(tmp_path: Path) -> None:
    model = compiled(LabTarget("host"))
    assert {entry["symbol"] for entry in model.tensorized} == {"mlc_rvv.accelerator.multiply"}
    runner = linked(model, tiny_runner.host_request())
    (params, rounded), logits = parameters(model, tmp_path), tmp_path / "logits"
    done = subprocess.run(
        [str(runner), *words(rounded, logits)],
        env=tiny_runner.host_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(params, json.loads(done.stdout), logits)


@pytest.mark.emulator
def test_a_host_core_in_the_emulator_drives_the_device(tmp_path: Path) -> None:
    shared_builds.need_emulator()
    model = compiled(LabTarget("riscv64", VLEN))
    parts = (shared_builds.runtime(), shared_builds.cross())
    runner = linked(model, LinkRequest(*parts, required_vlen=VLEN))
    (params, rounded), logits = parameters(model, tmp_path), tmp_path / "logits"
    done = run_guest(runner, words(rounded, logits), GuestMachine(vlen=VLEN, timeout=120))
    check(params, json.loads(done.stdout), logits)
