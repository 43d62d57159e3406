# SPDX-License-Identifier: Apache-2.0
"""Random weights that a format of the zoo holds exactly.

A matrix is made of tiles as long and as wide as a format's group, of values ``n * scale``: n a
whole number from -z to z, z being the format's zero point, scale a power of two of the tile's own,
and z or -z in every row and column of a tile. Groups along either axis (down a matrix, if it is
higher than a tile) are then what MLC-LLM's group quantization gives back to the bit: its scale is
the group's largest magnitude divided by z. bfloat16 and float16 hold the values as well. Formats
with the same layout, and those that are not packed, so share one reference in float32: what differs
is the arithmetic alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crosslab.models.formats import Packing, packings
from crosslab.models.weights_file import F32

# Of formats that are not packed, and hold any: the first one's that is.
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
    """Weights by name; each depends on its name, shape, the seed and the packing alone.

    Args:
        shapes: shape of each tensor; of those with two or more axes, the last two are a matrix.
        norm: low and high of vectors that scale a norm; other vectors are around 0.
        seed: of the random numbers.
        packing: of the format that holds them exactly.
    """
    return {
        name: _tensor(name, tuple(shape), norm, seed, packing) for name, shape in shapes.items()
    }


def _tensor(
    name: str, shape: tuple[int, ...], norm: tuple[float, float], seed: int, packing: Packing
) -> F32:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if len(shape) < 2:
        # A bias is named so; every other vector of a language model scales a norm.
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
    # Scaled for an input of the matrix's mean extent, so that it hardly matters which is which;
    # the standard deviation is that of whole numbers from -most to most.
    spread = float(np.sqrt((most * (most + 1)) / 3))
    usual = round(np.log2(1 / (spread * np.sqrt((rows + columns) / 2))))
    exponents = rng.integers(usual - 1, usual + 1, (down, across))
    scale = np.exp2(np.repeat(np.repeat(exponents, tile, 0), tile, 1)).astype(np.float32)
    values: F32 = (whole * scale)[:rows, :columns].astype(np.float32)
    return values


def _diagonals(rows: int, columns: int, tile: int) -> NDArray[np.bool_]:
    """Marks one element of each row in each tile, and in the part of one at the end of columns."""
    row, column = np.arange(rows)[:, None] % tile, np.arange(-(-columns // tile) * tile)
    width = np.minimum(tile, columns - column // tile * tile)
    marks: NDArray[np.bool_] = row % width == column % tile
    return marks
