# SPDX-License-Identifier: Apache-2.0
"""The tiled prefill kernels against the float64 reference, natively on this host.

Unused slots of the pages hold NaN, so a kernel that lets one of them into a sum is found out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.passes.attention_kernels import (
    assert_same_with_any_threads,
    compile_kernel,
    run_paged,
    run_ragged,
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

pytestmark = pytest.mark.slow

SMALL = Heads(kv=2, q=6, d=20, d_v=20)
PAGED_HEADS = [
    Heads(kv=2, q=6, d=64, d_v=64),
    Heads(kv=3, q=3, d=48, d_v=48),
    Heads(kv=1, q=7, d=80, d_v=80),
    SMALL,
    Heads(kv=2, q=4, d=64, d_v=64, dtype="float16"),
]
RAGGED_HEADS = [
    *PAGED_HEADS,
    Heads(kv=2, q=4, d=48, d_v=80),
    Heads(kv=1, q=3, d=96, d_v=20),
    Heads(kv=2, q=2, d=20, d_v=64, dtype="float16"),
]
# Lengths on, before and behind tile borders; an empty sequence; no queries; no keys; more queries
# than keys.
EDGES = tuple(
    Sequence(q_len, slots)
    for q_len, slots in [
        (1, 1),
        (7, 33),
        (0, 0),
        (8, 16),
        (9, 17),
        (0, 5),
        (24, 48),
        (5, 2),
        (3, 0),
    ]
)
WINDOWS = (
    Sequence(7, 33, window=9, sink=4),
    Sequence(16, 40, window=20),
    Sequence(3, 3),
    Sequence(0, 20, window=15, sink=2),
    Sequence(19, 50, window=33, sink=1),
)


@pytest.fixture(scope="module")
def kernels(tvm: ModuleType) -> Any:
    """Compiled kernels by kind, heads and perhaps tile sizes."""
    from tvm.relax.frontend.nn.llm import _prefill_tiled_cpu as tiled  # noqa: PLC0415

    @cache
    def get(kind: str, heads: Heads, tile: tuple[int, int] | None = None, size: int = 0) -> Any:
        sizes = None if tile is None else tiled.PrefillTile(*tile)
        if kind == "ragged":
            function = tiled._attention_prefill_ragged_cpu(
                heads.kv, heads.q, heads.d, heads.d_v, heads.dtype, {}, tile=sizes
            )
        else:
            function = tiled._attention_prefill_cpu(
                heads.kv,
                heads.q,
                heads.d,
                heads.dtype,
                kind == "window",
                {},
                sliding_window_size=size,
                tile=sizes,
            )
        return compile_kernel(function)

    return get


def label(heads: Heads) -> str:
    return f"{heads.q}q{heads.kv}kv-d{heads.d}-{heads.d_v}-{heads.dtype}"


def in_pairs(all_heads: Iterable[Heads]) -> list[Any]:
    """Heads, causal and rotary, so that any two values of different ones meet."""
    return [
        pytest.param(heads, causal, rotary, id=f"{label(heads)}-{causal=}-{rotary=}")
        for number, heads in enumerate(all_heads)
        for causal in (False, True)
        for rotary in [causal != bool(number % 2)]
    ]


@pytest.mark.release
@pytest.mark.parametrize(("heads", "causal", "rotary"), in_pairs(RAGGED_HEADS))
def test_ragged(kernels: Any, heads: Heads, causal: bool, rotary: bool) -> None:
    batch = make_batch(heads, EDGES, causal=causal, rotary=rotary)
    assert_solves(batch, run_ragged(kernels("ragged", heads), batch))


@pytest.mark.parametrize(("heads", "causal", "rotary"), in_pairs(PAGED_HEADS))
def test_paged(kernels: Any, heads: Heads, causal: bool, rotary: bool) -> None:
    batch = make_batch(heads, EDGES, causal=causal, rotary=rotary)
    assert_solves(batch, run_paged(kernels("paged", heads), batch))


@pytest.mark.parametrize(("heads", "causal", "rotary"), in_pairs(PAGED_HEADS))
def test_sliding_window(kernels: Any, heads: Heads, causal: bool, rotary: bool) -> None:
    batch = make_batch(heads, WINDOWS, causal=causal, rotary=rotary)
    assert_solves(batch, run_paged(kernels("window", heads), batch, sliding_window=True))


def older_keys(batch: Batch, size: int) -> list[Array]:
    """Mask of the keys, all older than the queries, among the `size` tokens that a query sees."""
    masks = []
    for sequence in batch.sequences:
        row, col = np.ogrid[: sequence.q_len, : sequence.kv_len]
        distance = row + sequence.kv_len - col
        masks.append((distance < size) if batch.causal else np.ones_like(distance, dtype=bool))
    return masks


@pytest.mark.parametrize(
    ("size", "causal", "heads"),
    [
        (size, causal, [SMALL, PAGED_HEADS[-1]][(number + causal) % 2])
        for number, size in enumerate([1, 5, 16, 21, 64])
        for causal in (False, True)
    ],
    ids=str,
)
def test_window_of_a_layer(kernels: Any, heads: Heads, causal: bool, size: int) -> None:
    batch = make_batch(heads, (*WINDOWS, *EDGES, Sequence(30, 90)), causal=causal, rotary=True)
    kernel = kernels("window", heads, None, size)
    expected = attend(batch, older_keys(batch, size))
    assert_solves(batch, run_paged(kernel, batch, sliding_window=True), expected)


@pytest.mark.release
def test_window_of_a_layer_agrees_with_upstream(tvm: ModuleType, kernels: Any) -> None:
    from tvm.relax.frontend.nn.llm import _prefill_kernels as upstream  # noqa: PLC0415

    if "sliding_window_size" not in signature(upstream._attention_prefill_cpu).parameters:
        pytest.skip("this TVM has no layers with a window of their own size")
    shape = (SMALL.kv, SMALL.q, SMALL.d, SMALL.dtype, True, {})
    rows = tuple(s for s in EDGES if s.q_len <= s.slots)
    for size in (2, 9, 40):
        theirs = compile_kernel(upstream._attention_prefill_cpu(*shape, sliding_window_size=size))
        ours = kernels("window", SMALL, None, size)
        for causal in (False, True):
            batch = make_batch(SMALL, rows, causal=causal)
            # Upstream's rows without keys have another value, of the same weight 0.
            seeing = attend(batch, older_keys(batch, size))[1] != EMPTY_LSE
            results = [run_paged(one, batch, sliding_window=True) for one in (ours, theirs)]
            assert seeing.any()
            assert_solves(batch, *[(out[seeing], lse[seeing]) for out, lse in results])


@pytest.mark.parametrize("tile", [(1, 1), (7, 5), (8, 32), (16, 16), (4, 24)])
@pytest.mark.parametrize("kind", ["paged", "ragged"])
def test_any_tile_gives_the_same(kernels: Any, kind: str, tile: tuple[int, int]) -> None:
    batch = make_batch(SMALL, EDGES)
    run = run_ragged if kind == "ragged" else run_paged
    assert_solves(batch, run(kernels(kind, SMALL, tile), batch))


sequences = st.builds(Sequence, st.integers(0, 40), st.integers(0, 70))


@st.composite
def windows(draw: st.DrawFn) -> Sequence:
    """A sequence whose window begins behind its sink, anywhere up to its end."""
    slots = draw(st.integers(0, 70))
    window = draw(st.integers(0, slots))
    return Sequence(draw(st.integers(0, 40)), slots, window, draw(st.integers(0, min(window, 8))))


problem = {
    "seed": st.integers(0, 2**32 - 1),
    "causal": st.booleans(),
    "rotary": st.booleans(),
}
exploring = settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@exploring
@given(
    heads=st.sampled_from(RAGGED_HEADS[:7]),
    rows=st.lists(sequences, min_size=1, max_size=4),
    **problem,
)
def test_any_ragged_batch(kernels: Any, heads: Heads, rows: list[Sequence], **drawn: Any) -> None:
    batch = make_batch(heads, tuple(rows), **drawn)
    assert_solves(batch, run_ragged(kernels("ragged", heads), batch))


@exploring
@given(
    heads=st.sampled_from(PAGED_HEADS), rows=st.lists(sequences, min_size=1, max_size=4), **problem
)
def test_any_paged_batch(kernels: Any, heads: Heads, rows: list[Sequence], **drawn: Any) -> None:
    batch = make_batch(heads, tuple(rows), **drawn)
    assert_solves(batch, run_paged(kernels("paged", heads), batch))


@exploring
@given(
    heads=st.sampled_from(PAGED_HEADS), rows=st.lists(windows(), min_size=1, max_size=4), **problem
)
def test_any_sliding_window(kernels: Any, heads: Heads, rows: list[Sequence], **drawn: Any) -> None:
    batch = make_batch(heads, tuple(rows), **drawn)
    assert_solves(batch, run_paged(kernels("window", heads), batch, sliding_window=True))


def merge_with_upstream(tvm: ModuleType, parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Combine two results with the kernel that the KV cache uses for it."""
    from tvm.relax.frontend.nn.llm._decode_kernels import (  # noqa: PLC0415
        _merge_state_inplace_cpu,
    )

    kernel = compile_kernel(_merge_state_inplace_cpu(str(parts[0][0].dtype)))
    first, other = ([tvm.runtime.tensor(a) for a in part] for part in parts)
    kernel(*first, *other)
    return first[0].numpy(), first[1].numpy()


