# SPDX-License-Identifier: Apache-2.0
"""The products of a mixture's experts: given to kernels, or left alone with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import VECTORS, called, module_of, outcomes, riscv64, settings

from crosslab.compile.overlaypass import PASSES, load_pass

OP = PASSES.parents[1] / "op/experts_on_cpu.py"
EXPERTS, OUTPUTS, INPUTS = 4, 96, 64


@pytest.fixture(scope="module")
def experts(tvm: ModuleType) -> Any:
    """Makes the function of experts with rows by expert, or with an expert for each row."""
    from tvm.relax.frontend.nn import Tensor  # noqa: PLC0415 - the tree is on sys.path in a test

    spec = importlib.util.spec_from_file_location("experts_under_test", OP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(by_row: bool, packed: str = "", group_size: int = 32, dtype: str = "float32") -> Any:
        rows = 1 if by_row else 10
        index = [1, 2] if by_row else [EXPERTS + 1]
        x = Tensor.placeholder([rows, INPUTS], dtype)
        indptr = Tensor.placeholder(index, "int32")
        if not packed:
            w = Tensor.placeholder([EXPERTS, OUTPUTS, INPUTS], dtype)
            return module._function(x, w, indptr, None, None)
        w = Tensor.placeholder([EXPERTS, OUTPUTS, INPUTS // 8], "uint32")
        scale = Tensor.placeholder([EXPERTS, OUTPUTS, INPUTS // group_size], dtype)
        return module._function(x, w, indptr, scale, module.Quantized(packed, group_size))

    return make


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(
    ("packed", "symbol"), [("", "mlc_rvv_gemm_f32"), ("int4", "mlc_rvv_gemm_q4")]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_experts_call_the_kernels_of_linear_layers(
    experts: Any,
    kernels: Path,
    configure: Callable[..., None],
    tmp_path: Path,
    by_row: bool,
    packed: str,
    symbol: str,
    dtype: str,
) -> None:
    configure(kernels=kernels, reports=tmp_path)
    module = module_of(layer=experts(by_row, packed, dtype=dtype))
    layer = load_pass("hooks").before_scheduling(riscv64(*VECTORS))(module)["layer"]
    assert called(layer) == [symbol]
    assert outcomes(tmp_path)["layer", "experts"]["symbol"] == symbol
    text = layer.script()
    assert text.count(f"for step in range({2 if by_row else EXPERTS})") == 1
    assert 'T.Cast("float16"' not in text


def test_other_packings_are_unchanged_and_reported(
    experts: Any, kernels: Path, tmp_path: Path
) -> None:
    configuration = settings(kernels=kernels, reports=tmp_path)
    module = module_of(layer=experts(False, "int4", group_size=64))
    passes = load_pass("linear.call_kernels")
    layer = passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module)["layer"]
    assert called(layer) == []
    (entry,) = outcomes(tmp_path).values()
    assert entry["symbol"] is None
    reason = "no gemm for weights (4-bit, in groups of 64, zero point 7)"
    assert entry["reason"].startswith(reason)
