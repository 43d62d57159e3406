# SPDX-License-Identifier: Apache-2.0
"""Tiles that the memories hold: their room, and what crosses the boundary behind them.

Sizes and counts may be integers or numpy arrays of integers, so that a search can look at many
tiles at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.transfer import Count, MovedBits

LARGER = "--hardware edge8x8, systolic32x32, or a file with a larger first level"
DIMENSIONS = ("m", "n", "k")
OPERANDS = {"A": "n", "B": "m", "C": "k"}  # the one loop that an operand does not depend on


@dataclass(frozen=True)
class BufferTile:
    """Extents of a tile."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Holding:
    """A tile that a memory holds, and the order in which tiles are visited, outermost first."""

    tile: BufferTile
    order: tuple[str, ...] = DIMENSIONS


def room(m: Count, n: Count, k: Count, scheme: Scheme, copies: int) -> tuple[Count, Count, Count]:
    """Bits that a tile's A, B and C take; operands as often as they are kept."""
    operands = copies * scheme.activation_bits(m, k), copies * scheme.weight_bits(k, n)
    return (*operands, m * n * scheme.accumulator)


def fits(taken: tuple[Count, ...], level: Level) -> Count:
    """Tell whether operands of these bits fit a memory, shared or split between them."""
    if level.size is None:
        return taken[0] >= 0
    if level.split is None:
        return sum(taken) <= level.size
    inside = taken[0] <= level.split[0]
    for bits, limit in zip(taken[1:], level.split[1:], strict=True):
        inside = inside & (bits <= limit)
    return inside


def pieces(m: int, n: int, k: int, tile: BufferTile) -> list[tuple[BufferTile, int]]:
    """The full tiles and the ragged ones at the edges, each with its number."""
    sides = []
    for extent, size in ((m, tile.m), (n, tile.n), (k, tile.k)):
        whole, rest = divmod(extent, size)
        sides.append([(s, c) for s, c in ((size, whole), (rest, 1)) if s and c])
    return [(BufferTile(a[0], b[0], c[0]), a[1] * b[1] * c[1]) for a, b, c in product(*sides)]


def outer_traffic(
    extents: tuple[int, int, int],
    tile: tuple[Count, Count, Count],
    order: Sequence[str],
    scheme: Scheme,
    on_chip: frozenset[str] = frozenset(),
) -> MovedBits:
    """Count the bits of one GEMM that cross the outer boundary when tiles are visited in ``order``.

    A tile stays in the memory as long as the next step needs the same one, so a tensor is
    fetched again only for a loop that it does not depend on and that stands outside the innermost
    loop that it does depend on.

    Args:
        extents: M, N, K.
        tile: extents of the tiles.
        order: ``m``, ``n`` and ``k``, outermost first.
        scheme: widths and scales.
        on_chip: operands that a fused neighbour makes or takes.
    """
    return outer_traffics(extents, tile, [order], scheme, on_chip)[0]


