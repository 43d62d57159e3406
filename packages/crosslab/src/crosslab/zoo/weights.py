# SPDX-License-Identifier: Apache-2.0
"""Random weights that the zoo's formats represent exactly.

A matrix consists of square tiles, as wide as a format's group, with values ``n * scale``: n is a
whole number from -z to z, where z is the format's zero point, and scale is a power of two for each
tile; z or -z occurs in every row and column of a tile. So MLC-LLM's group quantization reproduces
groups along either axis exactly (down a matrix, if it is higher than a tile): its scale is the
group's largest magnitude divided by z. bfloat16 and float16 represent the values as well. So
formats with the same layout, and formats without packing, share one float32 reference: only the
arithmetic differs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crosslab.models.formats import Packing, packings
from crosslab.models.weights_file import F32

# Packing for formats without packing, which represent any weights.
USUAL = next(packing for packing in packings().values() if packing)
# Vectors are multiples of 1/128 below 2: eight bits, as bfloat16 has.
STEP = 128
BIAS = 0.25


def random_weights(
    shapes: Mapping[str, Sequence[int]],
    norm: tuple[float, float],
    seed: int,
    packing: Packing = USUAL,
) -> dict[str, F32]:
    """Return random weights by name; each depends only on name, shape, seed and packing.

    Args:
        shapes: shape of each tensor; the last two of two or more axes are a matrix.
        norm: lowest and highest value of vectors that scale a norm; other vectors are around 0.
        seed: seed of the random numbers.
        packing: packing of the format that represents the weights exactly.
    """
    return {
        name: _tensor(name, tuple(shape), norm, seed, packing) for name, shape in shapes.items()
    }


def _tensor(
    name: str, shape: tuple[int, ...], norm: tuple[float, float], seed: int, packing: Packing
) -> F32:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if len(shape) < 2:
        # Vectors that are not biases scale a norm in all language models.
        low, high = (-2 * BIAS, 2 * BIAS) if name.endswith("bias") else norm
        return (np.round(rng.uniform(low, high, shape) * STEP) / STEP).astype(np.float32)
    *lead, rows, columns = shape
    stacked = [_matrix(rng, rows, columns, packing) for _ in range(int(np.prod(lead)))]
    return np.stack(stacked).reshape(shape)


def _matrix(rng: np.random.Generator, rows: int, columns: int, packing: Packing) -> F32:
    tile, most = packing.group, packing.zero_point
    down, across = -(-rows // tile), -(-columns // tile)
    whole = rng.integers(-most, most + 1, (down * tile, across * tile)).astype(np.float32)
    largest = _diagonals(down * tile, columns, tile)
    if rows > tile:
        largest |= _diagonals(across * tile, rows, tile).T
    whole = np.where(largest, np.where(whole < 0, -most, most), whole)
    # Scale for the mean of rows and columns as the number of inputs, so that the orientation hardly
    # matters; the standard deviation is that of whole numbers from -most to most.
    spread = float(np.sqrt((most * (most + 1)) / 3))
    usual = round(np.log2(1 / (spread * np.sqrt((rows + columns) / 2))))
    exponents = rng.integers(usual - 1, usual + 1, (down, across))
    scale = np.exp2(np.repeat(np.repeat(exponents, tile, 0), tile, 1)).astype(np.float32)
    values: F32 = (whole * scale)[:rows, :columns].astype(np.float32)
    return values


def _diagonals(rows: int, columns: int, tile: int) -> NDArray[np.bool_]:
    """Mark an element of each row in each tile, also in a partial tile at the end of columns."""
    row, column = np.arange(rows)[:, None] % tile, np.arange(-(-columns // tile) * tile)
    width = np.minimum(tile, columns - column // tile * tile)
    marks: NDArray[np.bool_] = row % width == column % tile
    return marks
