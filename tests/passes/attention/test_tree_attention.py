# SPDX-License-Identifier: Apache-2.0
"""The tiled tree attention against the float64 reference, natively on this host."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_kernels import (
    assert_same_with_any_threads,
    compile_kernel,
    paged_inputs,
    run_paged_tree,
    run_ragged_tree,
    tree_visible,
)
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
    Heads(kv=1, q=7, d=20, d_v=20),
    Heads(kv=2, q=4, d=64, d_v=64, dtype="float16"),
]


def tree(parents: list[int]) -> Array:
    """Place in the pre-order and place behind the last descendant, of nodes given by their parents.

    Parents come before their children; -1 is that of a root.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    place, order = 0, np.zeros((len(parents), 2), "int32")

    def visit(node: int) -> None:
        nonlocal place
        order[node, 0] = place
        place += 1
        for child in children.get(node, []):
            visit(child)
        order[node, 1] = place

    for root in children.get(-1, []):
        visit(root)
    return order


def random_tree(nodes: int, rng: np.random.Generator) -> Array:
    """A forest of so many nodes."""
    return tree([int(rng.integers(-1, node)) if node else -1 for node in range(nodes)])


# A chain, a star, a comb with two roots, and one node alone.
TREES = [
    tree([-1, 0, 1, 2, 3]),
    tree([-1] + [0] * 20),
    tree([-1, 0, 0, 1, 1, -1, 5, 5]),
    tree([-1]),
]


@pytest.fixture(scope="module")
def kernels(tvm: ModuleType) -> Any:
    """Compiled kernels by kind and heads."""
    tiled = importlib.import_module("tvm.relax.frontend.nn.llm._tree_tiled_cpu")
    makers = {
        "ragged": tiled.tree_attn_cpu,
        "paged": tiled.tree_attn_with_paged_kv_cache_cpu,
    }
    return cache(
        lambda kind, heads: compile_kernel(
            makers[kind](heads.kv, heads.q, heads.d, heads.dtype, {})
        )
    )


def assert_solves_trees(batch: Batch, trees: list[Array], actual: tuple[Array, Array]) -> None:
    assert_solves(batch, actual, attend(batch, tree_visible(batch, trees)))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("before", [0, 1, 40])
def test_trees_behind_a_prompt(kernels: Any, heads: Heads, before: int) -> None:
    batch = make_batch(heads, tuple(Sequence(len(t), before + len(t)) for t in TREES), seed=2)
    assert_solves_trees(batch, TREES, run_paged_tree(kernels("paged", heads), batch, TREES))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rotary", [False, True])
def test_trees_alone(kernels: Any, heads: Heads, rotary: bool) -> None:
    batch = make_batch(heads, tuple(Sequence(len(t), len(t)) for t in TREES), rotary=rotary)
    # Keys are at their queries' positions, which the reference counts up from the first key's.
    assert all(
        (p == k + np.arange(len(p))).all()
        for p, k in zip(batch.q_position, batch.k_position, strict=True)
    )
    assert_solves_trees(batch, TREES, run_ragged_tree(kernels("ragged", heads), batch, TREES))


@pytest.mark.parametrize("seed", range(6))
def test_any_trees(kernels: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_tree(int(n), rng) for n in rng.integers(1, 50, 3)]
    # The last queries of each forest: the nodes before them are keys only.
    queries = [int(rng.integers(1, len(t) + 1)) for t in trees]
    slots = [len(t) + int(rng.integers(0, 40)) for t in trees]
    batch = make_batch(HEADS[0], tuple(map(Sequence, queries, slots)), seed=seed)
    assert_solves_trees(batch, trees, run_paged_tree(kernels("paged", HEADS[0]), batch, trees))


def test_a_sequence_without_a_tree_sees_all_its_keys(kernels: Any) -> None:
    trees = [np.zeros((0, 2), "int32"), TREES[2]]
    batch = make_batch(HEADS[0], (Sequence(2, 19), Sequence(8, 30)))
    visible = [np.ones((2, 19), bool), *tree_visible(batch, trees[1:], first=1)]
    result = run_paged_tree(kernels("paged", HEADS[0]), batch, trees)
    assert_solves(batch, result, attend(batch, visible))


def test_queries_without_keys_have_no_weight(kernels: Any) -> None:
    empty = np.zeros((0, 2), "int32")
    batch = make_batch(HEADS[0], (Sequence(3, 0), Sequence(8, 8)))
    out, lse = run_paged_tree(kernels("paged", HEADS[0]), batch, [empty, TREES[2]])
    assert not out[:3].any()
    assert (lse[:3] == np.float32(EMPTY_LSE)).all()
    assert np.isfinite(out).all()


def test_paged_kernel_refuses_inline_rope(kernels: Any) -> None:
    batch = make_batch(HEADS[0], (Sequence(1, 1),), rotary=True)
    assert len(paged_inputs(batch)) == 8
    with pytest.raises(Exception, match="Inline rotary mode is not supported"):
        run_paged_tree(kernels("paged", HEADS[0]), batch, [TREES[3]])


def test_threads_do_not_change_the_result(kernels: Any) -> None:
    batch = make_batch(HEADS[0], tuple(Sequence(len(t), 30 + len(t)) for t in TREES))
    kernel = kernels("paged", HEADS[0])
    assert_same_with_any_threads(lambda: run_paged_tree(kernel, batch, TREES))


def test_kv_cache_registers_the_tiled_kernels(tvm: ModuleType) -> None:
    module = kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}))
    for kind in ("", "_with_paged_kv_cache"):
        text = module[f"tir_attention_prefill_with_tree_mask{kind}_cpu"].script()
        assert "S_gemm" in text
        assert "O_gemm" in text
        assert "head_tile in T.parallel" in text
        assert "T.exp2" not in text
        assert "T.log2" not in text