def outer_traffics(
    extents: tuple[int, int, int],
    tile: tuple[Count, Count, Count],
    orders: Sequence[Sequence[str]],
    scheme: Scheme,
    on_chip: frozenset[str] = frozenset(),
) -> list[MovedBits]:
    """Count the traffic of :func:`outer_traffic` for several orders."""
    m, n, k = extents
    trips = {d: -(-e // t) for d, e, t in zip(DIMENSIONS, extents, tile, strict=True)}
    nothing = 0 * trips["m"]
    activations = nothing if "A" in on_chip else _activations(m, k, tile, scheme)
    weights = nothing if "B" in on_chip else _weights(n, k, tile, scheme)
    found = []
    for order in orders:
        again = {name: _repeats(order, trips, other) for name, other in OPERANDS.items()}
        spilled = nothing if "C" in on_chip else m * n * (again["C"] - 1) * scheme.accumulator
        found.append(
            MovedBits(
                activation=activations * again["A"],
                weight=weights * again["B"],
                partial=spilled,
                stored=spilled + (0 if "C" in on_chip else m * n * scheme.output),
            )
        )
    return found


def _in_tiles(extent: int, size: Count, bits: Callable[[Count], Count]) -> Count:
    """Sum over full tiles and the ragged one along one dimension."""
    rest = extent % size
    return (extent // size) * bits(size) + np.where(rest, bits(np.maximum(rest, 1)), 0)


def _weights(n: int, k: int, tile: tuple[Count, Count, Count], scheme: Scheme) -> Count:
    """Bits of all weights in tiles; a scale that two tiles share is fetched for both."""
    return _in_tiles(
        k, tile[2], lambda depth: _in_tiles(n, tile[1], lambda w: scheme.weight_bits(depth, w))
    )


def _activations(m: int, k: int, tile: tuple[Count, Count, Count], scheme: Scheme) -> Count:
    return _in_tiles(
        k, tile[2], lambda depth: _in_tiles(m, tile[0], lambda r: scheme.activation_bits(r, depth))
    )


def _repeats(order: Sequence[str], trips: dict[str, Count], other: str) -> Count:
    """Times that a tensor is fetched which depends on all loops but ``other``."""
    held = prod(trips[d] for d in order[list(order).index(other) + 1 :]) == 1
    return np.where(held, 1, trips[other])


def sizes(extent: int, grain: int) -> list[int]:
    """Tile sizes of one dimension that are worth a look.

    They are the smallest tile of each number of tiles, ``ceil(extent / number)``, rounded up to
    whole passes of the array, ``grain``. Other sizes of the same number of tiles move as many bits
    and take more room, but they may begin and end sooner.
    """
    found: set[int] = set()
    parts = 1
    while parts <= extent:
        size = -(-extent // parts)
        found.add(min(extent, -(-size // grain) * grain))
        parts = -(-extent // (size - 1)) if size > 1 else extent + 1
    return sorted(found)


@dataclass(frozen=True)
class Passes:
    """The array's time for a tile, good enough to choose one by.

    Attributes:
        spatial: extents that the array takes in one pass, 1 for a dimension that streams.
        streamed: elements of a streaming dimension that a PE takes in a cycle.
        beside: cycles of a pass beside its stream: skew, and loading what is stationary.
    """

    spatial: tuple[int, int, int]
    streamed: tuple[int, int, int]
    beside: int

    def cycles(self, tile: tuple[Count, Count, Count]) -> Count:
        """Cycles of a tile."""
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
    """Choose the tile with the least time of bus and array together, hidden or not.

    Both count, so that neither a little traffic is bought with an idle array nor the reverse, and
    the same trade is made for every scheme. Of equals the one with the fewest tiles is taken.

    Args:
        extents: M, N, K.
        order: of the loops over tiles.
        scheme: widths.
        levels: the memory that holds the tile, and the one behind it.
        passes: time of the array.

    Returns:
        None: not even the smallest fits.
    """
    level, behind = levels
    m, n, k = _fitting(extents, passes.spatial, scheme, level)
    if not len(m):
        m, n, k = _fitting(extents, (1, 1, 1), scheme, level)
    if not len(m):
        return None
    traffic = outer_traffic(extents, (m, n, k), order, scheme)
    tiles: Count = prod(-(-e // s) for e, s in zip(extents, (m, n, k), strict=True))
    # Nothing hides the first fetch: of tiles that are as good, a smaller one begins earlier.
    first = (scheme.activation_bits(m, k) + scheme.weight_bits(k, n)) / behind.read
    time = behind.cycles(traffic.read, traffic.write) + tiles * passes.cycles((m, n, k)) + first
    best = np.lexsort((-(m * n * k), tiles, time))[0]
    return Holding(BufferTile(int(m[best]), int(n[best]), int(k[best])), order)


def _fitting(
    extents: tuple[int, int, int], grains: tuple[int, int, int], scheme: Scheme, level: Level
) -> list[Count]:
    """Extents along M, N and K of the tiles of :func:`sizes` that fit a memory."""
    sides = [np.array(sizes(e, g), dtype=np.int64) for e, g in zip(extents, grains, strict=True)]
    grid = [g.ravel() for g in np.meshgrid(*sides, indexing="ij")]
    m, n, k = grid
    keep = fits(room(m, n, k, scheme, 2 if level.double_buffered else 1), level)
    return [g[keep] for g in grid]


def attention_holding(
    rows: int, context: int, width: int, scheme: Scheme, level: Level
) -> tuple[int, int] | None:
    """Rows of queries and entries of the cache that a memory holds, for fused attention.

    Scores and the sums of the result stay in the memory. The cache is read once for each block of
    rows, so the fewest blocks are taken, and then the longest part of the cache.

    None: not even one row and one entry fit.
    """
    copies = 2 if level.double_buffered else 1
    parts = np.array(sizes(context, 1), dtype=np.int64)
    for block in sorted(sizes(rows, 1), reverse=True):
        queries, keys, scores = room(block, parts, width, scheme, copies)
        keep = fits((queries, 2 * keys, scores + block * width * scheme.accumulator), level)
        if keep.any():
            return block, int(parts[keep].max())
    return None
