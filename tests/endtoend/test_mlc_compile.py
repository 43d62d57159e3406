# SPDX-License-Identifier: Apache-2.0
"""Models through MLC-LLM's own converter and compiler, for this machine and for others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.mlc_tree import TINY, hf_weights, run_python, tools, write_model

from crosslab.assemble.kernels import build_kernels
from crosslab.compile.driver import CompiledModel
from crosslab.compile.mlc import (
    MlcCompileRequest,
    MlcTools,
    compile_model,
    convert_weight,
    device_of,
    environment_of,
)
from crosslab.compile.targets import VLENS, LabTarget
from crosslab.errors import LabError, UserError
from crosslab.models.formats import REFERENCE_FORMATS, weight_formats
from crosslab.models.params import read_params
from crosslab.models.reference import ReferenceLlama

pytestmark = pytest.mark.slow

EM_AARCH64 = 183
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 23, 84, 62, 64, 33, 83, 279, 50, 28, 84, 197]
CHUNKS = [PROMPT[:11], PROMPT[11:]]
NEW_TOKENS = 4


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), hf_weights(TINY, 7))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    try:
        build_kernels("riscv64", folder)
    except UserError as error:
        pytest.skip(str(error))
    return folder


def members(archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            assert content is not None
            yield content.read()


def answer_natively(mlc: MlcTools, library: CompiledModel, params: Path, out: Path) -> np.ndarray:
    """Logits [NEW_TOKENS, vocab] of the host's library, run in TVM's VM on the patched tree."""
    spec = {
        "library": str(library.library),
        "params": str(params),
        "chunks": CHUNKS,
        "max_new": NEW_TOKENS,
        "stop": [],
        "max_seq": TINY.context,
        "output": str(out / "answer.npz"),
    }
    (out / "spec.json").write_text(json.dumps(spec))
    environment = mlc.environment({})
    command = [sys.executable, "-m", "crosslab.compile.native", str(out / "spec.json")]
    subprocess.run(command, env=environment, check=True)
    logits: np.ndarray = np.load(out / "answer.npz")["logits"]
    return logits


@pytest.mark.parametrize(
    "quantization",
    [
        pytest.param(name, marks=() if name == "q4f32_1" else pytest.mark.thorough)
        for name in REFERENCE_FORMATS
    ],
)
def test_library_for_this_machine_agrees_with_the_reference(
    model: Path, cache: Path, tmp_path: Path, quantization: str
) -> None:
    mlc = tools()
    folder = convert_weight(mlc, model, quantization, cache)
    request = MlcCompileRequest(model, quantization, "cpu", form="shared", context=TINY.context)
    library = compile_model(mlc, request, cache)
    logits = answer_natively(mlc, library, folder, tmp_path)

    # down_proj's inputs do not fill their last group of 32.
    widths = {
        f"model.layers.{n}.mlp.down_proj.weight": TINY.intermediate for n in range(TINY.layers)
    }
    reference = ReferenceLlama(
        TINY, read_params(folder, widths, weight_formats()[quantization].packing)
    )
    expected = [reference.read(PROMPT)]
    while len(expected) < NEW_TOKENS:
        expected.append(reference.read([int(np.argmax(expected[-1]))]))
    error = np.abs(logits - np.stack(expected)).max() / np.abs(expected).max()
    assert error < 1e-4


def test_same_inputs_are_built_once(model: Path, cache: Path) -> None:
    mlc = tools()
    request = MlcCompileRequest(model, "q0f32", "cpu", form="shared", context=TINY.context)
    for build in (
        partial(compile_model, mlc, request, cache),
        partial(convert_weight, mlc, model, "q0f32", cache),
    ):
        first = build()
        logs = {log: log.stat().st_mtime_ns for log in (cache / "logs").iterdir()}
        assert build() == first
        assert {log: log.stat().st_mtime_ns for log in (cache / "logs").iterdir()} == logs
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors"]


def test_prefill_is_tensorized_or_says_why_not(model: Path, cache: Path, kernels: Path) -> None:
    mlc = tools()
    device = device_of(LabTarget("riscv64", 256))
    make = partial(MlcCompileRequest, model, "q0f32", device, context=TINY.context)
    made = compile_model(mlc, make(kernels=kernels, require_tensorize=True), cache)
    symbols = {entry["symbol"] for entry in made.tensorized}
    functions = {entry["function"] for entry in made.tensorized}
    assert {"batch_prefill_paged_kv_cpu", "batch_prefill_ragged_kv"} <= functions
    assert None not in symbols
    objects = list(members(made.library))
    for symbol in symbols:
        assert sum(symbol.encode() in content for content in objects) >= 2  # called and defined

    with pytest.raises(LabError, match="Nothing was tensorized") as caught:
        compile_model(mlc, make(require_tensorize=True), cache)
    assert "names no folder of kernels" in caught.value.what
    assert caught.value.exit_code == 1


@pytest.mark.thorough
def test_shared_library_is_for_the_cpu_named(model: Path, cache: Path) -> None:
    if shutil.which("clang++-19") is None:
        pytest.skip("no clang++-19 to link for aarch64")
    variables = {
        "CROSS_COMPILATION": "aarch64-linux-gnu",
        "CROSS_COMPILATION_CXX": "clang++-19 --target=aarch64-linux-gnu -fuse-ld=lld-19 -nostdlib",
    }
    request = MlcCompileRequest(
        model, "q0f32", "cpu", form="shared", environment=tuple(variables.items())
    )
    made = compile_model(tools(), request, cache)
    head = made.library.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert int.from_bytes(head[18:20], "little") == EM_AARCH64


@pytest.mark.parametrize(
    ("device", "variables", "words"),
    [
        ("riscv64:rvv300", {}, "presets are riscv64:rvv128, riscv64:rvv256"),
        ("cpu", {"CROSS_COMPILATION": "riscv65-linux-gnu"}, "<cpu>-linux-<libc>"),
        ("riscv64:rvv256", {"CROSS_COMPILATION_CXX": "no-such-linker"}, "no-such-linker"),
    ],
)
def test_what_cannot_be_compiled_for_is_refused(
    model: Path, tmp_path: Path, device: str, variables: dict[str, str], words: str
) -> None:
    output = tmp_path / "model.so"
    done = run_python(
        *("-m", "mlc_llm", "compile", str(model / "config.json"), "--quantization", "q0f32"),
        *("--device", device, "--output", str(output)),
        **variables,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()


def test_failure_names_the_log_and_keeps_the_exit_code(model: Path, cache: Path) -> None:
    request = MlcCompileRequest(model, "q0f32", "riscv64:rvv2048")
    with pytest.raises(LabError, match="unknown device 'riscv64:rvv2048'") as caught:
        compile_model(tools(), request, cache)
    assert caught.value.exit_code == 2
    log = Path(caught.value.remedy.removeprefix("the whole output is in "))
    assert "unknown device" in log.read_text()


def test_mistakes_are_told_before_anything_runs(model: Path, cache: Path, tmp_path: Path) -> None:
    mlc = tools()
    with pytest.raises(UserError, match="no python/mlc_llm in") as caught:
        MlcTools(tmp_path, mlc.tvm_tree).check()
    assert "nox -s apply_patches" in caught.value.remedy
    with pytest.raises(UserError, match="no safetensors files"):
        (tmp_path / "config.json").write_text("{}")
        convert_weight(mlc, tmp_path, "q0f32", cache)
    with pytest.raises(UserError, match="no kernels in"):
        request = MlcCompileRequest(model, "q0f32", "riscv64:rvv256", kernels=tmp_path)
        compile_model(mlc, request, cache)


def test_devices_of_the_lab_are_presets() -> None:
    assert device_of(LabTarget("host")) == "cpu"
    assert [device_of(LabTarget("riscv64", vlen)) for vlen in VLENS] == [
        f"riscv64:rvv{vlen}" for vlen in VLENS
    ]
    assert device_of(LabTarget("riscv64", 256, zvfh=True)) == "riscv64:rvv256-zvfh"
    assert environment_of(LabTarget("riscv64", 256)) == ()


def test_a_tuned_target_is_described_by_the_environment() -> None:
    target = LabTarget("riscv64", 256, tune="spacemit-x60")
    assert device_of(target) == "cpu"
    variables = dict(environment_of(target))
    assert variables["CROSS_COMPILATION_MCPU"] == "spacemit-x60"
    assert variables["CROSS_COMPILATION_MATTR"].endswith("+zve64d,+zvl256b")
    assert variables["CROSS_COMPILATION"] == target.table()["mtriple"]
