# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up in a stage: a clear message, nothing half-written, the next run works."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import mlc_tree, text_probe, tiny_model
from support.shared_builds import CACHE, cross, tvm_tree
from support.small_asset import small_asset
from support.tiny_runner import CONFIG, riscv_compilation, riscv_request

from crosslab.artifact.dist import Dist, write_dist
from crosslab.artifact.package import package
from crosslab.artifact.relink import relinking
from crosslab.artifact.sbom import Part
from crosslab.assemble.kernels import KernelTarget, cached_kernels
from crosslab.assemble.libraries import source_variables
from crosslab.assemble.link import link_runner
from crosslab.assemble.runtime import build_runtime
from crosslab.compile.driver import compile_llama
from crosslab.compile.mlc import MlcCompileRequest, compile_model, convert_weight, device_of
from crosslab.compile.targets import LabTarget
from crosslab.errors import LabError, UserError
from crosslab.models.config import write_config
from crosslab.models.llama_params import random_params
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from crosslab.tokenizer.device_tokenizer import device_tokenizer

# Stages of the runner before the one that is tried.
INCLUDED = (
    *("source-llama.cpp", "source-nlohmann-json", "source-xgrammar", "source-jsoncons"),
    "unicode-tables",
)
LINKED = (
    *("httplib-riscv64", "xgrammar-riscv64", "jinja-riscv64"),
    *("runner-objects-riscv64", "server-objects-riscv64"),
)


def _model(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as at:
        tiny_model.write_gguf(Path(at) / "model.gguf")
        return import_gguf(Path(at) / "model.gguf", folder)


def _tokenizer(folder: Path) -> Path:
    trained = text_probe.trained("gpt2")
    with tempfile.TemporaryDirectory() as model:
        trained.tokenizer.save(f"{model}/tokenizer.json")
        settings = Path(model, "tokenizer_config.json")
        settings.write_text(json.dumps(dict(trained.settings)), encoding="utf-8")
        return device_tokenizer(Path(model), folder)


def _parameters(folder: Path) -> Path:
    return random_params(CONFIG, 7, folder)


def _kernels(folder: Path) -> Path:
    return cached_kernels(KernelTarget.RISCV64, folder)


def _library(folder: Path) -> Path:
    return compile_llama(riscv_compilation(), folder).library


def _runtime(folder: Path) -> Path:
    return build_runtime(tvm_tree(), cross(), folder).folder


def _lend(folder: Path, *names: str) -> None:
    """Links to what the user's cache holds under these names, so that it is not made here."""
    for name in names:
        for made in CACHE.glob(f"{name}-*"):
            if not (folder / made.name).exists():
                (folder / made.name).symlink_to(made)
                (folder / f".{made.name}.sums").symlink_to(CACHE / f".{made.name}.sums")


def _runner_objects(folder: Path) -> Path:
    source_variables(CACHE)
    _lend(folder, *INCLUDED)
    return link_runner(riscv_request(), folder)


def _runner(folder: Path) -> Path:
    """The program alone: its own objects are those of the user's cache."""
    link_runner(riscv_request(), CACHE)
    _lend(folder, *INCLUDED, *LINKED)
    return link_runner(riscv_request(), folder)


def _relink(folder: Path) -> dict[str, Path]:
    runner = link_runner(riscv_request(), CACHE)
    _lend(folder, *INCLUDED, *LINKED)
    return relinking(riscv_request(), runner, folder)


def _counted(folder: Path) -> int:
    runner, params = link_runner(riscv_request(), CACHE), _parameters(CACHE)
    words = ["--params", str(params), "--tokens", "1,2,3", "--max-new", "1"]
    return count_guest(runner, words, GuestMachine(timeout=120), folder)[1].whole.insns


def _dist(folder: Path) -> Path:
    files = {"runner": link_runner(riscv_request(), CACHE), "params": _parameters(CACHE)}
    whole = Part("tiny", "1", "Apache-2.0", shipped=True, kind="application")
    inputs = {"upstreams": {"tvm": {"version": "1", "patches": []}}}
    about = {"release": "1", "target": "t", "model": "tiny", "quantization": "q0f32"}
    about |= {"verdict": "right"}
    return write_dist(Dist(folder / "dist", files, {**about, "inputs": inputs}, whole))


def _tarball(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as at:
        return package([_dist(Path(at)).parent], folder)[0]


def _mlc_params(folder: Path) -> Path:
    tools, weights = mlc_tree.tools(), mlc_tree.hf_weights(mlc_tree.TINY, 7)
    with tempfile.TemporaryDirectory() as at:
        return convert_weight(tools, mlc_tree.write_model(Path(at), weights), "q0f32", folder)


def _mlc_library(folder: Path) -> Path:
    tools = mlc_tree.tools()
    with tempfile.TemporaryDirectory() as at:
        write_config(mlc_tree.TINY, Path(at) / "config.json")
        wanted = MlcCompileRequest(Path(at), "q0f32", device_of(LabTarget("riscv64", 256)))
        return compile_model(tools, wanted, folder).library


# Each with too little room for it, and with enough. What takes long, such as the runtime, is not
# built anew in the end: the other stages show that a second run works, and test_job_faults that
# one compiles a library of which another left nothing.
STAGES: list[tuple[Callable[[Path], object], str, str]] = [
    (_model, "4k", "16m"),
    (_tokenizer, "4k", "16m"),
    (_parameters, "64k", "16m"),
    (_mlc_params, "64k", "16m"),
    (_mlc_library, "64k", ""),
    (_kernels, "16k", "16m"),
    (_library, "64k", ""),
    (_runtime, "64k", ""),
    (_runner_objects, "64k", ""),
    (_runner, "1m", "64m"),
    (_counted, "8k", "16m"),
    (_relink, "1m", "128m"),
    (_dist, "1m", "64m"),
    (_tarball, "1m", "64m"),
]

# They need a compiler's time before they write, and then fail as all others do.
COMPILING = (_mlc_params, _mlc_library, _kernels, _library, _runtime, _runner_objects)


@pytest.mark.usefixtures("counting_emulator")
@pytest.mark.parametrize(
    ("stage", "little", "enough"),
    [
        pytest.param(
            make,
            *sizes,
            id=make.__name__.strip("_"),
            marks=[pytest.mark.thorough] if make in COMPILING else [],
        )
        for make, *sizes in STAGES
    ],
)
def test_stage(
    stage: Callable[[Path], object], little: str, enough: str, disk: Callable[[str], Any]
) -> None:
    fills_up(stage, disk(little), enough, resumes=stage is _mlc_params)


def test_download_of_the_model(index: Path, disk: Callable[[str], Any]) -> None:
    asset = small_asset(index, b"weights" * 10_000)
    fills_up(lambda folder: fetch_asset(asset, folder), disk("8k"), "16m")


def fills_up(
    stage: Callable[[Path], object], small: Any, enough: str, *, resumes: bool = False
) -> None:
    """The stage fails for want of room, says so, and works with enough.

    It leaves nothing, but finished shards where it goes on after them.
    """
    with pytest.raises((LabError, OSError)) as caught:
        stage(small.path)
    error = caught.value
    if isinstance(error, OSError):
        error = UserError.from_os_error(error)
        assert error.exit_code == 2
        assert "free some space" in error.remedy
    assert "no space" in str(error).lower(), error
    # A log is what tells why.
    kept = [p.name for p in small.path.iterdir() if p.name != "logs" and not p.is_symlink()]
    left = (".lock", "-part") if resumes else (".lock",)
    assert all(name.endswith(left) for name in kept), kept
    if enough:
        small.grow(enough)
        assert stage(small.path)