@pytest.mark.parametrize("heads", [PAGED_HEADS[0], SMALL, PAGED_HEADS[-1]], ids=label)
@pytest.mark.parametrize("rotary", [False, True], ids=["plain", "rotary"])
def test_a_prompt_in_two_chunks(tvm: ModuleType, kernels: Any, heads: Heads, rotary: bool) -> None:
    # Second sequence: nothing cached yet, so its paged part is empty; third: nothing new.
    lengths = [(13, 21), (9, 0), (0, 17), (1, 50)]
    whole = make_batch(
        heads, tuple(Sequence(new, old + new) for new, old in lengths), rotary=rotary
    )
    chunk = {"heads": heads, "causal": True, "rotary": rotary}
    cached = make_batch(
        **{**chunk, "causal": False}, sequences=tuple(Sequence(n, o) for n, o in lengths)
    )
    fresh = make_batch(**chunk, sequences=tuple(Sequence(n, n) for n, _ in lengths))
    for index, (_, old) in enumerate(lengths):
        for part, keys in ((cached, slice(None, old)), (fresh, slice(old, None))):
            part.q[index] = whole.q[index]
            part.k[index] = whole.k[index][keys]
            part.v[index] = whole.v[index][keys]
            part.q_position[index] = whole.q_position[index]
        cached.k_position[index] = whole.k_position[index]
        fresh.k_position[index] = whole.k_position[index] + old
    parts = [
        run_ragged(kernels("ragged", heads), fresh),
        run_paged(kernels("paged", heads), cached),
    ]
    assert_solves(whole, merge_with_upstream(tvm, parts))
    # The same keys all cached before attention: queries shorter than keys, with a causal offset.
    assert_solves(whole, run_paged(kernels("paged", heads), whole))


