# SPDX-License-Identifier: Apache-2.0
"""Tensorized prefill, built and exported as a model library is: right, and self-contained."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.archives import unpack
from support.passes.attention_kernels import run_paged, run_ragged
from support.passes.attention_reference import Array, Heads, Sequence, attend, make_batch
from support.passes.functions import (
    VECTORS,
    called,
    host,
    module_of,
    riscv64,
    settings,
    tile_function,
)

from crosslab.compile.overlaypass import load_pass

PAGED = "tir_attention_prefill_cpu"
RAGGED = "tir_attention_prefill_ragged_cpu"
KERNELS_64 = {"mlc_rvv_qk_f32_16x16x64", "mlc_rvv_pv_f32_16x16x64"}


@pytest.fixture(scope="module")
def lab(tvm: ModuleType) -> ModuleType:
    return load_pass("attention.tensorize_prefill")


@pytest.fixture(scope="module")
def build_for_host(
    lab: ModuleType, kernel_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Builds a function with the portable kernels in it; returns the callable."""
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    if shutil.which("g++") is None:
        pytest.skip("not installed: g++, with which TVM links a library for this machine")
    directory, lowering = kernel_folders["host"], load_pass("tir_pipeline").registered()

    def build(name: str, function: Any) -> Any:
        module = module_of(**{name: function.with_attr("global_symbol", name)})
        module = lab.TensorizePrefill(host(), settings(kernels=directory))(module)
        # Both products; in the ragged function of keys and values where they lie, too.
        assert len(called(module[name])) == (4 if name == RAGGED else 2)
        path = tmp_path_factory.mktemp("library") / "model.so"
        built = tvm.relax.build(module, host(), tir_pipeline=lowering)
        built.export_library(str(path))
        return tvm.runtime.load_module(str(path)).get_function(name, query_imports=True)

    return build


@pytest.fixture(scope="module")
def prefill(tvm: ModuleType, build_for_host: Any) -> Any:
    """Tensorized prefill functions by kind, heads and kv_tile."""
    tiled = importlib.import_module("tvm.relax.frontend.nn.llm._prefill_tiled_cpu")

    def make(kind: str, heads: Heads, kv_tile: int) -> Any:
        tile = tiled.PrefillTile(16, kv_tile)
        if kind == "ragged":
            function = tiled._attention_prefill_ragged_cpu(
                heads.kv, heads.q, heads.d, heads.d_v, heads.dtype, {}, tile=tile
            )
            return build_for_host(RAGGED, function)
        function = tiled._attention_prefill_cpu(
            heads.kv, heads.q, heads.d, heads.dtype, kind == "window", {}, tile=tile
        )
        return build_for_host(PAGED, function)

    return cache(make)


