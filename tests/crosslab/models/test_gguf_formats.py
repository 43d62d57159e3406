# SPDX-License-Identifier: Apache-2.0
"""Weights of GGUF files, taken apart and packed, against the gguf package's own dequantization."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from support.gguf_bytes import random_rows

from crosslab.models.gguf_formats import (
    FILE_TYPES,
    Blocks,
    gguf_formats,
    read_blocks,
    stays_in_blocks,
)


@pytest.mark.parametrize("name", FILE_TYPES)
def test_dequantized_bit_by_bit_as_the_package_does(name: str) -> None:
    raw = random_rows(name, 5, 768)
    theirs = dequantize(raw, GGMLQuantizationType[name])
    ours = read_blocks(name, raw).dequantized()
    if name == "IQ4_XS":  # factors of 32 weights are rounded to halves
        assert np.abs(ours - theirs).max() <= 2.0**-11 * np.abs(theirs).max()
        ours = np.where(np.abs(ours - theirs) <= 2.0**-11 * np.abs(theirs) + 2.0**-18, theirs, ours)
    assert np.array_equal(ours, theirs)


def test_powers_of_two_that_no_half_has_are_told() -> None:
    raw = random_rows("MXFP4", 2, 64)
    assert stays_in_blocks("MXFP4", raw)
    for exponent in (103, 144, 0, 255):
        raw[1, 17] = exponent
        assert not stays_in_blocks("MXFP4", raw)
    assert not stays_in_blocks("F32", np.zeros((1, 4), np.uint8))


def unpacked(blocks: Blocks) -> np.typing.NDArray[np.int64]:
    """The values again, read from the packed parts by their description."""
    f, (n, k) = blocks.format, blocks.values.shape
    parts = blocks.packed()
    values = np.zeros((n, k), np.int64)
    for i in range(k):
        if f.low == 8:
            values[:, i] = parts["quants"][:, i].view(np.int8)
        else:
            values[:, i] = parts["quants"][:, i // 2] >> (4 * (i % 2)) & 15
        if f.high:
            inputs = 8 // f.high
            high = parts["high"][:, i // inputs] >> (i % inputs * f.high) & ((1 << f.high) - 1)
            values[:, i] += high.astype(np.int64) << 4
    return values


@pytest.mark.parametrize("name", FILE_TYPES)
def test_packing_loses_nothing(name: str) -> None:
    blocks = read_blocks(name, random_rows(name, 3, 512))
    again = Blocks.of_parts(blocks.format, blocks.packed())
    assert np.array_equal(again.dequantized(), blocks.dequantized())
    assert np.array_equal(unpacked(blocks), blocks.values)
    parts = blocks.packed()
    assert np.array_equal(parts["factors"].view(np.float16), blocks.factors.reshape(3, -1))
    if blocks.scales is not None:
        signed = parts["scales"] if blocks.format.minimums else parts["scales"].view(np.int8)
        assert np.array_equal(signed, blocks.scales.reshape(3, -1))
    shapes = {n: (part.shape[1] / 512, part.dtype.type) for n, part in parts.items()}
    assert shapes == blocks.format.parts


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q8_0", 8.5),
        ("Q2_K", 5.125),
        ("Q3_K", 4.5625),
        ("Q4_K", 4.625),
        ("Q5_K", 5.625),
        ("Q6_K", 6.5625),
    ],
)
def test_bits_a_weight(name: str, bits: float) -> None:
    # A file's Q4_K takes 4.5 and its Q5_K 5.5: six-bit scales lie in bytes on a board. Its Q2_K
    # takes 2.625 and its Q3_K 3.4375: values of two and three bits lie in four.
    assert gguf_formats()[name].bits == bits


def test_rows_of_parts_of_blocks_and_infinite_factors_are_rejected() -> None:
    with pytest.raises(ValueError, match="a row has 19 bytes, which are no whole blocks of 18"):
        read_blocks("Q4_0", np.zeros((1, 19), np.uint8))
    infinite = np.zeros((1, 18), np.uint8)
    infinite[0, 1] = 0x7C
    with pytest.raises(ValueError, match="a factor of a block \\(Q4_0\\) is not finite"):
        read_blocks("Q4_0", infinite)
