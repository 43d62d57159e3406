# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up in a stage: a clear message, nothing half-written, the next run works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runner_kit import CACHE, cross, need_emulator, runtime, tvm_tree

from crosslab.artifact.sbom import Part
from crosslab.compile.driver import CompileRequest, compile_llama
from crosslab.compile.targets import LabTarget
from crosslab.counter import count_guest
from crosslab.dist import Dist, write_dist
from crosslab.emulator import GuestMachine
from crosslab.errors import LabError, refused
from crosslab.kernels import KernelTarget, cached_kernels
from crosslab.link import LinkRequest, link_runner
from crosslab.models.config import LlamaConfig
from crosslab.models.llama_params import random_params
from crosslab.runtime import build_runtime

CONFIG = LlamaConfig(40, 72, 4, 2, 10, 2, 97, context=64)


def _parameters(folder: Path) -> Path:
    return random_params(CONFIG, 7, folder)


def _kernels(folder: Path) -> Path:
    return cached_kernels(KernelTarget.RISCV64, folder)


def _library(folder: Path) -> Path:
    return compile_llama(
        CompileRequest(tvm_tree(), CONFIG, LabTarget("riscv64", 256)), folder
    ).library


def _runtime(folder: Path) -> Path:
    return build_runtime(tvm_tree(), cross(), folder).folder


def _runner(folder: Path) -> Path:
    library = _library(CACHE)
    return link_runner(LinkRequest(runtime(), cross(), library=library, required_vlen=256), folder)


def _counted(folder: Path) -> int:
    runner, params = _runner(CACHE), _parameters(CACHE)
    words = ["--params", str(params), "--tokens", "1,2,3", "--max-new", "1"]
    return count_guest(runner, words, GuestMachine(timeout=120), folder)[1].whole.insns


def _dist(folder: Path) -> Path:
    files = {"runner": _runner(CACHE), "params": _parameters(CACHE)}
    whole = Part("tiny", "1", "Apache-2.0", shipped=True, kind="application")
    inputs = {"upstreams": {"tvm": {"version": "1", "patches": []}}}
    about = {"release": "1", "target": "t", "model": "tiny", "quantization": "q0f32"}
    return write_dist(Dist(folder / "dist", files, {**about, "inputs": inputs}, whole))


# Each with too little room for it, and with enough. Growing the runtime's cache would build it
# anew, which takes minutes: the other stages show that a second run works.
STAGES: list[tuple[Callable[[Path], object], str, str]] = [
    (_parameters, "64k", "16m"),
    (_kernels, "16k", "16m"),
    (_library, "64k", "64m"),
    (_runtime, "64k", ""),
    (_runner, "1m", "64m"),
    (_counted, "8k", "16m"),
    (_dist, "1m", "64m"),
]


@pytest.mark.parametrize(
    ("stage", "little", "enough"), STAGES, ids=[make.__name__.strip("_") for make, *_ in STAGES]
)
def test_stage(
    stage: Callable[[Path], object], little: str, enough: str, disk: Callable[[str], Any]
) -> None:
    need_emulator(plugins=True)
    small = disk(little)
    with pytest.raises((LabError, OSError)) as caught:
        stage(small.path)
    error = caught.value
    if isinstance(error, OSError):
        error = refused(error)
        assert error.exit_code == 2
        assert "free some space" in error.remedy
    assert "No space left" in str(error), error
    left = [path for path in small.path.iterdir() if not path.name.endswith(".lock")]
    assert not left
    if enough:
        small.grow(enough)
        assert stage(small.path)
