# SPDX-License-Identifier: Apache-2.0
"""A KV cache in int8: its kernels against float64 over the rounded keys and values, on this host.

Unused slots of the pages hold a factor of NaN, so a kernel that lets one into a sum is found out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.attention_kernels import (
    _call,
    compile_kernel,
    paged_inputs,
    tree_visible,
)
from support.passes.attention_reference import (
    PAGE_SIZE,
    Array,
    Batch,
    Heads,
    Sequence,
    assert_solves,
    attend,
    make_batch,
)
from support.passes.kv_cache_ir import kv_cache_module

from crosslab.models.roundings import round_to_int8

pytestmark = pytest.mark.slow

HEADS = [
    Heads(kv=1, q=7, d=48, d_v=48),
    Heads(kv=2, q=6, d=64, d_v=64),
    Heads(kv=1, q=2, d=128, d_v=128),
    Heads(kv=1, q=1, d=256, d_v=256),
    Heads(kv=1, q=2, d=64, d_v=64, dtype="float16"),
]
LENGTHS = (1, 16, 0, 33, 70)
WINDOWS = ((33, 9, 4), (50, 18, 18))
FACTOR = 4


def rounded(x: Array) -> Array:
    """Keys or values [tokens, heads, d] as the pages keep them."""
    rows = x.reshape(-1, x.shape[-1]).astype("float32")
    return round_to_int8(rows, x.shape[-1]).reshape(x.shape) if len(x) else x


def in_int8(pages: Array) -> Array:
    """Rows of pages and their factors, as bytes; rows of NaN keep a factor of NaN."""
    *shape, d = pages.shape
    rows = pages.reshape(-1, d).astype("float32")
    largest = np.abs(rows).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.nan_to_num(np.rint(rows * (np.float32(127) / largest))).astype("int8")
    factor = largest * np.float32(1 / 127)
    return np.concatenate([whole, factor.view("int8")], axis=1).reshape(*shape, d + FACTOR)


def of_rounded(batch: Batch) -> Batch:
    """The batch whose keys and values were rounded, in float32: what the kernels compute."""
    heads = replace(batch.heads, dtype="float32") if not batch.rotary else batch.heads
    return replace(batch, heads=heads, k=list(map(rounded, batch.k)), v=list(map(rounded, batch.v)))


def assert_rounds(
    batch: Batch, actual: tuple[Array, Array], visible: Any = None, *, decode: bool = False
) -> None:
    assert_solves(batch, actual, attend(of_rounded(batch), visible), int16=decode)


def run(kernel: Any, batch: Batch, *, decode: bool, window: bool = False) -> tuple[Array, Array]:
    inputs = paged_inputs(batch, sliding_window=window)
    inputs[2] = in_int8(inputs[2])
    if decode:
        del inputs[1]  # the lengths of the queries
    flags = [int(batch.rotary)] if decode else [int(batch.causal), int(batch.rotary)]
    return _call(kernel, batch, inputs, flags)


@pytest.fixture(scope="module")
def kernels(tvm: ModuleType) -> Any:
    """Compiled kernels by kind, heads and window."""
    from tvm.relax.frontend.nn.llm import (  # noqa: PLC0415
        _decode_tiled_cpu,
        _int8_pages_cpu,
        _prefill_tiled_cpu,
        _tree_tiled_cpu,
    )

    def make(kind: str, heads: Heads, window: bool = False) -> Any:
        shape, type_ = (heads.kv, heads.q, heads.d), heads.dtype
        pages = {"int8_pages": True}
        if kind.endswith("decode"):
            # More keys and columns at once where registers have 256 bits.
            width = {"vector-width": 256} if kind == "wide decode" else {}
            with tvm.target.Target({"kind": "llvm", **width}):
                made = _decode_tiled_cpu._attention_decode_cpu(*shape, type_, window, {}, **pages)
        elif kind == "prefill":
            # Since TVM 0.27 such a kernel has the window of a layer by default.
            made = _prefill_tiled_cpu._attention_prefill_cpu(
                *shape, type_, window, {}, sliding_window_size=0, **pages
            )
        elif kind == "tree":
            made = _tree_tiled_cpu.tree_attn_with_paged_kv_cache_cpu(*shape, type_, {}, **pages)
        elif kind == "append":
            made = _int8_pages_cpu._append_int8_cpu(heads.kv, heads.d, type_)
        else:
            made = _int8_pages_cpu._debug_get_kv_int8_cpu(2, heads.kv, heads.d, type_)
        return compile_kernel(made)

    return cache(make)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kind", ["decode", "wide decode", "prefill"])
def test_attention_over_int8(kernels: Any, kind: str, heads: Heads) -> None:
    decode = kind.endswith("decode")
    rows = tuple(Sequence(1 if decode else 5, slots) for slots in LENGTHS)
    batch = make_batch(heads, rows, seed=3)
    assert_rounds(batch, run(kernels(kind, heads), batch, decode=decode), decode=decode)


def test_weights_of_tiny_values_keep_their_digits(kernels: Any) -> None:
    """A weight times the factor of its value would be a subnormal half."""
    heads = next(heads for heads in HEADS if heads.dtype == "float16")
    batch = make_batch(heads, (Sequence(1, 300),), seed=5)
    batch = replace(batch, v=[v * np.float16(2.0**-12) for v in batch.v])
    out, _ = run(kernels("decode", heads), batch, decode=True)
    want, _ = attend(of_rounded(batch))
    assert np.linalg.norm(out - want) < 0.001 * np.linalg.norm(want)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("window", [False, True])
def test_rope_inside_the_kernel(kernels: Any, kind: str, window: bool) -> None:
    queries = 1 if kind == "decode" else 5
    slots = WINDOWS if window else [(n,) for n in LENGTHS]
    batch = make_batch(HEADS[0], tuple(Sequence(queries, *n) for n in slots), rotary=True)
    kernel, decode = kernels(kind, HEADS[0], window), kind == "decode"
    assert_rounds(batch, run(kernel, batch, decode=decode, window=window), decode=decode)


def test_trees_over_int8(kernels: Any) -> None:
    # A root with two children behind 20 keys; a node alone.
    trees = [np.array([[0, 3], [1, 2], [2, 3]], "int32"), np.array([[0, 1]], "int32")]
    batch = make_batch(HEADS[0], (Sequence(3, 23), Sequence(1, 1)))
    inputs = paged_inputs(batch)
    inputs[2] = in_int8(inputs[2])
    trailing = [np.array([0, 3, 4], "int32"), np.concatenate(trees)]
    result = _call(kernels("tree", HEADS[0]), batch, inputs, [0], trailing)
    assert_rounds(batch, result, tree_visible(batch, trees))


@pytest.mark.parametrize("heads", [HEADS[0], HEADS[-1]], ids=str)
def test_rows_are_rounded_and_read_back(tvm: ModuleType, kernels: Any, heads: Heads) -> None:
    """Rows of zeros, of tiny elements, of NaN and of infinity among others; a slot left out."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 7, heads.kv, heads.d)).astype(heads.dtype)
    data[0, 0] = 0
    data[0, 1] *= np.float32(2.0**-20)
    data[0, 2, 0, 5] = np.nan
    data[1, 3, 0, 9] = -np.inf
    slots = np.array([17, 3, 47, 0, 31, -1, 16], "int32")
    pages = tvm.runtime.tensor(np.full((3, 2, heads.kv, PAGE_SIZE, heads.d + FACTOR), 99, "int8"))
    kernels("append", heads)(pages, *map(tvm.runtime.tensor, (*data, slots)))
    kept = slots != -1
    nothing = np.zeros((2, kept.sum(), *data.shape[2:]), heads.dtype)
    read = [tvm.runtime.tensor(nothing) for _ in data]
    kernels("debug", heads)(pages, tvm.runtime.tensor(slots[kept]), *read, 1)
    for told, meant in zip(read, data, strict=True):
        finite = np.isfinite(meant[kept]).all(axis=(1, 2))
        assert not told.numpy()[0].any()
        np.testing.assert_array_equal(np.isfinite(told.numpy()[1]).any(axis=(1, 2)), finite)
        whole = rounded(meant[kept][finite])
        # Of float16, the last bit; the tiny elements are denormal there.
        bounds = {"rtol": 1e-3, "atol": 1e-7} if heads.dtype == "float16" else {"rtol": 1e-6}
        np.testing.assert_allclose(told.numpy()[1][finite], whole, **bounds)
    unused = np.setdiff1d(np.arange(3 * PAGE_SIZE), slots)
    by_slot = pages.numpy().transpose(0, 3, 1, 2, 4).reshape(3 * PAGE_SIZE, -1)
    assert (by_slot[unused] == 99).all()


