# SPDX-License-Identifier: Apache-2.0
"""Defects of upstream's CPU attention kernels, one test for each patch that mends one.

Everything here runs upstream's functions, imported from the modules that define them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_kernels import (
    compile_kernel,
    run_paged,
    run_paged_tree,
    run_ragged,
    run_ragged_tree,
    tree_visible,
)
from support.passes.attention_reference import (
    EMPTY_LSE,
    Array,
    Batch,
    Heads,
    Sequence,
    attend,
    make_batch,
    merge,
)
from support.passes.tir_facts import loops_depending_on, scratch_accesses_out_of_bounds

pytestmark = pytest.mark.slow

HEADS = Heads(kv=2, q=6, d=64, d_v=64)
# Two roots, the first with a child: places in the pre-order, and behind the last descendant.
FOREST = np.array([[0, 2], [1, 2], [2, 3]])


@pytest.fixture(scope="module")
def functions(tvm: ModuleType) -> Any:
    """Upstream's PrimFuncs by short name."""
    package = "tvm.relax.frontend.nn.llm"
    # By path: the package's own attribute tree_attn is a function of that module.
    _prefill_kernels = importlib.import_module(f"{package}._prefill_kernels")
    tree_attn = importlib.import_module(f"{package}.tree_attn")
    kv, q, d = HEADS.kv, HEADS.q, HEADS.d
    make = {
        "paged": lambda: _prefill_kernels._attention_prefill_cpu(kv, q, d, "float32", False, {}),
        "paged_window": lambda: _prefill_kernels._attention_prefill_cpu(
            kv, q, d, "float32", True, {}
        ),
        "ragged": lambda: _prefill_kernels._attention_prefill_ragged_cpu(
            kv, q, d, d, "float32", {}
        ),
        "paged_tree": lambda: tree_attn.tree_attn_with_paged_kv_cache_cpu(kv, q, d, "float32", {}),
        "ragged_tree": lambda: tree_attn.tree_attn_cpu(kv, q, d, "float32", {}),
    }
    return cache(lambda name: make[name]())


@pytest.fixture(scope="module")
def kernels(functions: Any) -> Any:
    """Compiled kernels by short name, without LLVM's optimiser, which hides defects."""
    return cache(lambda name: compile_kernel(functions(name), opt_level=0))


def assert_close(actual: tuple[Array, Array], expected: tuple[Array, Array]) -> None:
    """Compare output and lse of float32 kernels with the reference."""
    np.testing.assert_allclose(actual[0], expected[0], atol=2e-6, rtol=1e-5)
    np.testing.assert_allclose(actual[1], expected[1], atol=1e-5, rtol=1e-5)


def scaled(batch: Batch, sequence: int, rows: slice, factor: float) -> None:
    """Multiply some queries of a batch."""
    batch.q[sequence][rows] *= factor


def test_paged_prefill_at_opt_level_0(functions: Any, kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(7, 33), Sequence(19, 19)))
    assert_close(run_paged(kernels("paged"), batch), attend(batch))
    assert scratch_accesses_out_of_bounds(functions("paged")) == []


def test_paged_tree_attention_at_opt_level_0(functions: Any, kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(3, 20), Sequence(3, 40)))
    trees = [FOREST, FOREST]
    expected = attend(batch, tree_visible(batch, trees))
    assert_close(run_paged_tree(kernels("paged_tree"), batch, trees), expected)
    assert scratch_accesses_out_of_bounds(functions("paged_tree")) == []


def test_paged_prefill_of_rows_without_keys(kernels: Any) -> None:
    # 3 of the second sequence's 5 queries stand before its first key.
    batch = make_batch(HEADS, (Sequence(7, 33), Sequence(5, 2)))
    out, lse = run_paged(kernels("paged"), batch)
    expected = attend(batch)
    blind = expected[1] == EMPTY_LSE
    assert blind.any(axis=1).sum() == 3
    assert np.isfinite(out).all()
    assert (lse[blind] < 0.99 * EMPTY_LSE).all()
    assert_close((out[~blind], lse[~blind]), (expected[0][~blind], expected[1][~blind]))
    # Merged with a part that has keys, such a row must not change anything.
    other = (np.ones_like(out), np.zeros_like(lse))
    merged = merge((out, lse), other)
    np.testing.assert_array_equal(merged[0][blind], other[0][blind])
    np.testing.assert_array_equal(merged[1][blind], other[1][blind])


def test_paged_tree_attention_of_a_second_root(kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(3, 3),))
    # Scores of the first tree in the hundreds, of the second root far below: weights relative to
    # the first tree's maximum are 0 in float32.
    scaled(batch, 0, slice(0, 3), 0)
    batch.q[0][:2] += 40
    batch.k[0][:2] = 1
    batch.q[0][2] += 40
    batch.k[0][2] = -1
    expected = attend(batch, tree_visible(batch, [FOREST]))
    assert expected[1][1].min() - expected[1][2].max() > 200
    assert_close(run_paged_tree(kernels("paged_tree"), batch, [FOREST]), expected)


@pytest.mark.parametrize("window", [False, True])
def test_paged_prefill_does_not_walk_the_pool(functions: Any, window: bool) -> None:
    function = functions("paged_window" if window else "paged")
    assert loops_depending_on(function, "max_num_pages") == []


def test_paged_tree_attention_does_not_walk_the_pool(functions: Any) -> None:
    assert loops_depending_on(functions("paged_tree"), "max_num_pages") == []


def test_ragged_prefill_without_keys(kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(7, 7), Sequence(4, 0)))
    assert_close(run_ragged(kernels("ragged"), batch), attend(batch))


def test_ragged_prefill_mask_with_a_small_scale(kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(19, 19),), sm_scale=1e-4)
    assert_close(run_ragged(kernels("ragged"), batch), attend(batch))


def test_ragged_tree_attention_mask_with_a_small_scale(kernels: Any) -> None:
    batch = make_batch(HEADS, (Sequence(3, 3),), sm_scale=1e-4)
    expected = attend(batch, tree_visible(batch, [FOREST]))
    assert_close(run_ragged_tree(kernels("ragged_tree"), batch, [FOREST]), expected)


def test_tree_attention_reads_nothing_before_the_tree_order(tvm: ModuleType) -> None:
    script = Path(__file__).with_name("guarded_tree_attention.py")
    tests = Path(__file__).parents[2]
    # Before the tests, one of whose folders has the name of the package.
    folders = [str(Path(str(tvm.__file__)).parents[1]), str(tests)]
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    batch = make_batch(Heads(kv=1, q=1, d=16, d_v=16), (Sequence(3, 40),))
    expected = attend(batch, tree_visible(batch, [FOREST]))[1][:, 0]
    np.testing.assert_allclose([float(x) for x in done.stdout.split()], expected, atol=1e-5)
