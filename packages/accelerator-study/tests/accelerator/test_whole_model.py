# SPDX-License-Identifier: Apache-2.0
"""A compiled tiny model whose linear layers a device computes: on this machine and for RVV."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import mlc_tree, shared_builds, tiny_runner
from support.judged import judged_job
from support.tiny_runner import CHUNK, CONFIG, VLEN

from accelerator.device import Device, load_device
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import driver_objects
from accelerator.host.offload import device_passes, offload
from accelerator.host.params import int8_params
from accelerator.model import IntegerProduct, attend
from crosslab.assemble.link import LinkRequest, link_runner
from crosslab.assemble.offload import Offload
from crosslab.compile.driver import CompiledModel, CompileRequest, compile_llama
from crosslab.compile.mlc import MlcCompileRequest, compile_model, convert_weight, device_of
from crosslab.compile.modes import KernelMode
from crosslab.compile.targets import LabTarget
from crosslab.job.verdict import Asked, judge
from crosslab.models.config import LlamaConfig
from crosslab.models.params import read_index, read_params
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine, run_guest

pytestmark = pytest.mark.slow
DEVICE = load_device("vta-1x16x16")
PROMPT = [5, 17, 3, 88, 41, 60, 2, 9, 33, 71, 12]
NEW = 6
# The chunks of a prompt: a later one sees itself and what was before; the last has one token.
PART = 5
# The device's sums are exact: what differs is the order of float32 sums around it.
CLOSE = 1e-5
ROUNDED = 0.2


def compiled(target: LabTarget, attention: bool) -> CompiledModel:
    mode = KernelMode(extras=device_passes(attention))
    tree = shared_builds.tvm_tree()
    request = CompileRequest(tree, CONFIG, target, prefill_chunk=CHUNK, gemv=False, mode=mode)
    return compile_llama(request, shared_builds.CACHE)


def linked(
    model: CompiledModel,
    request: LinkRequest,
    attention: bool,
    device: Device | MatrixUnit = DEVICE,
) -> Path:
    shapes = [param["shape"] for param in model.metadata["params"]]
    sizes = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    return linked_for(sizes, CONFIG.head_dim if attention else 0, model, request, device)


def linked_for(
    sizes: Sequence[tuple[int, int]],
    width: int,
    model: CompiledModel,
    request: LinkRequest,
    device: Device | MatrixUnit = DEVICE,
) -> Path:
    objects = driver_objects(
        device,
        sizes,
        width,
        request.runtime,
        request.toolchain,
        shared_builds.CACHE,
        request.sanitizers,
    )
    return link_runner(
        replace(request, library=model.library, objects=objects), shared_builds.CACHE
    )


def words(params: Path, logits: Path) -> list[str]:
    """Options of a run that records what it rounds, beside its logits."""
    ids = ",".join(map(str, PROMPT))
    asked = ["--params", str(params), "--tokens", ids, "--max-new", str(NEW)]
    record = str(logits.with_suffix(".record"))
    return [*asked, "--json", "--logits", str(logits), "--roundings", record]


def parameters(model: CompiledModel, tmp_path: Path) -> tuple[Path, Path]:
    """The same random parameters in float32, and as the device's runner loads them."""
    tmp_path.joinpath("float32").mkdir()
    folder = tiny_runner.write_random_params(model.library, tmp_path / "float32")
    return folder, int8_params(folder, tmp_path / "cache")


def check(
    params: Path,
    report: dict[str, Any],
    logits: Path,
    attention: bool,
    config: LlamaConfig = CONFIG,
    driven: Device | MatrixUnit = DEVICE,
) -> None:
    weights, product = read_params(params), IntegerProduct()
    attending = partial(attend, sums=product.sums)
    linear = answer(config, weights, PROMPT, max_new=NEW, product=product)
    whole = answer(config, weights, PROMPT, max_new=NEW, product=product, attend=attending)
    integer, other = (whole, linear) if attention else (linear, whole)
    plain = answer(config, weights, PROMPT, max_new=NEW)
    assert report["tokens"] == list(integer.tokens)
    # Each token's products, but for those after the last attention, which a prompt has once.
    layer = rf"model\.layers\.{config.layers - 1}\."
    late = re.compile(rf"{layer}(self_attn\.o_proj|mlp)\.|lm_head")
    sizes = {name: w.size for name, w in weights.items() if w.ndim == 2 and "embed" not in name}
    once = sum(size for name, size in sizes.items() if late.match(name))
    once += config.tied * config.vocab * config.hidden
    every = sum(size for name, size in sizes.items() if not late.match(name))
    rows = driven.rows if isinstance(driven, MatrixUnit) else driven.batch
    outputs = driven.rows if isinstance(driven, MatrixUnit) else driven.outputs
    block = rows * outputs * driven.inputs
    read = len(PROMPT) + NEW - 1
    assert report["device"]["gemm_steps"] * block >= read * every + NEW * once
    # A prompt's tokens come without the cache, and lie in it when the next one is read.
    written = config.layers * config.kv_heads * (len(PROMPT) + read)
    assert report["device"]["tokens_written"] == (written if attention else 0)
    rows = np.fromfile(logits, "<f4").reshape(-1, config.vocab)
    largest = np.abs(integer.logits).max()
    assert np.abs(rows - integer.logits).max() < CLOSE * largest
    asked = Asked(config, weights, PROMPT)
    follow(offload(driven, attention), report, logits, asked)
    # That the CPU did not multiply in its place:
    for without in (plain, other):
        assert CLOSE * largest < np.abs(rows[0] - without.logits[0]).max() < ROUNDED * largest


