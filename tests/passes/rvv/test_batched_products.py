# SPDX-License-Identifier: Apache-2.0
"""Batches of products, as attention has them, become calls of the gemm kernel; their numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import VECTORS, called, host, module_of, riscv64, settings

from crosslab.compile.overlaypass import load_pass

HEADS, WIDTH = 6, 20


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> ModuleType:
    return load_pass("linear.call_kernels")


def batch_function(shared: int = 1, *, turned: bool = True, dtype: str = "float32") -> Any:
    """out[1, HEADS, rows, n] = left[1, HEADS, rows, WIDTH] * right transposed, times two.

    Args:
        shared: neighbours on the left that one matrix on the right belongs to.
        turned: right is [1, HEADS / shared, n, WIDTH]; else its rows are not contiguous.
        dtype: of all.
    """
    from tvm import te, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    rows, n = tirx.Var("rows", "int64"), tirx.Var("n", "int64")
    left = te.placeholder((1, HEADS, rows, WIDTH), dtype, name="left")
    shape = (n, WIDTH) if turned else (WIDTH, n)
    right = te.placeholder((1, HEADS // shared, *shape), dtype, name="right")
    k = te.reduce_axis((0, WIDTH), name="k")

    def product(b: Any, h: Any, i: Any, j: Any) -> Any:
        place = (j, k) if turned else (k, j)
        return te.sum(left[b, h, i, k] * right[(b, h // shared, *place)], axis=k)

    sums = te.compute((1, HEADS, rows, n), product, name="NT_batch_matmul")
    two = tirx.const(2, dtype)
    out = te.compute((1, HEADS, rows, n), lambda *i: sums[i] * two, name="twice")
    return te.create_prim_func([left, right, out]).with_attr("tirx.noalias", True)


@pytest.mark.parametrize("shared", [1, 3])
def test_a_batch_becomes_a_kernel_call(
    passes: ModuleType,
    kernel_folders: dict[str, Path],
    shared: int,
) -> None:
    configuration = settings(kernels=kernel_folders["riscv64"], weights="tiles")
    module = module_of(scores=batch_function(shared))
    module = passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module)
    assert called(module["scores"]) == ["mlc_rvv_gemm_f32"]
    assert module["scores"].attrs["tirx.is_scheduled"]


@pytest.mark.parametrize("other", [{"turned": False}, {"dtype": "float64"}])
def test_another_batch_stays_as_it_is(
    passes: ModuleType,
    kernel_folders: dict[str, Path],
    other: dict[str, Any],
) -> None:
    configuration = settings(kernels=kernel_folders["riscv64"])
    module = module_of(scores=batch_function(**other))
    assert passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module).same_as(module)


@pytest.mark.parametrize("shared", [1, 2])
def test_products_of_a_batch_are_right(
    passes: ModuleType,
    kernel_folders: dict[str, Path],
    tmp_path: Path,
    shared: int,
) -> None:
    import tvm  # noqa: PLC0415

    if shutil.which("g++") is None:
        pytest.skip("not installed: g++, with which TVM links a library for this machine")
    configuration = settings(kernels=kernel_folders["host"])
    function = batch_function(shared).with_attr("global_symbol", "scores")
    module = passes.CallLinearKernels(host(), configuration)(module_of(scores=function))
    assert called(module["scores"])
    path = tmp_path / "model.so"
    tvm.relax.build(module, host()).export_library(str(path))
    scores = tvm.runtime.load_module(str(path)).get_function("scores", query_imports=True)
    rng = np.random.default_rng(0)
    for rows, n in ((1, 1), (5, 3), (17, 150)):
        left = rng.standard_normal((1, HEADS, rows, WIDTH)).astype(np.float32)
        right = rng.standard_normal((1, HEADS // shared, n, WIDTH)).astype(np.float32)
        out = tvm.runtime.tensor(np.full((1, HEADS, rows, n), np.nan, np.float32))
        scores(tvm.runtime.tensor(left), tvm.runtime.tensor(right), out)
        want = 2 * left @ np.repeat(right, shared, 1).swapaxes(-1, -2)
        assert np.abs(out.numpy() - want).max() < 1e-5 * np.abs(want).max()