@pytest.mark.parametrize("kind", ["paged", "ragged"])
def test_rows_without_keys_have_no_weight(tvm: ModuleType, kernels: Any, kind: str) -> None:
    batch = make_batch(SMALL, (Sequence(20, 3), Sequence(2, 0)))
    run = run_ragged if kind == "ragged" else run_paged
    out, lse = run(kernels(kind, SMALL), batch)
    blind = attend(batch)[1] == EMPTY_LSE
    assert blind.any(axis=1).sum() == 17 + 2
    assert (out[blind] == 0).all()
    assert (lse[blind] == np.float32(EMPTY_LSE)).all()
    other = (np.ones_like(out), np.zeros_like(lse))
    merged = merge_with_upstream(tvm, [(out, lse), other])
    np.testing.assert_array_equal(merged[0][blind], other[0][blind])
    both = merge_with_upstream(tvm, [(out, lse), (out, lse)])
    assert np.isfinite(both[0]).all()
    assert np.isfinite(both[1]).all()


def test_very_low_scores_are_not_taken_for_an_empty_row(kernels: Any) -> None:
    batch = make_batch(SMALL, (Sequence(9, 20),))
    batch.q[0][...] = 300 + batch.q[0]
    batch.k[0][...] = -300 + batch.k[0]
    expected = attend(batch)
    assert expected[1].max() < EMPTY_LSE
    out, lse = run_ragged(kernels("ragged", SMALL), batch)
    # Scores of 6e5 have a spacing of 1/16 in float32.
    np.testing.assert_allclose(lse, expected[1], rtol=1e-6)
    np.testing.assert_allclose(out, expected[0], atol=0.5)
    assert (np.abs(out).max(axis=-1) > 0).all()


