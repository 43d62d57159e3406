# SPDX-License-Identifier: Apache-2.0
"""Quantization to formats that the package gguf can read but not write.

Scales are simply computed from the largest weight. ``llama-quantize`` searches for better scales,
which does not change the instructions of a run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType
from gguf import quantize as quantize_others
from numpy.typing import NDArray

from crosslab.models.weights_file import F32

Bytes = NDArray[np.uint8]
# IQ4_NL's 16 values, ascending.
LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def quantize(values: F32, kind: GGMLQuantizationType) -> NDArray[np.generic]:
    """Quantize a matrix to llama.cpp's format: each row becomes a row of bytes."""
    entry = _OWN.get(kind)
    if entry is None:
        return np.asarray(quantize_others(values, kind))
    function, block = entry
    rows, width = values.shape
    blocks = function(values.reshape(-1, block))
    return blocks.reshape(rows, width // block * blocks.shape[1])


def _halves(values: F32) -> tuple[F32, Bytes]:
    """Return rows of numbers rounded to float16, as float32, and the bytes of each row."""
    rounded = values.astype(np.float16)
    return rounded.astype(np.float32), rounded.view(np.uint8).reshape(len(values), -1)


def _over(values: F32, divisor: F32) -> F32:
    return np.divide(values, divisor, out=np.zeros_like(values), where=divisor != 0)


def _q4_k(blocks: F32) -> Bytes:
    """Encode blocks of 256 weights with 4 bits each."""
    head, codes = _eight_groups(blocks, 15)
    return np.concatenate([head, _nibbles(codes)], axis=1)


def _q5_k(blocks: F32) -> Bytes:
    """Encode blocks of 256 weights with 5 bits each; bit g of 32 bytes is group g's fifth bit."""
    head, codes = _eight_groups(blocks, 31)
    fifths = np.packbits(codes > 15, axis=1, bitorder="little").reshape(len(blocks), 32)
    return np.concatenate([head, fifths, _nibbles(codes & np.uint8(15))], axis=1)


def _nibbles(codes: Bytes) -> Bytes:
    """Pack 256 codes into 128 bytes: a group in low nibbles, the next group in high nibbles."""
    packed = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return packed.reshape(len(codes), 128)


def _eight_groups(blocks: F32, most: int) -> tuple[Bytes, Bytes]:
    """Return scales and codes (0 to `most`) of blocks of 256 weights.

    Each of 8 groups of 32 weights has a scale and a minimum of 6 bits.

    Returns:
        [blocks, 16] bytes that precede the codes; codes [blocks, 8, 32].
    """
    groups = blocks.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), 0)
    step = (groups.max(axis=2) - low) / most
    scale, scale_bytes = _halves(step.max(axis=1, keepdims=True) / 63)
    least, least_bytes = _halves((-low).max(axis=1, keepdims=True) / 63)
    steps = np.rint(_over(step, np.broadcast_to(scale, step.shape))).clip(0, 63).astype(np.uint8)
    lows = np.rint(_over(-low, np.broadcast_to(least, low.shape))).clip(0, 63).astype(np.uint8)
    wide = np.broadcast_to((scale * steps)[:, :, None], groups.shape)
    codes = np.rint(_over(groups + (least * lows)[:, :, None], wide)).clip(0, most)
    packed = np.concatenate(
        [
            steps[:, :4] | steps[:, 4:] >> 4 << 6,
            lows[:, :4] | lows[:, 4:] >> 4 << 6,
            (steps[:, 4:] & 15) | (lows[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    head = np.concatenate([scale_bytes, least_bytes, packed], axis=1)
    stored: Bytes = codes.astype(np.uint8)
    return head, stored


def _q6_k(blocks: F32) -> Bytes:
    """Encode blocks of 256 weights in 16 groups of 16, each with a scale of 8 bits."""
    groups = blocks.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / 31
    scale, scale_bytes = _halves(step.max(axis=1, keepdims=True) / 127)
    steps = np.rint(_over(step, np.broadcast_to(scale, step.shape))).clip(0, 127)
    wide = np.broadcast_to((scale * steps)[:, :, None], groups.shape)
    codes = (np.rint(_over(groups, wide)).clip(-32, 31) + 32).astype(np.uint8)
    # Two halves of four runs of 32.
    runs = codes.reshape(-1, 2, 4, 32)
    low = runs & 15
    lows = np.concatenate([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], 2)
    high = runs >> 4
    highs = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    count = len(blocks)
    parts = [lows.reshape(count, 128), highs.reshape(count, 64), steps.astype(np.int8)]
    return np.concatenate([*(part.view(np.uint8) for part in parts), scale_bytes], axis=1)


def _iq4_nl(blocks: F32) -> Bytes:
    """Encode blocks of 32 weights with a scale and 16 levels that are not evenly spaced."""
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale, scale_bytes = _halves(largest / LEVELS[-1])
    scaled = _over(blocks, np.broadcast_to(scale, blocks.shape))
    codes = np.searchsorted((LEVELS[1:] + LEVELS[:-1]) / 2, scaled).astype(np.uint8)
    return np.concatenate([scale_bytes, codes[:, :16] | codes[:, 16:] << 4], axis=1)


_OWN: dict[GGMLQuantizationType, tuple[Callable[[F32], Bytes], int]] = {
    GGMLQuantizationType.Q4_K: (_q4_k, 256),
    GGMLQuantizationType.Q5_K: (_q5_k, 256),
    GGMLQuantizationType.Q6_K: (_q6_k, 256),
    GGMLQuantizationType.IQ4_NL: (_iq4_nl, 32),
}
