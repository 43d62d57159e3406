# SPDX-License-Identifier: Apache-2.0
"""Lower bound of a kernel call's instructions, with register tiles that RVV allows.

Every arrangement of a tile needs these instructions:

* a vector load or store and, since it has no offset, an instruction for its address;
* a scalar load and a multiply-add for every row and step; in attention's small tiles also the
  accumulators' loads and stores, and an address for each row that scalars come from;
* for packed weights: masking (and, where weights are kept, shifting), the zero point, conversion,
  the scale, and the loads of words and scales, each as often as necessary;
* for a dot product: the reduction, and storing its element to memory;
* for weights that several blocks of rows use: storing a panel, so that each weight is gathered
  only once. (Gathering again for every block needs fewer instructions, but its cost is
  proportional to the elements.)

The bound rounds as if tiles divided rows, lanes and groups. It leaves out loops, calls, set-up,
repeated computation, and loading results again because k is split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from crosslab.models.formats import Packing, packings

REGISTERS = 32
ADDRESSES = 12  # addresses in x that scalar registers hold besides all other values
ROWS_OF_SCALARS = 8  # rows with scalars loaded a step ahead, in caller-saved registers


@dataclass(frozen=True)
class RegisterTile:
    """A tile: rows with a register group each; the other registers hold the other matrix's row."""

    lmul: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return REGISTERS // self.lmul - 1

    def step(self, m: int, fetch: float = 2) -> float:
        """Return the instructions of a step along k for m rows; a tile's load takes ``fetch``."""
        return math.ceil(m / self.rows) * fetch + 2 * m


def smallest_tile(lanes: int, vlen: int) -> RegisterTile:
    """Return the tile with the smallest LMUL that holds this number of float32 lanes."""
    return next(RegisterTile(lmul) for lmul in (1, 2, 4, 8) if lanes <= lmul * vlen // 32)


def strips(columns: int, vlen: int) -> list[int]:
    """Return the lanes of each strip: ``vlen // 4`` (LMUL=8 of float32), the last with the rest."""
    most = vlen // 4
    return [most] * (columns // most) + ([columns % most] if columns % most else [])


def gemm_f32(m: int, n: int, k: int, vlen: int) -> float:
    """Return the least instructions of c[m, n] = a[m, k] * transpose(b[n, k])."""
    if m == 1:
        return gemv_f32(n, k, vlen)
    total = 0.0
    for lanes in strips(n, vlen):
        tile = smallest_tile(lanes, vlen)
        packing = 2 if m > tile.rows else 0
        total += k * (tile.step(m) + packing) + 2 * m
    return total


def gemm_packed(packing: Packing, m: int, n: int, k: int, vlen: int) -> float:
    """Return the least instructions of a gemm with packed weights, unpacked per panel or row."""
    group, word = packing.group, packing.per_word
    groups = math.ceil(k / group)
    total = 0.0
    for lanes in strips(n, vlen):
        tile = smallest_tile(lanes, vlen)
        unpacked = (2 * word - 2) / word + 3 + 2 / word + 2 / group
        first = unpacked + 2 + 2  # written down; multiplied into the first row
        panel = k * (first + tile.step(m - 1)) + 2 * m
        total += min(panel, m * groups * _group(packing))
    return total


def gemv_f32(n: int, k: int, vlen: int) -> float:
    """Return the least instructions of y[n] = b[n, k] * x[k], with rows read in memory order."""
    groups = math.ceil(k / (vlen // 4))
    if groups == 1:  # load, address, multiply; reduction, move, store
        return n * 6
    pair = (7 if groups <= ADDRESSES else 8) * groups + 1 + 2 * 3
    if groups == 2:  # x stays in registers, and none is left for the seed of the reduction
        return n * min(2 * 3 + 1 + 3, pair / 2)
    return n / 2 * pair


def gemv_packed(packing: Packing, n: int, k: int, vlen: int) -> float:
    """Return the least instructions of a gemv with packed weights, with rows in lanes."""
    groups = math.ceil(k / packing.group)
    prepare = 9  # load, multiply, store, two addresses; reduction, move, multiply, store
    return groups * (len(strips(n, vlen)) * _group(packing) + prepare)


def _group(packing: Packing) -> int:
    """Return the instructions of a group of weights in all lanes: values, words, sum and scale."""
    return packing.group * 4 + packing.group // packing.per_word * 2 + 2 + 3


def linear(kernel: str, m: int, n: int, k: int, vlen: int) -> float:
    """Return the least instructions of a linear kernel, named by kind and weights as gemm_f32."""
    kind, _, weights = kernel.partition("_")
    packing = packings()[weights]
    if packing is None:
        return gemm_f32(m, n, k, vlen) if kind == "gemm" else gemv_f32(n, k, vlen)
    if kind == "gemm":
        return gemm_packed(packing, m, n, k, vlen)
    return gemv_packed(packing, n, k, vlen)


def attention(product: str, rows: int, columns: int, depth: int, vlen: int) -> float:
    """Return the least instructions of acc[rows, columns] += lhs[rows, depth] * rhs in attention.

    Rows are in blocks of 16. Strips are those of LMUL=4, because on a core the extra loads cost
    less than LMUL=8 saves. In the product "qk", K is transposed four rows per store, with LMUL=2.
    """
    total = 0.0
    for lanes in strips(columns, vlen // 2):
        tile = smallest_tile(lanes, vlen)
        blocks = math.ceil(16 / min(tile.rows, ROWS_OF_SCALARS))
        # Load, store and address of an accumulator, and the address of its row of lhs.
        total += rows / 16 * (depth * (2 * blocks + 2 * 16) + 16 * 4)
    if product == "qk":  # a load and its address for each of four rows; a store and its address
        total += columns / 4 * math.ceil(depth / (vlen // 16)) * 10
    return total
