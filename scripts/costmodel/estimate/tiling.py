# SPDX-License-Identifier: Apache-2.0
"""Tiles of a GEMM that fit the on-chip buffer, and their outer traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from costmodel.accelerator.scheme import Scheme

MAX_CANDIDATES = 48
OPERAND_COPIES = 2  # one tile is computed on while the next one is fetched


@dataclass(frozen=True)
class BufferTile:
    """Extents of a tile of the buffer."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class OuterTraffic:
    """Bits moved between the buffer and the level behind it, for one GEMM of the batch."""

    activation: int
    weight: int
    partial_read: int
    partial_write: int
    output: int

    @property
    def read(self) -> int:
        """Bits read from the outer level."""
        return self.activation + self.weight + self.partial_read

    @property
    def write(self) -> int:
        """Bits written to the outer level."""
        return self.partial_write + self.output


def footprint(tile: BufferTile, scheme: Scheme) -> int:
    """Bits of buffer a tile takes: two copies of the operands, one of the sums."""
    operands = tile.m * tile.k * scheme.activation + scheme.weight_bits(tile.k, tile.n)
    return OPERAND_COPIES * operands + tile.m * tile.n * scheme.accumulator


def pieces(m: int, n: int, k: int, tile: BufferTile) -> list[tuple[BufferTile, int]]:
    """The full tiles and the ragged ones at the edges, each with its number."""
    sides = []
    for extent, size in ((m, tile.m), (n, tile.n), (k, tile.k)):
        whole, rest = divmod(extent, size)
        sides.append([(s, c) for s, c in ((size, whole), (rest, 1)) if s and c])
    return [(BufferTile(a[0], b[0], c[0]), a[1] * b[1] * c[1]) for a, b, c in product(*sides)]


def outer_traffic(
    m: int, n: int, k: int, tile: BufferTile, order: Sequence[str], scheme: Scheme
) -> OuterTraffic:
    """Count the bits that cross the outer boundary when tiles are visited in ``order``.

    A tile stays in the buffer as long as the next step needs the same one, so a tensor is
    fetched again only for the loops outside the innermost loop that it depends on.

    ``order`` names ``m``, ``n`` and ``k``, outermost first.
    """
    trips = {"m": -(-m // tile.m), "n": -(-n // tile.n), "k": -(-k // tile.k)}
    again_a = _repeats(order, trips, {"m", "k"})
    again_b = _repeats(order, trips, {"n", "k"})
    again_c = _repeats(order, trips, {"m", "n"})
    columns = m * n
    spilled = columns * (again_c - 1) * scheme.accumulator
    return OuterTraffic(
        activation=m * k * scheme.activation * again_a,
        weight=_weights(n, k, tile, scheme) * again_b,
        partial_read=spilled,
        partial_write=spilled,
        output=columns * scheme.output,
    )


def _weights(n: int, k: int, tile: BufferTile, scheme: Scheme) -> int:
    """Bits of all weights in tiles; a scale that two tiles share is fetched for both."""
    tiles = pieces(1, n, k, BufferTile(1, tile.n, tile.k))
    return sum(scheme.weight_bits(t.k, t.n) * number for t, number in tiles)


def _repeats(order: Sequence[str], trips: dict[str, int], own: set[str]) -> int:
    """Number of fetches of the whole tensor: trips of other loops outside its innermost."""
    live = [name for name in order if trips[name] > 1]
    inner = max((p for p, name in enumerate(live) if name in own), default=-1)
    return prod(trips[name] for name in live[: inner + 1] if name not in own)


@dataclass(frozen=True)
class TileObjective:
    """Constraints and measure of the search for a tile.

    Attributes:
        capacity: bits of the buffer.
        grain: the array's extents; candidates are multiples of them.
        read, write: bits a cycle of the outer level.
        stamps: time stamps of one tile of these extents, array skew in it.
    """

    capacity: int
    grain: int
    read: float
    write: float
    stamps: Callable[[BufferTile], int]


def search(
    m: int, n: int, k: int, order: Sequence[str], scheme: Scheme, goal: TileObjective
) -> BufferTile | None:
    """Find the fitting tile with the least time, where neither skew nor memory is hidden.

    Candidates are the whole extents and their halvings, rounded up to the array's extents; of
    those that fit, the ones with the least outer traffic are looked at. Among equals the one
    with less traffic wins, then the larger. None: even the smallest does not fit.
    """
    fitting = []
    for sides in product(*(_sizes(e, goal.grain) for e in (m, n, k))):
        tile = BufferTile(*sides)
        if footprint(tile, scheme) <= goal.capacity:
            traffic = outer_traffic(m, n, k, tile, order, scheme)
            fitting.append((traffic.read + traffic.write, -prod(sides), tile, traffic))
    best: tuple[float, int, int] | None = None
    chosen = None
    for bits, size, tile, traffic in sorted(fitting, key=lambda f: f[:2])[:MAX_CANDIDATES]:
        tiles = prod(-(-e // s) for e, s in ((m, tile.m), (n, tile.n), (k, tile.k)))
        memory = max(traffic.read / goal.read, traffic.write / goal.write)
        score = (max(memory, float(tiles * goal.stamps(tile))), bits, size)
        if best is None or score < best:
            best, chosen = score, tile
    return chosen


def _sizes(extent: int, grain: int) -> list[int]:
    found = {extent}
    parts = 2
    while -(-extent // parts) > grain:
        found.add(min(extent, _up(_up(extent, parts) // parts, grain)))
        parts *= 2
    found.add(min(extent, grain))
    return sorted(found)


def _up(value: int, step: int) -> int:
    """The next multiple of ``step``."""
    return (value + step - 1) // step * step
