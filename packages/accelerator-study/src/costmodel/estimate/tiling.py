# SPDX-License-Identifier: Apache-2.0
"""Tiles that memories hold: their size in bits, and their traffic to the memory behind.

Sizes and counts may be integers or numpy arrays of integers, so that a search can evaluate many
tiles in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Grain, Scheme
from costmodel.errors import CostError
from costmodel.estimate.transfer import Count, MovedBits

LARGER = "--hardware edge8x8, systolic32x32, or a file with a larger first level"
MOST_TILES = 1 << 25  # their figures take some GB
LONGEST = 1 << 40  # a dimension has about twice its root of tile sizes
GIVE_TILE = "give a tile: --tile M,N,K"
DIMENSIONS = ("m", "n", "k")
OPERANDS = {"A": "n", "B": "m", "C": "k"}  # the loop that an operand does not depend on


class BufferTile(NamedTuple):
    """The extents of a tile."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Holding:
    """A tile that a memory holds, and the order of the loops over tiles, outermost first."""

    tile: BufferTile
    order: tuple[str, ...] = DIMENSIONS

    def record(self) -> dict[str, Any]:
        """Return tile and order as plain data."""
        return {"tile": list(self.tile), "order": list(self.order)}

    def turned(self, lead: bool) -> Holding:
        """Return the tile of attention's second product: N and K exchanged, unless ``lead``."""
        m, n, k = self.tile
        return self if lead else Holding(BufferTile(m, k, n), self.order)

    def arrays(self) -> tuple[tuple[Count, Count, Count], Count]:
        """Return the sides of the tile, and the dimensions of the loops, as arrays of a mapping."""
        m, n, k = (np.array([side]) for side in self.tile)
        return (m, n, k), np.array([[DIMENSIONS.index(d)] for d in self.order])


def room(m: Count, n: Count, k: Count, scheme: Scheme, level: Level) -> tuple[Count, Count, Count]:
    """Return the bits of a tile's A, B and C; A and B count twice if the memory fetches ahead."""
    copies = 2 if level.double_buffered else 1
    operands = copies * scheme.activation_bits(m, k), copies * scheme.weight_bits(k, n)
    return (*operands, m * n * scheme.accumulator)


def attention_room(
    rows: Count, context: Count, width: Count, scheme: Scheme, level: Level
) -> tuple[Count, Count, Count]:
    """Return the bits of attention: queries; keys and values; scores and sums of the result."""
    queries, keys, scores = room(rows, context, width, scheme, level)
    return queries, 2 * keys, scores + rows * width * scheme.accumulator


def fits(taken: tuple[Count, ...], level: Level) -> Count:
    """Return True if operands of these bits fit a memory, shared or split between them."""
    if level.size is None:
        return taken[0] >= 0
    if level.split is None:
        return sum(taken) <= level.size
    inside = taken[0] <= level.split[0]
    for bits, limit in zip(taken[1:], level.split[1:], strict=True):
        inside = inside & (bits <= limit)
    return inside