def test_pages_and_rows_are_copied_with_their_factors(tvm: ModuleType) -> None:
    from tvm.relax.frontend.nn.llm import _page_kernels  # noqa: PLC0415
    from tvm.relax.frontend.nn.llm._kv_layouts import row_of_pages  # noqa: PLC0415

    row = row_of_pages(48, "float32", True)
    bytes_ = np.random.default_rng(0).integers(-128, 128, (3, 2, 1, PAGE_SIZE, row[0]), "int8")
    pages = tvm.runtime.tensor(bytes_)
    compile_kernel(_page_kernels._copy_single_page_cpu(1, PAGE_SIZE, *row))(pages, 0, 2, 5)
    bytes_[2, :, :, :5] = bytes_[0, :, :, :5]
    np.testing.assert_array_equal(pages.numpy(), bytes_)
    moved = [np.array([0, 1], "int32"), np.array([[3], [20]], "int32")]
    compact = compile_kernel(_page_kernels._compact_kv_copy_cpu(1, *row))
    compact(pages, *map(tvm.runtime.tensor, moved), 1)
    bytes_[1, :, :, 4] = bytes_[0, :, :, 3]
    np.testing.assert_array_equal(pages.numpy(), bytes_)


def test_kv_cache_registers_the_kernels_of_int8_pages(tvm: ModuleType) -> None:
    module = kv_cache_module(tvm, tvm.target.Target({"kind": "llvm"}), int8_pages=True)
    texts = {one.name_hint: function.script() for one, function in module.functions_items()}
    pages = re.compile(r', 2, 2, (16|"?page"?), 52\), "int8"')
    # Prefill and decode, each also with a window, and trees; append, debug, two copies.
    assert sum(bool(pages.search(text)) for text in texts.values()) == 9
    # Before the bytes of a row, the window of layers: TVM 0.27 always has one.
    assert re.search(r"page, sliding, (0|1024), 52\]\)", texts["create"])


@pytest.mark.parametrize(
    ("latent", "kind"), [(True, "llvm"), (False, "cuda")], ids=["latent attention", "GPU"]
)
def test_a_cache_without_such_kernels_refuses_them(
    tvm: ModuleType, latent: bool, kind: str
) -> None:
    with pytest.raises(ValueError, match="int8_pages: only CPUs have kernels"):
        kv_cache_module(tvm, tvm.target.Target(kind), latent=latent, int8_pages=True)
