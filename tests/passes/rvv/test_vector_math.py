# SPDX-License-Identifier: Apache-2.0
"""Elementary functions as arithmetic: within their bounds, everywhere, against float64."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.linear import Array

from crosslab.compile.overlaypass import load_pass

EPSILON = 2.0**-22


@pytest.fixture(scope="module")
def math_on_host(tvm: ModuleType) -> Callable[[str, Array], Array]:
    """Applies a function of the module to an array, in vectors on this machine.

    The reductions of arguments need fused multiply-add, which every RISC-V CPU with floats has.
    """
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test
    from tvm import te  # noqa: PLC0415

    if " fma " not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("this machine has no fused multiply-add")
    vector_math = load_pass("vectors.elementary")
    own = importlib.import_module("tvm.relax.frontend.nn.llm._vector_math")
    functions: dict[str, Callable[[Any], Any]] = {
        "exp2": own.exp2,
        "log2": own.log2,
        "exp": vector_math.exp,
        "sigmoid": vector_math.sigmoid,
        "silu": vector_math.silu,
        **{name: getattr(vector_math, name) for name in ("tanh", "log1p", "erf")},
        "sin": lambda x: vector_math.sin_cos(x)[0],
        "cos": lambda x: vector_math.sin_cos(x)[1],
    }
    target = tvm.target.Target({"kind": "llvm", "mattr": ["+fma", "+avx2"]})
    lanes = 8

    def run(name: str, values: Array) -> Array:
        padded = np.concatenate([values, np.zeros(-len(values) % lanes, np.float32)])
        x = te.placeholder((len(padded),), "float32", name="x")
        y = te.compute(x.shape, lambda i: functions[name](x(i)), name="y")
        schedule = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.vectorize(schedule.split(loop, [None, lanes])[-1])
        out = tvm.runtime.tensor(np.zeros_like(padded))
        tvm.compile(schedule.mod, target)["main"](tvm.runtime.tensor(padded), out)
        return out.numpy()[: len(values)].astype(np.float64)

    return run


def spread(least: float, most: float) -> Array:
    """Float32 numbers all over a range, with many near its middle."""
    rng = np.random.default_rng(3)
    even = rng.uniform(least, most, 40_000)
    near = even * 2.0 ** rng.uniform(-40, 0, even.size)
    return np.concatenate([even, near, np.linspace(least, most, 5_000)]).astype(np.float32)


def test_exp_keeps_its_relative_bound(math_on_host: Callable[[str, Array], Array]) -> None:
    x = spread(-87.3, 88.7)
    want = np.exp(x.astype(np.float64))
    assert np.max(np.abs(math_on_host("exp", x) / want - 1)) < EPSILON


def test_exp_at_the_ends(math_on_host: Callable[[str, Array], Array]) -> None:
    ends = np.array([-np.inf, -1e30, -104, -88, 0, -0.0, 89, 1e30, np.inf, np.nan], np.float32)
    got = math_on_host("exp", ends)
    assert np.array_equal(got, [0, 0, 0, 0, 1, 1, np.inf, np.inf, np.inf, np.nan], equal_nan=True)


def test_exp2_keeps_its_relative_bound(math_on_host: Callable[[str, Array], Array]) -> None:
    x = -np.abs(spread(-124.9, 124.9))
    want = np.exp2(x.astype(np.float64))
    assert np.max(np.abs(math_on_host("exp2", x) / want - 1)) < EPSILON


def test_exp2_at_the_ends(math_on_host: Callable[[str, Array], Array]) -> None:
    """A masked key's score less the running maximum, as far as minus infinity, weighs nothing."""
    ends = np.array([-np.inf, -2e30, -1e30, -200, -126, 0, -0.0, np.nan], np.float32)
    got = math_on_host("exp2", ends)
    assert np.array_equal(got, [0, 0, 0, 0, 0, 1, 1, np.nan], equal_nan=True)


def test_log2_keeps_its_bound(math_on_host: Callable[[str, Array], Array]) -> None:
    x = np.exp2(spread(-125.9, 127.9).astype(np.float64)).astype(np.float32)
    x = np.concatenate([x, np.float32(1) + spread(-0.5, 0.5), [1, 2, 0.5]]).astype(np.float32)
    want = np.log2(x.astype(np.float64))
    error = np.abs(math_on_host("log2", x) - want)
    assert np.max(error / np.maximum(1, np.abs(want))) < EPSILON