def assert_close(actual: tuple[Array, Array], expected: tuple[Array, Array]) -> None:
    np.testing.assert_allclose(actual[0], expected[0], atol=2e-6, rtol=1e-5)
    np.testing.assert_allclose(actual[1], expected[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("d", [64, 80])
def test_a_tile(build_for_host: Any, d: int) -> None:
    import tvm  # noqa: PLC0415

    tile = build_for_host(PAGED, tile_function(d=d))
    generator = np.random.default_rng(0)
    shapes = [(16, d), (16, d), (16, d), (16,), (16, d)]
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    tile(*tensors)
    q, k, v, r, o = (array.astype(np.float64) for array in inputs)
    np.testing.assert_allclose(tensors[-1].numpy(), o * r[:, None] + q @ k.T @ v, atol=1e-4)


@pytest.mark.parametrize("kv_tile", [16, 32])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "heads",
    [Heads(kv=2, q=6, d=64, d_v=64), Heads(kv=1, q=1, d=80, d_v=80), Heads(2, 2, 96, 128)],
    ids=lambda heads: f"{heads.q}of{heads.kv}x{heads.d}x{heads.d_v}",
)
def test_ragged_prefill(prefill: Any, heads: Heads, causal: bool, kv_tile: int) -> None:
    sequences = (Sequence(37, 37), Sequence(0, 0), Sequence(1, 1), Sequence(16, 16))
    batch = make_batch(heads, sequences, causal=causal)
    assert_close(run_ragged(prefill("ragged", heads, kv_tile), batch), attend(batch))


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize("kv_tile", [16, 32])
def test_paged_prefill_of_a_second_chunk(prefill: Any, kv_tile: int, rotary: bool) -> None:
    heads = Heads(kv=2, q=6, d=64, d_v=64)
    sequences = (Sequence(7, 33), Sequence(19, 19), Sequence(3, 70))
    batch = make_batch(heads, sequences, rotary=rotary)
    actual = run_paged(prefill("paged", heads, kv_tile), batch)
    expected = attend(batch)
    tolerance = 2e-5 if rotary else 2e-6
    np.testing.assert_allclose(actual[0], expected[0], atol=tolerance, rtol=1e-4)
    np.testing.assert_allclose(actual[1], expected[1], atol=1e-4, rtol=1e-5)


def test_sliding_window_prefill(prefill: Any) -> None:
    heads = Heads(kv=2, q=4, d=128, d_v=128)
    batch = make_batch(heads, (Sequence(5, 50, window=20, sink=4), Sequence(9, 30)), causal=False)
    actual = run_paged(prefill("window", heads, 16), batch, sliding_window=True)
    assert_close(actual, attend(batch))


@pytest.fixture(scope="module")
def riscv_executable(lab: ModuleType, kernel_folders: dict[str, Path]) -> Any:
    """A model library for riscv64, not yet exported."""
    import tvm  # noqa: PLC0415

    missing = [tool for tool in ("clang-19", "clang++-19", "llvm-nm-19") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    directory = kernel_folders["riscv64"]

    def build(system_lib: bool) -> Any:
        target = riscv64(*VECTORS)
        module = module_of(**{PAGED: tile_function()})
        module = lab.TensorizePrefill(target, settings(kernels=directory))(module)
        # What MLC-LLM's pipeline does to the module between the pass and the build.
        module = tvm.tirx.transform.ForceNarrowIndexToInt32()(module)
        module = tvm.relax.transform.AttachExternModules([])(module)
        return tvm.relax.build(module, target, system_lib=system_lib)

    return build


def symbols(files: list[Path]) -> tuple[set[str], set[str]]:
    """Kernel symbols which the files define, and which they leave undefined."""
    listing = subprocess.run(
        ["llvm-nm-19", "--format=posix", *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = [line.split()[:2] for line in listing.splitlines() if line.startswith("mlc_rvv_")]
    return {n for n, kind in pairs if kind == "T"}, {n for n, kind in pairs if kind == "U"}


@pytest.mark.parametrize("system_lib", [True, False])
def test_an_exported_tar_holds_the_kernels(
    riscv_executable: Any, tmp_path: Path, system_lib: bool
) -> None:
    archive = tmp_path / "model.tar"
    riscv_executable(system_lib).export_library(str(archive))
    unpack(archive, tmp_path / "objects")
    defined, needed = symbols(sorted((tmp_path / "objects").rglob("*.o")))
    assert needed == KERNELS_64, "the model's own code calls the kernels"
    assert defined >= needed


def test_an_exported_shared_library_holds_the_kernels(
    riscv_executable: Any, tmp_path: Path
) -> None:
    from tvm.support import cc  # noqa: PLC0415

    if not Path("/usr/riscv64-linux-gnu/lib/libc.so").exists():
        pytest.skip("not installed: libc6-dev-riscv64-cross")
    library = tmp_path / "model.so"
    options = ["--target=riscv64-linux-gnu", "-fuse-ld=lld-19"]
    link = cc.cross_compiler("clang++-19", options=options)
    riscv_executable(False).export_library(str(library), fcompile=link)
    defined, needed = symbols([library])
    assert defined >= KERNELS_64
    assert needed == set()