def test_nan_and_infinity_in_the_input_reach_the_output(kernels: Any) -> None:
    batch = make_batch(SMALL, (Sequence(20, 20),), causal=False)
    batch.q[0][3, 1, 5] = np.nan
    batch.q[0][7, 4, 0] = np.inf
    out, lse = run_ragged(kernels("ragged", SMALL), batch)
    spoilt = np.zeros(lse.shape, dtype=bool)
    spoilt[3, 1] = spoilt[7, 4] = True
    np.testing.assert_array_equal(np.isnan(lse), spoilt)
    np.testing.assert_array_equal(np.isnan(out).all(axis=-1), spoilt)


@pytest.mark.release
def test_agrees_with_upstream(tvm: ModuleType, kernels: Any) -> None:
    from tvm.relax.frontend.nn.llm import _prefill_kernels as upstream  # noqa: PLC0415

    heads = PAGED_HEADS[0]
    rows = tuple(s for s in EDGES if s.q_len <= s.slots)
    shape = (heads.kv, heads.q, heads.d)
    ragged = compile_kernel(
        upstream._attention_prefill_ragged_cpu(*shape, heads.d_v, heads.dtype, {})
    )
    paged = compile_kernel(upstream._attention_prefill_cpu(*shape, heads.dtype, False, {}))
    for rotary in (False, True):
        batch = make_batch(heads, rows, rotary=rotary)
        assert_solves(batch, run_ragged(kernels("ragged", heads), batch), run_ragged(ragged, batch))
        assert_solves(batch, run_paged(kernels("paged", heads), batch), run_paged(paged, batch))


@pytest.mark.parametrize("sizes", [(0, 16), (8, 0), (-1, 4)])
def test_impossible_tiles_are_refused(tvm: ModuleType, sizes: tuple[int, int]) -> None:
    from tvm.relax.frontend.nn.llm._prefill_tiled_cpu import PrefillTile  # noqa: PLC0415

    with pytest.raises(ValueError, match="must be positive"):
        PrefillTile(*sizes)


@pytest.mark.parametrize("kind", ["paged", "ragged"])
def test_threads_do_not_change_the_result(kernels: Any, kind: str) -> None:
    batch = make_batch(SMALL, (*EDGES, Sequence(100, 130)))
    run = run_ragged if kind == "ragged" else run_paged
    assert_same_with_any_threads(lambda: run(kernels(kind, SMALL), batch))


def test_heads_and_tiles_of_rows_are_one_parallel_loop(tvm: ModuleType) -> None:
    from tvm import tirx  # noqa: PLC0415
    from tvm.relax.frontend.nn.llm import _prefill_tiled_cpu as tiled  # noqa: PLC0415

    for function in (
        tiled._attention_prefill_ragged_cpu(2, 6, 20, 20, "float32", {}),
        tiled._attention_prefill_cpu(2, 6, 20, "float32", True, {}),
    ):
        loops: list[str] = []

        def visit(node: Any, loops: list[str] = loops) -> None:
            if isinstance(node, tirx.For) and node.kind == tirx.ForKind.PARALLEL:
                loops.append(node.loop_var.name)

        tirx.stmt_functor.post_order_visit(function.body, visit)
        # Two fill the tables of RoPE.
        assert loops == ["row", "row", "head_tile"]