def test_log2_of_nan_and_infinity_is_nan(math_on_host: Callable[[str, Array], Array]) -> None:
    assert np.isnan(math_on_host("log2", np.array([np.nan, np.inf], np.float32))).all()


@pytest.mark.parametrize(("name", "least"), [("tanh", -12), ("log1p", -0.9999), ("erf", -5)])
def test_a_function_keeps_its_relative_bound_near_zero_and_far(
    math_on_host: Callable[[str, Array], Array], name: str, least: float
) -> None:
    near = np.concatenate([spread(least, 12), [1e-20, -1e-30, 1e-40]]).astype(np.float32)
    x = near[near != 0]
    functions = {"tanh": np.tanh, "log1p": np.log1p, "erf": np.vectorize(math.erf)}
    want = functions[name](x.astype(np.float64))
    assert (
        np.max(np.abs(math_on_host(name, x) - want) / np.maximum(abs(want), 2.0**-126)) < 2.0**-21
    )


@pytest.mark.parametrize(
    ("name", "want"), [("tanh", [-1, 0, 1]), ("log1p", [np.nan, 0, np.inf]), ("erf", [-1, 0, 1])]
)
def test_a_function_at_the_ends(
    math_on_host: Callable[[str, Array], Array], name: str, want: list[float]
) -> None:
    got = math_on_host(name, np.array([-np.inf, 0, np.inf, np.nan], np.float32))
    assert np.array_equal(got, [*want, np.nan], equal_nan=True)


def test_silu_of_the_least_numbers_is_zero(math_on_host: Callable[[str, Array], Array]) -> None:
    x = np.array([-3e38, -1e30, -200], np.float32)
    assert np.array_equal(math_on_host("silu", x), [0, 0, 0])


def test_sigmoid(math_on_host: Callable[[str, Array], Array]) -> None:
    x = np.concatenate([spread(-80, 80), np.array([-np.inf, np.inf, -200, 200], np.float32)])
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
    got = math_on_host("sigmoid", x)
    assert np.max(np.abs(got - want)) < EPSILON
    assert np.max(np.abs(got[want > 1e-30] / want[want > 1e-30] - 1)) < 2 * EPSILON


def test_silu(math_on_host: Callable[[str, Array], Array]) -> None:
    x = spread(-80, 80)
    want = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    got, known = math_on_host("silu", x), np.abs(want) > 1e-30
    assert np.max(np.abs(got - want)[~known], initial=0) < 1e-30
    assert np.max(np.abs(got[known] / want[known] - 1)) < 2 * EPSILON


def test_silu_at_the_ends(math_on_host: Callable[[str, Array], Array]) -> None:
    ends = np.array([-200, 0, -0.0, 90, 1e30, np.inf, np.nan], np.float32)
    got = math_on_host("silu", ends)
    assert np.array_equal(got[1:], ends[1:], equal_nan=True)
    assert abs(got[0]) < 1e-34


@pytest.mark.parametrize(("name", "function"), [("sin", np.sin), ("cos", np.cos)])
@pytest.mark.parametrize("most", [1.0, 100.0, 2.0**17])
def test_sine_and_cosine_keep_their_absolute_bound(
    math_on_host: Callable[[str, Array], Array],
    name: str,
    function: Callable[[Array], Array],
    most: float,
) -> None:
    x = spread(-most, most)
    assert np.max(np.abs(math_on_host(name, x) - function(x.astype(np.float64)))) < EPSILON


@pytest.mark.parametrize("name", ["tanh", "log1p", "erf"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_types_without_a_function_of_libm_s_are_those_of_tvm(
    tvm: ModuleType, name: str, dtype: str
) -> None:
    load_pass("vectors.elementary")
    x = tvm.te.placeholder((5,), dtype, name="x")
    y = tvm.te.compute(x.shape, lambda i: getattr(tvm.tirx, name)(x[i]), name="y")
    values = np.array([-0.5, -0.25, 0.125, 0.25, 0.5], dtype)
    out = tvm.runtime.tensor(np.zeros_like(values))
    tvm.compile(tvm.te.create_prim_func([x, y]), "llvm")["main"](tvm.runtime.tensor(values), out)
    want = {"tanh": np.tanh, "log1p": np.log1p, "erf": np.vectorize(math.erf)}[name](values)
    assert np.abs(out.numpy() - want).max() < 2e-3
