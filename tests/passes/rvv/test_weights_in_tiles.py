# SPDX-License-Identifier: Apache-2.0
"""Weights in tiles: which parameters are, what libraries say of them, and their numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import VECTORS, called, host, module_of, riscv64, settings
from support.passes.linear import (
    PACKINGS,
    Q4,
    VOCABULARY,
    WIDTH,
    embedding,
    linear_inputs,
    linear_reference,
    model,
)
from support.passes.made_up_formats import W3, table_with_made_up

from crosslab.assemble.kernels import KernelTarget, build_kernels
from crosslab.compile.native import arrange_weights
from crosslab.compile.overlaypass import load_pass
from crosslab.models.formats import Packing


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> ModuleType:
    return load_pass("linear.call_kernels")


@pytest.fixture
def transform(passes: ModuleType, kernel_folders: dict[str, Path]) -> Any:
    def run(
        target: Any, module: Any, activations: str = "float32", library: Path | None = None
    ) -> Any:
        made_for = "host" if target.attrs.get("mtriple", "").startswith("x86") else "riscv64"
        kernels = library or kernel_folders[made_for]
        configuration = settings(kernels=kernels, weights="tiles", activations=activations)
        return passes.CallLinearKernels(target, configuration)(module)

    return run


@pytest.mark.parametrize(
    ("packing", "activations", "calls", "items"),
    [
        (None, "float32", {"embed": "take_f32", "prefill": "gemm_f32_tiles"}, [4]),
        (Q4, "float32", {"embed": "take_q4", "decode": "gemv_q4_tiles"}, [1, 4]),
        (Q4, "int8", {"prefill": "gemm_q4_int8", "decode": "gemm_q4_int8"}, [1, 4]),
        # Nothing to gain where weights are not quantized.
        (None, "int8", {"decode": "gemm_f32_tiles"}, [4]),
    ],
)
def test_a_matrix_that_kernels_alone_read_is_in_tiles(
    transform: Any, packing: Packing | None, activations: str, calls: dict[str, str], items: Any
) -> None:
    module = transform(riscv64(*VECTORS), model(packing), activations)
    for name, symbol in calls.items():
        assert called(module[f"{name}_tir"])[-1] == f"mlc_rvv_{symbol}"
    assert [called(module[f"reorder_weights_{8 * item}"]) for item in items] == [
        ["mlc_rvv_pack_tiles"]
    ] * len(items)
    text = module["weights_in_tiles"].script()
    about = {"tile": 64, "parameters": [{"index": i, "item": n} for i, n in enumerate(items)]}
    assert json.dumps(about) in text.replace('\\"', '"')


@pytest.mark.parametrize("packing", [*PACKINGS, W3], ids=str)
def test_rows_of_halves_are_taken_by_loops(
    kernel_folders: dict[str, Path], configure: Callable[..., None], packing: Packing | None
) -> None:
    """Their block stores halves, which the kernel does not."""
    configure(kernels=kernel_folders["riscv64"], weights="tiles")
    module = module_of(embed=embedding(packing, "float16"))
    module = load_pass("hooks").before_scheduling(riscv64(*VECTORS))(module)
    assert called(module["embed"]) == []


def test_a_matrix_that_is_used_otherwise_stays_as_it_is(transform: Any) -> None:
    module = transform(riscv64(*VECTORS), model(Q4, also=True))
    names = {var.name_hint for var in module.get_global_vars()}
    assert not [name for name in names if name.startswith(("reorder", "weights"))]
    assert called(module["decode_tir"])[-1] == "mlc_rvv_gemv_q4"


@pytest.mark.parametrize(
    ("packing", "activations", "tolerance"),
    [*((packing, "float32", 1e-5) for packing in (*PACKINGS, W3)), (Q4, "int8", 2e-2)],
    ids=str,
)
def test_results_are_right(
    transform: Any,
    kernel_folders: dict[str, Path],
    tmp_path: Path,
    packing: Packing | None,
    activations: str,
    tolerance: float,
) -> None:
    """Built for this machine with the portable kernels, against float64; W3 is moved by words."""
    import tvm  # noqa: PLC0415

    if shutil.which("g++") is None:
        pytest.skip("not installed: g++, with which TVM links a library for this machine")
    library_folder = kernel_folders["host"]
    if packing not in PACKINGS:
        table = table_with_made_up(tmp_path)
        library_folder = build_kernels(KernelTarget.HOST, tmp_path / "kernels", table=table).parent
    module = transform(host(), model(packing), activations, library_folder)
    path = tmp_path / "model.so"
    tvm.relax.build(module, host()).export_library(str(path))
    library = tvm.runtime.load_module(str(path))
    vm = tvm.relax.VirtualMachine(library, tvm.cpu())
    moved = [entry["item"] for entry in json.loads(vm["weights_in_tiles"]())["parameters"]]
    assert moved == ([4 if 8 % packing.bits else 1, 4] if packing else [4])
    arrays = linear_inputs(1, VOCABULARY, WIDTH, packing=packing, add=False, seed=3)[1:]
    params = [tvm.runtime.tensor(array) for array in arrays]
    arrange_weights(library, vm, params)
    assert any(not np.array_equal(p.numpy(), a) for p, a in zip(params, arrays, strict=True))
    ids = np.array([149, 0, 63, 64, 128, 149], np.int32)
    eye = np.eye(WIDTH, dtype=np.float32)[None]
    weight = linear_reference([eye, *arrays], WIDTH, packing=packing, add=False)[0].T
    rows = vm["embed"](tvm.runtime.tensor(ids), params).numpy()
    assert np.abs(rows - weight[ids]).max() < 1e-6 * np.abs(weight).max()
    for name, count in (("decode", 1), ("prefill", 1), ("prefill", 37)):
        x = linear_inputs(count, 1, WIDTH, packing=None, add=False, seed=count)[0]
        got = vm[name](tvm.runtime.tensor(x), params).numpy()
        want = x.astype(np.float64) @ weight.T
        assert np.abs(got - want).max() < tolerance * np.abs(want).max()
    # Two threads share 100 rows, too; one does not split them.
    x = tvm.runtime.tensor(linear_inputs(100, 1, WIDTH, packing=None, add=False, seed=100)[0])
    set_threads = tvm.get_global_func("runtime.config_threadpool")
    got_by = []
    for threads in (1, 2):
        set_threads(1, threads)
        got_by.append(vm["prefill"](x, params).numpy())
    set_threads(1, 0)
    assert np.array_equal(*got_by)
