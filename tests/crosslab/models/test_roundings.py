# SPDX-License-Identifier: Apache-2.0
"""A run's record of roundings: taken where the reference's values explain it, else refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.rounding_records import CALL, HEADER, rows_entry, tokens_entry

from crosslab.errors import LabError
from crosslab.models.roundings import (
    HALVES_SLACK,
    RoundingError,
    RunRoundings,
    halves_error,
    int8_rows,
)
from crosslab.models.weights_file import F32

BLOCK = 4
# -63.5 and 63.5 steps: the middle. The last block of each row is a short one.
MATRIX = np.array([[1, -0.5, 0.25, 0, 2, 1], [3, 1.5, -3, 0, 0, 0], [0] * 6], np.float32)
VALUES, SCALES = int8_rows(MATRIX, BLOCK)
KEYS = np.random.default_rng(3).normal(0, 2, (2, 3, 1, 8)).astype(np.float32)


def taken(record: bytes, matrix: F32 = MATRIX) -> RunRoundings:
    """The roundings after one matrix."""
    taking = RunRoundings(record + CALL)
    taking.begin()
    taking.matrix(matrix, BLOCK, "w")
    taking.end()
    return taking


def test_values_are_rounded_by_block() -> None:
    assert VALUES[0].tolist() == [127, -64, 32, 0, 127, 64]
    assert VALUES[1].tolist() == [127, 64, -127, 0, 0, 0]
    assert np.allclose(SCALES * 127, [[1, 2], [3, 0], [0, 0]])


def test_a_rounding_near_the_middle_is_taken() -> None:
    near = VALUES.copy()
    near[0, 1], near[1, 1] = -63, 63
    taking = RunRoundings(rows_entry(near, SCALES, block=BLOCK) + CALL)
    taking.begin()
    values, scales = taking.matrix(MATRIX, BLOCK, "w")
    assert np.array_equal(values, near)
    assert np.array_equal(scales, SCALES)
    assert (taking.taken, taking.other) == (18, 2)
    assert taking.farthest < 1e-6


def test_rows_of_several_threads_are_put_in_order() -> None:
    parts = [rows_entry(VALUES[i : i + 1], SCALES[i : i + 1], i, BLOCK) for i in (2, 0, 1)]
    assert taken(b"".join(parts)).other == 0


def _with(row: int, column: int, value: int) -> bytes:
    values = VALUES.copy()
    values[row, column] = value
    return rows_entry(values, SCALES, block=BLOCK)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (_with(0, 2, 31), r"rounding 1 .*input of w: row 0, column 2 is 31, not 32"),
        (_with(2, 3, 1), "row 2, column 3 is 1, not 0"),
        (rows_entry(VALUES, SCALES * 1.01, block=BLOCK), "row 0, block 0 has a scale of"),
        (rows_entry(VALUES, SCALES * np.nan, block=BLOCK), "has a scale of nan"),
        (rows_entry(VALUES[:, ::-1], SCALES[:, ::-1], block=BLOCK), "has a scale of"),
        (rows_entry(VALUES, SCALES, block=5), "in blocks of 5, not 3 x 6 in blocks of 4"),
        (rows_entry(VALUES.T, SCALES.T, block=BLOCK), "rounded 6 x 3 in"),
        (rows_entry(VALUES[:2], SCALES[:2], block=BLOCK), "rounded nothing more"),
        (b"", "rounded nothing more"),
        (2 * rows_entry(VALUES, SCALES, block=BLOCK), "rounded more than the reference"),
        (CALL + rows_entry(VALUES, SCALES, block=BLOCK), "rounded nothing more in this call"),
        (
            rows_entry(VALUES, SCALES, block=BLOCK) + tokens_entry(KEYS, KEYS),
            "rounded more than the reference",
        ),
    ],
)
def test_a_rounding_that_values_do_not_explain_is_a_fault(record: bytes, message: str) -> None:
    with pytest.raises(RoundingError, match=message):
        taken(record)


@pytest.mark.parametrize(
    "damaged", [lambda r: r[:-1], lambda r: r[:10], lambda r: HEADER.pack(7, 1, 1, 1, 0) + r]
)
def test_a_damaged_record_is_an_error_of_its_own(damaged: Callable[[bytes], bytes]) -> None:
    with pytest.raises(LabError, match="record of roundings") as caught:
        taken(damaged(rows_entry(VALUES, SCALES, block=BLOCK)))
    assert not isinstance(caught.value, RoundingError)


def test_a_run_may_multiply_by_the_head_without_rounding() -> None:
    taking = RunRoundings(rows_entry(VALUES, SCALES, block=BLOCK) + CALL)
    taking.begin()
    assert not np.array_equal(taking.head(MATRIX, BLOCK, "head"), MATRIX)
    assert taking.rounds_head
    assert np.array_equal(taking.head(MATRIX, BLOCK, "head"), MATRIX)
    assert not taking.rounds_head


def test_noise_of_float32_is_no_fault_in_a_block_of_small_values() -> None:
    matrix = np.concatenate([MATRIX[:1, :4], MATRIX[:1, :4] * np.float32(1e-4)], axis=1)
    noisy = matrix + np.float32(1e-7) * np.array([[0, 0, 0, 0, 1, -1, 1, 1]], np.float32)
    values, scales = int8_rows(noisy, BLOCK)
    taken(rows_entry(values, scales, block=BLOCK), matrix)
    with pytest.raises(RoundingError):
        values, scales = int8_rows(matrix * np.float32(1.001), BLOCK)
        taken(rows_entry(values, scales, block=BLOCK), matrix)


def _kept(x: F32) -> F32:
    """What a cache in int8 holds of keys or values."""
    values, scales = int8_rows(x.reshape(-1, x.shape[-1]), x.shape[-1])
    return (values * scales).astype(np.float32).reshape(x.shape)


def test_the_cache_holds_what_was_rounded() -> None:
    held = _kept(KEYS)
    # Read in two calls.
    parts = [tokens_entry(part, part) + CALL for part in (held[:, :2], held[:, 2:])]
    taking = RunRoundings(b"".join(parts))
    for layer in range(2):
        for part in (slice(2), slice(2, 3)):
            keys, values = taking.cached(
                KEYS[layer, part], KEYS[layer, part], layer, part.start or 0
            )
            assert np.allclose(keys, held[layer, part], rtol=1e-6)
            assert np.array_equal(keys, values)
    taking.begin()
    taking.begin()
    taking.end()
    assert (taking.taken, taking.other) == (2 * KEYS.size, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: k * np.float32(1.01), "layer 0 of the run's cache, key of token 0"),
        (lambda k: k[:, [1, 0, 2]], "key of token 0"),
        (lambda k: k[:, :2], "lacks token 2 of layer 0"),
        (lambda k: k[:1], "lacks token 2 of layer 1"),
        (lambda k: k * np.float32(np.inf), "NaN or infinity"),
    ],
)
def test_another_cache_is_a_fault(change: Callable[[F32], F32], message: str) -> None:
    held = change(_kept(KEYS))
    with pytest.raises(RoundingError, match=message):
        taking = RunRoundings(tokens_entry(held, held) + CALL)
        for layer in range(2):
            taking.cached(KEYS[layer], KEYS[layer], layer, 0)


@pytest.mark.parametrize("layer", [0, 11, 47])
@pytest.mark.parametrize("width", [16, 128])
def test_halves_explain_more_other_values_in_deeper_layers(layer: int, width: int) -> None:
    random = np.random.default_rng(layer)
    keys = random.normal(0, 2, (layer + 1, 64, 2, width)).astype(np.float32)
    noise = 2 * halves_error(layer + 1) * random.normal(0, 1, keys.shape).astype(np.float32)

    def read(part: float) -> RunRoundings:
        """Read a cache whose error is a part of the one that halves explain."""
        held = _kept(keys + np.float32(part) * noise)
        taking = RunRoundings(tokens_entry(held, held) + CALL, HALVES_SLACK, layer + 1)
        taking.cached(keys[layer], keys[layer], layer, 0)
        return taking

    assert read(0.5).other > 0
    with pytest.raises(RoundingError, match="values are not the reference's own"):
        read(1.5)
