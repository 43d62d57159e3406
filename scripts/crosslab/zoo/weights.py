# SPDX-License-Identifier: Apache-2.0
"""Random weights that every format of the zoo holds exactly.

A matrix is made of tiles of 32 x 32 values ``n * scale``: n a whole number from -7 to 7, scale a
power of two of the tile's own, and 7 or -7 in every row and column of a tile. Groups of 32 along
either axis are then what MLC-LLM's int4 quantization gives back to the bit (its scale is the
group's largest magnitude divided by 7), and bfloat16 and float16 hold the values as well. One
reference in float32 so stands for float32, for q4f32_1 and for q4f16_1: what differs is the
arithmetic alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

TILE = 32
LARGEST = 7
# Standard deviation of whole numbers from -7 to 7.
SPREAD = float(np.sqrt((LARGEST * (LARGEST + 1)) / 3))
# Vectors are multiples of 1/128 below 2: eight bits, as bfloat16 has.
STEP = 128
BIAS = 0.25


def random_weights(
    shapes: Mapping[str, Sequence[int]], norm: tuple[float, float], seed: int
) -> dict[str, F32]:
    """Weights by name; each depends on its name, shape and the seed alone.

    Args:
        shapes: shape of each tensor; of those with two or more axes, the last two are a matrix.
        norm: low and high of vectors that scale a norm; other vectors are around 0.
        seed: of the random numbers.
    """
    return {name: _tensor(name, tuple(shape), norm, seed) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], norm: tuple[float, float], seed: int) -> F32:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if len(shape) < 2:
        # A bias is named so; every other vector of a language model scales a norm.
        low, high = (-2 * BIAS, 2 * BIAS) if name.endswith("bias") else norm
        return (np.round(rng.uniform(low, high, shape) * STEP) / STEP).astype(np.float32)
    *lead, rows, columns = shape
    stacked = [_matrix(rng, rows, columns) for _ in range(int(np.prod(lead)))]
    return np.stack(stacked).reshape(shape)


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> F32:
    down, across = -(-rows // TILE), -(-columns // TILE)
    whole = rng.integers(-LARGEST, LARGEST + 1, (down * TILE, across * TILE)).astype(np.float32)
    diagonal = np.arange(down * TILE)[:, None] % TILE == np.arange(across * TILE) % TILE
    whole = np.where(diagonal, np.where(whole < 0, -LARGEST, LARGEST), whole)
    # Scaled for an input of the matrix's mean extent, so that it hardly matters which is which.
    usual = round(np.log2(1 / (SPREAD * np.sqrt((rows + columns) / 2))))
    exponents = rng.integers(usual - 1, usual + 1, (down, across))
    scale = np.exp2(np.repeat(np.repeat(exponents, TILE, 0), TILE, 1)).astype(np.float32)
    values: F32 = (whole * scale)[:rows, :columns].astype(np.float32)
    return values