def follow(
    device: Offload, report: dict[str, Any], logits: Path, asked: Asked, chunk: int = CHUNK
) -> None:
    """The roundings are the reference's, but for some that are near to the middle."""
    job: Any = judged_job(device, NEW, chunk)
    record = logits.with_suffix(".record").read_bytes()
    rows = np.fromfile(logits, "<f4").reshape(-1, asked.config.vocab)
    verdict = judge(job, report["tokens"], rows, record, asked)
    assert verdict is not None
    assert verdict.right, verdict
    assert verdict.taken is not None
    assert verdict.taken.other < verdict.taken.count / 1000


@pytest.mark.parametrize(
    "attention",
    [True, pytest.param(False, marks=pytest.mark.thorough)],
    ids=["attention", "linear"],
)
def test_answers_on_this_machine(tmp_path: Path, attention: bool) -> None:
    model = compiled(LabTarget("host"), attention)
    names = ["multiply", *(["attend_paged", "attend_ragged"] if attention else [])]
    called = {entry["symbol"] for entry in model.tensorized}
    assert called == {f"mlc_rvv.accelerator.{name}" for name in names}
    runner = linked(model, tiny_runner.host_request(), attention)
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
    check(params, json.loads(done.stdout), logits, attention)


@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("name", [DEVICE.name, "spacemit-ime"])
def test_a_host_core_in_the_emulator_drives_the_device(tmp_path: Path, name: str) -> None:
    model = compiled(LabTarget("riscv64", VLEN), attention=True)
    parts = (shared_builds.runtime(), shared_builds.cross())
    device = load_target(name)
    runner = linked(model, LinkRequest(*parts, vlens=(VLEN,)), attention=True, device=device)
    (params, rounded), logits = parameters(model, tmp_path), tmp_path / "logits"
    machine = GuestMachine(vlen=VLEN, timeout=120)
    done = run_guest(runner, words(rounded, logits), machine)
    check(params, json.loads(done.stdout), logits, attention=True, driven=device)
    weights = read_params(params)
    asked = Asked(CONFIG, weights, PROMPT)
    chunks = [*words(rounded, logits), "--prefill-chunk", str(PART)]
    said = json.loads(run_guest(runner, chunks, machine).stdout)
    follow(offload(device, attention=True), said, logits, asked, PART)


@pytest.mark.usefixtures("emulator")
@pytest.mark.thorough
def test_mlc_llms_pipeline_runs_the_same_passes(tmp_path: Path) -> None:
    """MLC-LLM converts and compiles the model; skipped where its tree is not."""
    mlc = mlc_tree.tools()
    folder = mlc_tree.write_model(tmp_path / "model", mlc_tree.hf_weights(mlc_tree.TINY, 7))
    params = convert_weight(mlc, folder, "q0f32", tmp_path / "cache")
    target, config = LabTarget("riscv64", VLEN), mlc_tree.TINY
    mode = KernelMode(extras=device_passes(attention=True))
    request = MlcCompileRequest(
        folder, "q0f32", device_of(target), context=config.context, prefill_chunk=CHUNK, mode=mode
    )
    model = compile_model(mlc, request, tmp_path / "cache")
    names = ("multiply", "attend_paged", "attend_ragged")
    called = {entry["symbol"] for entry in model.tensorized}
    assert {f"mlc_rvv.accelerator.{name}" for name in names} <= called
    sizes = [stored.shape for stored in read_index(params).values() if len(stored.shape) == 2]
    parts = (shared_builds.runtime(), shared_builds.cross())
    runner = linked_for(sizes, config.head_dim, model, LinkRequest(*parts, vlens=(VLEN,)))
    rounded, logits = int8_params(params, tmp_path / "cache"), tmp_path / "logits"
    machine = GuestMachine(vlen=VLEN, timeout=120)
    done = run_guest(runner, words(rounded, logits), machine)
    check(params, json.loads(done.stdout), logits, attention=True, config=config)
