# SPDX-License-Identifier: Apache-2.0
"""The vectorised decode attention against the float64 reference, natively on this host.

Unused slots of the pages hold NaN, so a kernel that lets one of them into a sum is found out.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_kernels import _call, compile_kernel, paged_inputs
from support.passes.attention_reference import (
    EMPTY_LSE,
    Array,
    Batch,
    Heads,
    Sequence,
    assert_solves,
    attend,
    make_batch,
)
from support.passes.kv_cache_ir import kv_cache_module

pytestmark = pytest.mark.slow

HEADS = [
    Heads(kv=2, q=6, d=64, d_v=64),
    Heads(kv=3, q=3, d=48, d_v=48),
    Heads(kv=1, q=7, d=80, d_v=80),
    Heads(kv=2, q=4, d=20, d_v=20),
    Heads(kv=1, q=16, d=64, d_v=64),
    Heads(kv=1, q=2, d=128, d_v=128),
    Heads(kv=2, q=4, d=64, d_v=64, dtype="float16"),
]
# One query each: a sequence without keys, one key, lengths around a tile's, a page's and a part's.
SEQUENCES = tuple(Sequence(1, slots) for slots in (1, 15, 16, 17, 0, 33, 256, 257, 160, 800, 512))
WINDOWS = (
    Sequence(1, 33, window=9, sink=4),
    Sequence(1, 40, window=20),
    Sequence(1, 50, window=18, sink=18),
    Sequence(1, 700, window=600, sink=70),
    Sequence(1, 290, window=256),
)


@pytest.fixture(scope="module")
def kernel(tvm: ModuleType) -> Any:
    """Compiled kernels by heads and window."""
    from tvm.relax.frontend.nn.llm._decode_tiled_cpu import (  # noqa: PLC0415
        _attention_decode_cpu,
    )

    @cache
    def make(heads: Heads, window: bool) -> Any:
        return compile_kernel(
            _attention_decode_cpu(heads.kv, heads.q, heads.d, heads.dtype, window, {})
        )

    return make


def run_decode(kernel: Any, batch: Batch, *, sliding_window: bool) -> tuple[Array, Array]:
    inputs = paged_inputs(batch, sliding_window=sliding_window)
    del inputs[1]  # the lengths of the queries
    return _call(kernel, batch, inputs, [int(batch.rotary)])


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("window", [False, True])
def test_decode_is_right(kernel: Any, heads: Heads, rotary: bool, window: bool) -> None:
    batch = make_batch(heads, WINDOWS if window else SEQUENCES, rotary=rotary, seed=3)
    assert_solves(batch, run_decode(kernel(heads, window), batch, sliding_window=window))


def test_large_scores_stay_finite(kernel: Any) -> None:
    """Scores far apart: what underflows is zero, and the largest key is the answer."""
    batch = make_batch(HEADS[0], SEQUENCES[1:], seed=5, sm_scale=500.0)
    out, lse = run_decode(kernel(HEADS[0], False), batch, sliding_window=False)
    want, want_lse = attend(batch)
    assert np.isfinite(out).all()
    assert np.allclose(out, want, atol=5e-3)
    assert np.allclose(lse, want_lse, rtol=1e-5)


def test_without_keys_the_output_is_zero_and_has_no_weight(kernel: Any) -> None:
    batch = make_batch(HEADS[0], (Sequence(1, 0),))
    out, lse = run_decode(kernel(HEADS[0], False), batch, sliding_window=False)
    assert not out.any()
    assert (lse == np.float32(EMPTY_LSE)).all()


def test_kv_cache_registers_the_vectorised_kernel(tvm: ModuleType) -> None:
    module = kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}))
    for window, suffix in ((False, ""), (True, "_sliding_window")):
        function = module[f"tir_attention_decode_cpu{suffix}"]
        assert function.attrs["global_symbol"] == f"batch_decode_paged_kv_cpu{suffix}"
        text = function.script()
        assert "llvm.vector.reduce.fadd" in text
        assert "T.exp2" not in text
        assert window or "T.parallel" in text
