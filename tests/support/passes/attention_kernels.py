# SPDX-License-Identifier: Apache-2.0
"""Lays batches out as the TVM kernels want them, and calls the kernels compiled for this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from crosslab.compile.overlaypass import load_pass
from support.passes.attention_reference import PAGE_SIZE, ROPE_SCALE, ROPE_THETA, Array, Batch

# Sentinel in outputs: whatever a kernel does not write stays visible.
UNWRITTEN = 12345.0


def compile_kernel(func: Any, opt_level: int | None = None) -> Any:
    """Compile a PrimFunc for this host; returns the callable.

    Args:
        func: the PrimFunc.
        opt_level: LLVM's optimisation level, None for TVM's default.
    """
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only when a test asks for it

    target = {"kind": "llvm"} if opt_level is None else {"kind": "llvm", "opt-level": opt_level}
    symbol = "attention_under_test"
    module = tvm.IRModule({symbol: func.with_attr("global_symbol", symbol)})
    lowering = load_pass("tir_pipeline").registered()
    return tvm.compile(module, tvm.target.Target(target), tir_pipeline=lowering)[symbol]


def _indptr(lengths: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype("int32")


def _call(
    kernel: Any,
    batch: Batch,
    inputs: list[Array],
    flags: list[int],
    trailing: list[Any] | None = None,
) -> tuple[Array, Array]:
    """Call kernel(inputs, output, lse, flags, RoPE scale and theta, softmax scale, trailing)."""
    import tvm  # noqa: PLC0415

    def tensor(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        return tvm.runtime.tensor(np.ascontiguousarray(array))

    heads, rows = batch.heads, sum(s.q_len for s in batch.sequences)
    out = tensor(np.full((rows, heads.q, heads.d_v), UNWRITTEN, heads.dtype))
    lse = tensor(np.full((rows, heads.q), UNWRITTEN, "float32"))
    kernel(
        *map(tensor, inputs),
        out,
        lse,
        *flags,
        ROPE_SCALE,
        ROPE_THETA,
        batch.sm_scale,
        *map(tensor, trailing or []),
    )
    return out.numpy(), lse.numpy()


def paged_inputs(
    batch: Batch, *, sliding_window: bool = False, spare_pages: int = 3
) -> list[Array]:
    """Inputs of the paged kernel: sequences in shuffled pages, every unused slot NaN."""
    heads = batch.heads
    counts = [-(-s.slots // PAGE_SIZE) for s in batch.sequences]
    order = batch.rng.permutation(sum(counts) + spare_pages)
    pages = np.full((len(order), 2, heads.kv, PAGE_SIZE, heads.d), np.nan, dtype=heads.dtype)
    values: list[int] = []
    for index, sequence in enumerate(batch.sequences):
        own = order[len(values) : len(values) + counts[index]]
        for slot in range(sequence.slots):
            page, offset = own[slot // PAGE_SIZE], slot % PAGE_SIZE
            pages[page, 0, :, offset] = batch.k[index][slot]
            pages[page, 1, :, offset] = batch.v[index][slot]
        values.extend(own)
    last = [
        s.slots - (n - 1) * PAGE_SIZE if n else 0
        for s, n in zip(batch.sequences, counts, strict=True)
    ]
    info = [last, [s.window for s in batch.sequences], [s.sink for s in batch.sequences]]
    return [
        np.concatenate(batch.q),
        _indptr([s.q_len for s in batch.sequences]),
        pages,
        _indptr(counts),
        np.array(values, "int32"),
        np.array(info if sliding_window else last, "int32"),
        np.array(batch.k_position, "int32"),
        np.concatenate(batch.q_position).astype("int32"),
    ]


def run_paged(kernel: Any, batch: Batch, **layout: Any) -> tuple[Array, Array]:
    """Call a compiled paged kernel; layout as in paged_inputs. Returns output and lse."""
    flags = [int(batch.causal), int(batch.rotary)]
    return _call(kernel, batch, paged_inputs(batch, **layout), flags)


def run_ragged(kernel: Any, batch: Batch) -> tuple[Array, Array]:
    """Call a compiled ragged kernel. Returns output and lse."""
    inputs = [
        np.concatenate(batch.q),
        _indptr([s.q_len for s in batch.sequences]),
        np.concatenate(batch.k),
        np.concatenate(batch.v),
        _indptr([s.slots for s in batch.sequences]),
        np.concatenate(batch.q_position).astype("int32"),
        np.array(batch.k_position, "int32"),
    ]
    return _call(kernel, batch, inputs, [int(batch.causal), int(batch.rotary)])


def run_paged_tree(
    kernel: Any, batch: Batch, trees: list[Array], *, in_place: bool = False
) -> tuple[Array, Array]:
    """Call a compiled paged tree kernel.

    Args:
        kernel: the callable.
        batch: the problem; its last keys are the nodes of the trees.
        trees: per sequence [nodes, 2], each node's place in the trees' pre-order and the place
            behind its last descendant.
        in_place: hand over the only tree's own memory, int32, instead of a copy.

    Returns:
        Output and lse.
    """
    import tvm  # noqa: PLC0415

    order = tvm.runtime.from_dlpack(trees[0]) if in_place else np.concatenate(trees).astype("int32")
    trailing = [_indptr([len(t) for t in trees]), order]
    return _call(kernel, batch, paged_inputs(batch), [int(batch.rotary)], trailing)


def run_ragged_tree(kernel: Any, batch: Batch, trees: list[Array]) -> tuple[Array, Array]:
    """Call a compiled ragged tree kernel, whose keys are the trees' nodes; as run_paged_tree."""
    inputs = [
        np.concatenate(batch.q),
        _indptr([s.q_len for s in batch.sequences]),
        np.concatenate(batch.k),
        np.concatenate(batch.v),
        _indptr([s.slots for s in batch.sequences]),
        np.concatenate(batch.q_position).astype("int32"),
        _indptr([len(t) for t in trees]),
        np.concatenate(trees).astype("int32"),
    ]
    return _call(kernel, batch, inputs, [int(batch.rotary)])


def assert_same_with_any_threads(run: Callable[[], tuple[Array, Array]]) -> None:
    """Call a kernel with one, two and three threads: output and lse are the same to the bit."""
    import tvm  # noqa: PLC0415

    configure = tvm.get_global_func("runtime.config_threadpool")
    before, results = tvm.get_global_func("runtime.NumThreads")(), []
    try:
        for threads in (1, 2, 3):
            configure(1, threads)
            results.append(run())
    finally:
        configure(1, before)
    for out, lse in results[1:]:
        np.testing.assert_array_equal(out, results[0][0])
        np.testing.assert_array_equal(lse, results[0][1])


def tree_visible(batch: Batch, trees: list[Array], first: int = 0) -> list[Array]:
    """Mask of the keys that a query sees: its ancestors, itself, and every key before the trees.

    Sequences before the `first` have no tree here.
    """
    masks = []
    for sequence, tree in zip(batch.sequences[first:], trees, strict=True):
        own = tree[len(tree) - sequence.q_len :, 0]
        inside = (own[:, None] >= tree[None, :, 0]) & (own[:, None] < tree[None, :, 1])
        before = np.ones((sequence.q_len, sequence.kv_len - len(tree)), dtype=bool)
        masks.append(np.concatenate([before, inside], axis=1))
    return masks
