# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule and its convolution, compared with their formulas in float64."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.passes.functions import VECTORS, called, module_of, riscv64, settings

from crosslab.compile.overlaypass import PASSES, load_pass

OP = PASSES.parents[1] / "op/gated_delta_on_cpu.py"
SLOTS, LAYERS, LAYER = 5, 2, 1
F32, F64 = NDArray[np.float32], NDArray[np.float64]


@pytest.fixture(scope="module")
def op(tvm: ModuleType) -> Any:
    spec = importlib.util.spec_from_file_location("gated_delta_under_test", OP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # TVMScript looks for its names there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Call:
    """Inputs of a call, and the rows of each sequence."""

    shape: Any
    lengths: Sequence[int]
    x: F32
    a: F32
    b: F32
    a_log: F32
    dt_bias: F32
    states: F32

    @property
    def sequences(self) -> NDArray[np.int32]:
        slots = [SLOTS - 1 - i for i in range(len(self.lengths))]
        return np.stack([slots, np.cumsum(self.lengths)], axis=1).astype(np.int32)

    def parts(self) -> list[tuple[int, slice]]:
        """Slot and rows of each sequence."""
        ends = np.cumsum(self.lengths).tolist()
        rows = [slice(end - n, end) for n, end in zip(self.lengths, ends, strict=True)]
        return list(zip(self.sequences[:, 0].tolist(), rows, strict=True))


def call_of(shape: Any, lengths: Sequence[int]) -> Call:
    rng = np.random.default_rng(sum(lengths))
    rows, heads = sum(lengths), shape.heads

    def normal(*sizes: int) -> F32:
        return rng.standard_normal(sizes).astype(np.float32)

    a_log = np.log(rng.uniform(0.01, 4, heads)).astype(np.float32)
    states = normal(SLOTS, LAYERS * shape.floats)
    x, a, b = normal(rows, shape.channels), 2 * normal(rows, heads), 2 * normal(rows, heads)
    return Call(shape, lengths, x, a, b, a_log, normal(heads), states)


def delta_rule(call: Call) -> tuple[F64, F64]:
    """Token by token: the output, and all states after it."""
    shape, states = call.shape, call.states.astype(np.float64)
    x = call.x.astype(np.float64)
    decay = np.exp(-np.exp(call.a_log) * np.log1p(np.exp(call.a.astype(np.float64) + call.dt_bias)))
    beta = 1 / (1 + np.exp(-call.b.astype(np.float64)))
    q, k = (
        x[:, n * shape.key_heads * shape.keys :][:, : shape.key_heads * shape.keys].reshape(
            len(x), shape.key_heads, shape.keys
        )
        for n in range(2)
    )
    v = x[:, -shape.heads * shape.values :].reshape(len(x), shape.heads, shape.values)
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    q = q / np.sqrt(shape.keys)
    out = np.zeros((len(x), shape.heads, shape.values))
    for slot, rows in call.parts():
        place = slice(LAYER * shape.floats, LAYER * shape.floats + shape.recurrent)
        state = states[slot, place].reshape(shape.heads, shape.keys, shape.values)
        for t in range(rows.start, rows.stop):
            for h in range(shape.heads):
                of = h // (shape.heads // shape.key_heads)
                state[h] *= decay[t, h]
                update = beta[t, h] * (v[t, h] - k[t, of] @ state[h])
                state[h] += np.outer(k[t, of], update)
                out[t, h] = q[t, of] @ state[h]
        states[slot, place] = state.reshape(-1)
    return out, states


def convolution(call: Call, weight: F32) -> tuple[F64, F64]:
    """Of the inputs before and those of the call, channel by channel."""
    shape, states = call.shape, call.states.astype(np.float64)
    out = np.zeros(call.x.shape)
    for slot, rows in call.parts():
        place = slice(LAYER * shape.floats + shape.recurrent, (LAYER + 1) * shape.floats)
        before = states[slot, place].reshape(shape.width - 1, shape.channels)
        inputs = np.concatenate([before, call.x[rows].astype(np.float64)])
        for t in range(rows.stop - rows.start):
            total = (inputs[t : t + shape.width] * weight[:, 0].T).sum(axis=0)
            out[rows.start + t] = total / (1 + np.exp(-total))
        states[slot, place] = inputs[-(shape.width - 1) :].reshape(-1)
    return out, states


@functools.cache
def build(function: Callable[..., Any], *arguments: Any) -> Any:
    """Build what `function` returns, for this machine."""
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    made = function(*arguments).with_attr("global_symbol", "main")
    return tvm.compile(module_of(main=made), target="llvm")


def run(built: Any, *inputs: Any, call: Call, out: tuple[int, ...]) -> tuple[F32, F32]:
    """Call a function; its output and the states."""
    import tvm  # noqa: PLC0415

    result = tvm.runtime.tensor(np.full(out, np.nan, np.float32))
    states = tvm.runtime.tensor(call.states)
    given = [tvm.runtime.tensor(each) for each in (*inputs, call.sequences)]
    built["main"](*given, LAYER, states, result)
    return result.numpy(), states.numpy()


# Prompts around a chunk of 64 tokens; then several sequences, with single tokens among them.
LENGTHS = [(1,), (2,), (63,), (64,), (65,), (300,), (5, 1, 70), (1, 1, 1)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_states_and_outputs_are_those_of_single_steps(op: Any, lengths: tuple[int, ...]) -> None:
    shape = op.DeltaShape(key_heads=2, heads=4, keys=64, values=128, width=4)
    call = call_of(shape, lengths)
    function = build(op._delta, shape, "float32")
    inputs = (call.x, call.a, call.b, call.a_log, call.dt_bias)
    expected, after = delta_rule(call)
    out, states = run(function, *inputs, call=call, out=expected.shape)
    assert np.abs(out - expected).max() < 2e-5 * np.abs(expected).max()
    # Other slots and layers are as they were.
    assert np.abs(states - after).max() < 2e-5


@pytest.mark.parametrize("lengths", [(1,), (2,), (3,), (65,), (1, 7, 2)], ids=str)
def test_a_convolution_goes_on_from_the_inputs_before(op: Any, lengths: tuple[int, ...]) -> None:
    shape = op.DeltaShape(key_heads=1, heads=2, keys=16, values=16, width=4)
    call = call_of(shape, lengths)
    weight = np.random.default_rng(1).standard_normal((shape.channels, 1, 4)).astype(np.float32)
    expected, after = convolution(call, weight)
    function = build(op._convolution, shape, "float32")
    out, states = run(function, call.x, weight, call=call, out=expected.shape)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(states, after, atol=1e-6)


@pytest.mark.parametrize("size", [64, 128])
def test_each_product_calls_a_kernel(
    op: Any, kernels: Path, configure: Callable[..., None], size: int
) -> None:
    shape = op.DeltaShape(key_heads=1, heads=1, keys=size, values=size, width=4)
    lab = load_pass("attention.tensorize_prefill")
    module = module_of(gated_delta_rule=op._delta(shape, "float32"))
    target = riscv64(*VECTORS)
    result = lab.TensorizePrefill(target, settings(kernels=kernels))(module)
    names = called(result["gated_delta_rule"])
    products = [name for name in names if name.startswith("mlc_rvv_")]
    assert len(products) == len(lab.DELTA_PRODUCTS)
    assert {f"mlc_rvv_qk_f32_16x16x{size}", f"mlc_rvv_pv_f32_16x32x{size}"} < set(products)
