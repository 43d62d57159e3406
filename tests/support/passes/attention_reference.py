# SPDX-License-Identifier: Apache-2.0
"""Batches of attention problems, their float64 solution, and calls of the compiled kernels.

The reference computes softmax(Q K^T) V row by row from the definition, without tiles and without an
online softmax. Log-sum-exp is in base 2, as the kernels leave it for the merge of two parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PAGE_SIZE = 16
# Log-sum-exp which the kernels report for a row that sees no key.
EMPTY_LSE = -5e4
ROPE_THETA = 10000.0
ROPE_SCALE = 1.0


@dataclass(frozen=True)
class Heads:
    """Numbers of heads and their dimensions."""

    kv: int = 2
    q: int = 6
    d: int = 64
    d_v: int = 64
    dtype: str = "float32"


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch.

    Attributes:
        q_len: queries.
        slots: KV slots in its pages; without a sliding window all of them are keys.
        window: first slot of the sliding window; slots in [sink, window) are not keys.
        sink: leading slots which stay keys although they are before the window.
    """

    q_len: int
    slots: int
    window: int = 0
    sink: int = 0

    @property
    def kv_len(self) -> int:
        """Number of keys."""
        return self.slots - self.window + self.sink

    @property
    def key_slots(self) -> list[int]:
        """The slot of each key."""
        return [*range(self.sink), *range(self.window, self.slots)]


@dataclass(frozen=True)
class Batch:
    """Inputs of one attention call, before they are laid out in pages or ragged tensors.

    Attributes:
        q: per sequence [q_len, heads.q, heads.d].
        k: per sequence [slots, heads.kv, heads.d].
        v: per sequence [slots, heads.kv, heads.d_v].
        q_position: per sequence the RoPE position of each query.
        k_position: per sequence the RoPE position of its first key.
    """

    heads: Heads
    sequences: tuple[Sequence, ...]
    q: list[Array]
    k: list[Array]
    v: list[Array]
    q_position: list[Array]
    k_position: list[int]
    causal: bool
    rotary: bool
    sm_scale: float
    rng: np.random.Generator = field(repr=False)


def make_batch(
    heads: Heads,
    sequences: tuple[Sequence, ...],
    *,
    causal: bool = True,
    rotary: bool = False,
    seed: int = 0,
    sm_scale: float | None = None,
) -> Batch:
    """Draw a batch; sm_scale defaults to 1 / sqrt(d)."""
    rng = np.random.default_rng(seed)

    def draw(rows: int, num_heads: int, dim: int) -> Array:
        return rng.standard_normal((rows, num_heads, dim)).astype(heads.dtype)

    k_position = [int(rng.integers(0, 5)) for _ in sequences]
    return Batch(
        heads=heads,
        sequences=sequences,
        q=[draw(s.q_len, heads.q, heads.d) for s in sequences],
        k=[draw(s.slots, heads.kv, heads.d) for s in sequences],
        v=[draw(s.slots, heads.kv, heads.d_v) for s in sequences],
        q_position=[
            first + s.kv_len - min(s.q_len, s.kv_len) + np.arange(s.q_len)
            for s, first in zip(sequences, k_position, strict=True)
        ],
        k_position=k_position,
        causal=causal,
        rotary=rotary,
        sm_scale=heads.d**-0.5 if sm_scale is None else sm_scale,
        rng=rng,
    )


def rope(x: Array, position: Array, dtype: str) -> Array:
    """Rotate x [rows, heads, d] to its positions [rows]; the result is rounded to dtype."""
    half = x.shape[-1] // 2
    frequency = ROPE_THETA ** (-np.arange(half) / half)
    angle = (position * ROPE_SCALE)[:, None] * frequency
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    low, high = x[..., :half].astype("float64"), x[..., half:].astype("float64")
    rotated = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated.astype(dtype).astype("float64") if dtype == "float16" else rotated


def attend(batch: Batch, visible: list[Array] | None = None) -> tuple[Array, Array]:
    """Solve a batch in float64.

    Args:
        batch: the problem.
        visible: per sequence which query sees which key, [q_len, kv_len]; None for the batch's own
            rule, causal or all.

    Returns:
        The output [rows of all sequences, heads.q, heads.d_v] and the log-sum-exp in base 2
        [rows, heads.q]; 0 and EMPTY_LSE for a row which sees no key.
    """
    masks = visible or [_visible(batch, s) for s in batch.sequences]
    parts = [_attend_sequence(batch, index, mask) for index, mask in enumerate(masks)]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _visible(batch: Batch, sequence: Sequence) -> Array:
    row, col = np.ogrid[: sequence.q_len, : sequence.kv_len]
    if not batch.causal:
        return np.ones((sequence.q_len, sequence.kv_len), dtype=bool)
    # The last query is aligned with the last key.
    return np.asarray(col <= row + sequence.kv_len - sequence.q_len)


def _attend_sequence(batch: Batch, index: int, visible: Array) -> tuple[Array, Array]:
    sequence, heads = batch.sequences[index], batch.heads
    q = batch.q[index].astype("float64")
    k = batch.k[index][sequence.key_slots].astype("float64")
    v = batch.v[index][sequence.key_slots].astype("float64")
    if batch.rotary:
        q = rope(q, batch.q_position[index], heads.dtype)
        k = rope(k, batch.k_position[index] + np.arange(sequence.kv_len), heads.dtype)
    group = heads.q // heads.kv
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    score = np.einsum("ihd,jhd->ihj", q, k) * batch.sm_scale * np.log2(np.e)
    score = np.where(visible[:, None, :], score, -np.inf)
    top = score.max(axis=-1, initial=-1e300)
    weight = np.exp2(score - top[..., None])
    total = weight.sum(axis=-1)
    out = np.einsum("ihj,jhd->ihd", weight, v) / np.where(total > 0, total, 1)[..., None]
    with np.errstate(divide="ignore"):
        lse = top + np.log2(total)
    return out, np.where(total > 0, lse, EMPTY_LSE)


def merge(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Combine the results over two disjoint sets of keys, in float64."""
    (out_a, lse_a), (out_b, lse_b) = first, second
    top = np.maximum(lse_a, lse_b)
    a, b = np.exp2(lse_a - top), np.exp2(lse_b - top)
    out = (out_a * a[..., None] + out_b * b[..., None]) / (a + b)[..., None]
    return out, top + np.log2(a + b)


def assert_solves(
    batch: Batch, actual: tuple[Array, Array], expected: Any = None, *, int16: bool = False
) -> None:
    """Compare a kernel's output and lse with the reference.

    To the rounding of the output's type and of float32 RoPE; with `int16` to that of the weights
    to int16, too.
    """
    expected = attend(batch) if expected is None else expected
    half = batch.heads.dtype == "float16"
    bounds = (2e-3, 2e-4) if half else (1e-4, 2e-4) if int16 else (5e-6, 1e-5)
    for told, meant, bound in zip(actual, expected, bounds, strict=True):
        np.testing.assert_allclose(told, meant, atol=bound, rtol=0)
