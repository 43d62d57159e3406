# SPDX-License-Identifier: Apache-2.0
"""Convolutions of each channel by itself become calls of a kernel; others stay; their numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import VECTORS, called, host, module_of, riscv64, settings

from crosslab.compile.overlaypass import load_pass

CHANNELS, SHARE, KERNEL, STRIDE, DILATION = 3, 2, (3, 2), (2, 1), (1, 3)
ROWS, COLUMNS = 4, 5


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> ModuleType:
    return load_pass("linear.call_kernels")


def convolution(*, mixed: bool = False, dtype: str = "float32") -> Any:
    """Each channel gives SHARE outputs, times two; `mixed` reads a neighbour's weight."""
    from tvm import te, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    sizes = zip((ROWS, COLUMNS), KERNEL, STRIDE, DILATION, strict=True)
    image = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in sizes]
    x = te.placeholder((2, CHANNELS, *image), dtype, name="x")
    w = te.placeholder((CHANNELS * SHARE, 1, *KERNEL), dtype, name="w")
    a, b = te.reduce_axis((0, KERNEL[0]), name="a"), te.reduce_axis((0, KERNEL[1]), name="b")

    def element(n: Any, c: Any, i: Any, j: Any) -> Any:
        value = x[n, c // SHARE, i * STRIDE[0] + a * DILATION[0], j * STRIDE[1] + b * DILATION[1]]
        own = (c + 1) % (CHANNELS * SHARE) if mixed else c
        return te.sum(value * w[own, 0, a, b], axis=[a, b])

    shape = (2, CHANNELS * SHARE, ROWS, COLUMNS)
    sums = te.compute(shape, element, name="depthwise")
    two = tirx.const(2, dtype)
    out = te.compute(shape, lambda *i: sums[i] * two, name="twice")
    return te.create_prim_func([x, w, out]).with_attr("tirx.noalias", True)


def test_a_convolution_becomes_a_kernel_call(
    passes: ModuleType, kernel_folders: dict[str, Path]
) -> None:
    configuration = settings(kernels=kernel_folders["riscv64"], weights="tiles")
    module = module_of(filtered=convolution())
    module = passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module)
    assert called(module["filtered"]) == ["mlc_rvv_depthwise_f32"]


@pytest.mark.parametrize("other", [{"mixed": True}, {"dtype": "float64"}])
def test_another_sum_over_two_axes_stays(
    passes: ModuleType, kernel_folders: dict[str, Path], other: dict[str, Any]
) -> None:
    configuration = settings(kernels=kernel_folders["riscv64"])
    module = module_of(filtered=convolution(**other))
    assert passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module).same_as(module)


def test_channels_are_convolved_right(
    passes: ModuleType, kernel_folders: dict[str, Path], tmp_path: Path
) -> None:
    import tvm  # noqa: PLC0415

    if shutil.which("g++") is None:
        pytest.skip("not installed: g++, with which TVM links a library for this machine")
    function = convolution().with_attr("global_symbol", "filtered")
    shapes = [[int(size) for size in param.ty.shape] for param in function.params]
    configuration = settings(kernels=kernel_folders["host"])
    module = passes.CallLinearKernels(host(), configuration)(module_of(filtered=function))
    assert called(module["filtered"])
    path = tmp_path / "model.so"
    tvm.relax.build(module, host()).export_library(str(path))
    filtered = tvm.runtime.load_module(str(path)).get_function("filtered", query_imports=True)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes[:2])
    out = tvm.runtime.tensor(np.full(shapes[2], np.nan, np.float32))
    filtered(tvm.runtime.tensor(x), tvm.runtime.tensor(w), out)
    want = np.zeros(shapes[2])
    for c, a, b in np.ndindex(CHANNELS * SHARE, *KERNEL):
        rows, columns = (
            slice(k * d, None, s) for k, d, s in zip((a, b), DILATION, STRIDE, strict=True)
        )
        part = x[:, c // SHARE, rows, columns][:, :ROWS, :COLUMNS]
        want[:, c] += 2 * w[c, 0, a, b].astype(np.float64) * part
    assert np.abs(out.numpy() - want).max() < 1e-5 * np.abs(want).max()
