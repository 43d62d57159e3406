# SPDX-License-Identifier: Apache-2.0
"""The vectorised merge of two attention results against float64, natively on this host."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_kernels import compile_kernel
from support.passes.attention_reference import EMPTY_LSE, Array, merge
from support.passes.kv_cache_ir import kv_cache_module

pytestmark = pytest.mark.slow


def merged(
    tvm: ModuleType, first: tuple[Array, Array], other: tuple[Array, Array], *, told: bool = True
) -> tuple[Array, Array]:
    """Both results merged by the kernel, with or without the sizes of the heads."""
    module = importlib.import_module("tvm.relax.frontend.nn.llm._merge_state_vector_cpu")
    _, heads, dim = first[0].shape
    sizes = {"num_heads": heads, "head_dim": dim} if told else {}
    kernel = compile_kernel(module._merge_state_inplace_cpu(str(first[0].dtype), **sizes))
    tensors = [tvm.runtime.tensor(a) for a in (*first, *other)]
    kernel(*tensors)
    return tensors[0].numpy(), tensors[1].numpy()


def results(rows: int, heads: int, dim: int, dtype: str, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, heads, dim)).astype(dtype)
    return values, rng.uniform(-60, 60, (rows, heads)).astype("float32")


@pytest.mark.parametrize("shape", [(1, 1, 64), (37, 6, 48), (5, 3, 20), (3, 2, 128)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_is_right(tvm: ModuleType, shape: tuple[int, int, int], dtype: str) -> None:
    first, other = results(*shape, dtype, 0), results(*shape, dtype, 1)
    other[1][0] = first[1][0]  # equal weights
    want = merge(first, other)
    got = merged(tvm, first, other)
    np.testing.assert_allclose(got[0], want[0], atol=2e-3 if dtype == "float16" else 2e-6)
    np.testing.assert_allclose(got[1], want[1], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_kernel_without_given_sizes_takes_heads_of_any_size(tvm: ModuleType, dtype: str) -> None:
    """Upstream calls it so."""
    first, other = results(5, 3, 20, dtype, 0), results(5, 3, 20, dtype, 1)
    want = merge(first, other)
    got = merged(tvm, first, other, told=False)
    np.testing.assert_allclose(got[0], want[0], atol=2e-3 if dtype == "float16" else 2e-6)
    np.testing.assert_allclose(got[1], want[1], atol=1e-5)


def test_rows_without_keys(tvm: ModuleType) -> None:
    """A part without keys changes nothing, and two such parts are such a part."""
    full, empty = results(4, 2, 64, "float32", 3), results(4, 2, 64, "float32", 4)
    empty[0][:], empty[1][:] = 0, EMPTY_LSE
    for pair in ((full, empty), (empty, full)):
        got = merged(tvm, *pair)
        np.testing.assert_array_equal(got[0], full[0])
        np.testing.assert_array_equal(got[1], full[1])
    both = merged(tvm, empty, empty)
    assert not both[0].any()
    assert (both[1] == np.float32(EMPTY_LSE) + 1).all()


def test_nan_in_one_part_is_nan_in_the_merge(tvm: ModuleType) -> None:
    first, other = results(2, 2, 64, "float32", 5), results(2, 2, 64, "float32", 6)
    first[1][1, 0] = np.nan
    out, lse = merged(tvm, first, other)
    spoilt = np.array([[False, False], [True, False]])
    np.testing.assert_array_equal(np.isnan(lse), spoilt)
    np.testing.assert_array_equal(np.isnan(out).all(axis=-1), spoilt)


def test_kv_cache_registers_the_vectorised_kernel(tvm: ModuleType) -> None:
    function: Any = kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}))[
        "tir_attention_merge_state_cpu"
    ]
    text = function.script()
    assert "T.parallel" in text
    assert "T.vectorized" in text
    assert "T.exp2" not in text
    assert "T.log2" not in text
