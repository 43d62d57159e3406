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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crosslab.models.formats import Packing, packings
from crosslab.models.weights_file import F32

# Packing for formats without packing, which represent any weights.
USUAL = next(packing for packing in packings().values() if packing)
# Vectors are multiples of 1/128 below 2: eight bits, as bfloat16 has.
STEP = 128
BIAS = 0.25


def fill_tensor(
    values: F32, name: str, norm: Sequence[float], seed: int, packing: Packing = USUAL
) -> None:
    """Write random weights, which depend on the arguments only, into a tensor.

    Args:
        values: the tensor; the last two of two or more axes are a matrix.
        name: name of the tensor.
        norm: lowest and highest value of vectors that scale a norm; other vectors are around 0.
        seed: seed of the random numbers.
        packing: packing of the format that represents the weights exactly.
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if values.ndim < 2:
        # Vectors that are not biases scale a norm in all language models.
        low, high = (-2 * BIAS, 2 * BIAS) if name.endswith("bias") else norm
        values[...] = np.round(rng.uniform(low, high, values.shape) * STEP) / STEP
        return
    for place in np.ndindex(values.shape[:-2]):
        _fill_matrix(values[place], rng, packing)


def _fill_matrix(values: F32, rng: np.random.Generator, packing: Packing) -> None:
    tile, most = packing.group, packing.zero_point
    rows, columns = values.shape
    across = -(-columns // tile)
    starts = range(0, rows, tile)
    usual_marks = _diagonals(tile, columns, tile)
    for start in starts:
        band = values[start : start + tile]
        whole = rng.integers(-most, most + 1, (tile, across * tile))
        largest = usual_marks
        if rows > tile:
            largest = largest | _diagonals(across * tile, len(band), tile).T
        np.copyto(whole, np.where(whole < 0, -most, most), where=largest)
        band[...] = whole[: len(band), :columns]
    # Scale for the mean of rows and columns as the number of inputs, so that the orientation hardly
    # matters; the standard deviation is that of whole numbers from -most to most.
    spread = float(np.sqrt((most * (most + 1)) / 3))
    usual = round(np.log2(1 / (spread * np.sqrt((rows + columns) / 2))))
    exponents = rng.integers(usual - 1, usual + 1, (len(starts), across))
    for start, scales in zip(starts, np.exp2(exponents).astype(np.float32), strict=True):
        values[start : start + tile] *= np.repeat(scales, tile)[:columns]


def _diagonals(rows: int, columns: int, tile: int) -> NDArray[np.bool_]:
    """Mark an element of each row in each tile, also in a partial tile at the end of columns."""
    row, column = np.arange(rows)[:, None] % tile, np.arange(-(-columns // tile) * tile)
    width = np.minimum(tile, columns - column // tile * tile)
    marks: NDArray[np.bool_] = row % width == column % tile
    return marks