def outer_traffics(
    extents: tuple[int, int, int],
    tile: tuple[Count, Count, Count],
    orders: Sequence[Sequence[str]],
    scheme: Scheme,
    on_chip: frozenset[str] = frozenset(),
    operands: tuple[Count, Count] | None = None,
) -> list[MovedBits]:
    """Return the bits of a GEMM that cross the outer boundary with tiles, for each order.

    A tile stays in the memory if the next step needs the same tile. So a tensor is fetched again
    only for a loop that the tensor does not depend on, if that loop is outside the innermost loop
    that the tensor depends on.

    Args:
        extents: M, N, K.
        tile: extents of the tiles.
        orders: each of ``m``, ``n`` and ``k``, outermost first.
        scheme: widths and scales.
        on_chip: operands that a fused neighbour produces or consumes.
        operands: `operand_bits`, if they are known.
    """
    m, n, _ = extents
    trips = {d: -(-e // t) for d, e, t in zip(DIMENSIONS, extents, tile, strict=True)}
    nothing = 0 * trips["m"]
    values, matrix = operands or operand_bits(extents, tile, scheme)
    values, matrix = values * ("A" not in on_chip), matrix * ("B" not in on_chip)
    traffics = []
    for order in orders:
        again = {name: repeats(order, trips, name) for name in OPERANDS}
        spilled = nothing if "C" in on_chip else m * n * (again["C"] - 1) * scheme.accumulator
        traffics.append(
            MovedBits(
                activation=values * again["A"],
                weight=matrix * again["B"],
                partial=spilled,
                stored=spilled + (0 if "C" in on_chip else m * n * scheme.output),
            )
        )
    return traffics


def in_tiles(extent: int, size: Count, bits: Callable[[Count], Count]) -> Count:
    """Return the sum of ``bits`` over full tiles and the ragged tile along a dimension."""
    rest = extent % size
    return (extent // size) * bits(size) + np.where(rest, bits(np.maximum(rest, 1)), 0)


def operand_bits(
    extents: tuple[int, int, int], tile: tuple[Count, Count, Count], scheme: Scheme
) -> tuple[Count, Count]:
    """Return the bits of all activations and of all weights in tiles.

    Tiles that share a scale each fetch it.
    """
    m, n, k = extents
    down, across, deep = (-(-e // t) for e, t in zip(extents, tile, strict=True))
    groups = None
    if scheme.weight_grain is Grain.GROUP:
        groups = in_tiles(k, tile[2], lambda depth: -(-depth // scheme.group))
    values = scheme.activation_bits(m, k, down, deep)
    return values, scheme.weight_bits(k, n, deep, across, groups)


def repeats(order: Sequence[str], trips: Mapping[str, Count], operand: str) -> Count:
    """Return how often an operand is fetched; a tile stays if the next step needs it again."""
    other = OPERANDS[operand]
    held = prod(trips[d] for d in order[list(order).index(other) + 1 :]) == 1
    return np.where(held, 1, trips[other])


def sizes(extent: int, grain: int) -> list[int]:
    """Return the candidate tile sizes along a dimension.

    For each number of tiles the candidate is the smallest tile, ``ceil(extent / number)``, rounded
    up to whole passes of the array, ``grain``. Other sizes with the same number of tiles move as
    many bits and take more room, but their products may begin and end sooner.

    Raises:
        CostError: the dimension is longer than LONGEST.
    """
    if extent > LONGEST:
        raise CostError(f"a dimension of {extent}: too many tiles to try", remedy=GIVE_TILE)
    candidates: set[int] = set()
    parts = 1
    while parts <= extent:
        size = -(-extent // parts)
        candidates.add(min(extent, -(-size // grain) * grain))
        parts = -(-extent // (size - 1)) if size > 1 else extent + 1
    return sorted(candidates)


@dataclass(frozen=True)
class Passes:
    """An approximation of the array's time for a tile, to choose tiles.

    Attributes:
        spatial: extents that the array covers in a pass, 1 for a dimension that streams.
        streamed: elements of a streaming dimension that a PE reads in a cycle.
        beside: further cycles of a pass: skew, and loading stationary operands.
    """

    spatial: tuple[int, int, int]
    streamed: tuple[int, int, int]
    beside: int

    def cycles(self, tile: tuple[Count, Count, Count]) -> Count:
        """Return the array's cycles for a tile."""
        folds: Count = 1
        stream: Count = 1
        for size, step, lanes in zip(tile, self.spatial, self.streamed, strict=True):
            folds = folds * -(-size // step) if step > 1 else folds
            stream = stream * -(-size // lanes) if step == 1 else stream
        return folds * (stream + self.beside)


def choose(
    extents: tuple[int, int, int],
    order: tuple[str, ...],
    scheme: Scheme,
    levels: tuple[Level, Level],
    passes: Passes,
) -> Holding | None:
    """Return the tile with the least sum of bus time and array time, or None if none fits.

    The sum avoids small savings of traffic at the price of an idle array, and the reverse, in the
    same way for every scheme. Of equal tiles, the choice is the tile that gives the fewest tiles.

    Args:
        extents: M, N, K.
        order: of the loops over tiles.
        scheme: widths.
        levels: the memory that holds the tile, and the memory behind it.
        passes: time of the array.

    Raises:
        CostError: the product has more than MOST_TILES tiles, or a dimension is too long.
    """
    level, behind = levels
    m, n, k = _fitting(extents, passes.spatial, scheme, level)
    if not len(m):
        m, n, k = _fitting(extents, (1, 1, 1), scheme, level)
    if not len(m):
        return None
    (traffic,) = outer_traffics(extents, (m, n, k), [order], scheme)
    tiles: Count = prod(-(-e // s) for e, s in zip(extents, (m, n, k), strict=True))
    # No work overlaps the first fetch: of equally good tiles, a smaller tile begins earlier.
    first = (scheme.activation_bits(m, k) + scheme.weight_bits(k, n)) / behind.read
    time = behind.cycles(traffic.read, traffic.write) + tiles * passes.cycles((m, n, k)) + first
    best = np.lexsort((-(m * n * k), tiles, time))[0]
    return Holding(BufferTile(int(m[best]), int(n[best]), int(k[best])), order)


def _fitting(
    extents: tuple[int, int, int], grains: tuple[int, int, int], scheme: Scheme, level: Level
) -> list[Count]:
    """Return extents along M, N and K of the tiles of :func:`sizes` that fit a memory.

    Raises:
        CostError: the product has more than MOST_TILES tiles, or a dimension is too long.
    """
    sides = [np.array(sizes(e, g), dtype=np.int64) for e, g in zip(extents, grains, strict=True)]
    if prod(map(len, sides)) > MOST_TILES:
        product = "x".join(map(str, extents))
        raise CostError(f"{product}: too many tiles to try", remedy=GIVE_TILE)
    grid = [g.ravel() for g in np.meshgrid(*sides, indexing="ij")]
    m, n, k = grid
    keep = fits(room(m, n, k, scheme, level), level)
    return [g[keep] for g in grid]


def attention_holding(
    rows: int, context: int, width: int, scheme: Scheme, level: Level
) -> tuple[int, int] | None:
    """Return rows of queries and entries of the cache that a memory holds for attention.

    Scores and the sums of the result stay in the memory. Every block of rows reads the cache, so
    the function minimises blocks, and then maximises the part of the cache.

    Returns:
        rows and entries, or None if a single row and a single entry do not fit.
    """
    parts = np.array(sizes(context, 1), dtype=np.int64)
    for block in sorted(sizes(rows, 1), reverse=True):
        keep = fits(attention_room(block, parts, width, scheme, level), level)
        if keep.any():
            return block, int(parts[keep].max())
    return None
