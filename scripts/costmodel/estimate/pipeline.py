# SPDX-License-Identifier: Apache-2.0
"""The time of a product whose tiles pass through a memory: double buffering, step by step.

In one step a tile is computed on while the next one is fetched and the last one is stored; the
step is as long as the longest of these. A memory that is not double buffered does the three one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.accelerator.hardware import Level
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.tiling import DIMENSIONS, Holding

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
REPEATED = 3  # of a batch are simulated; further ones take as long as the last

State = tuple[int, int, int, bool, bool]  # extents of a tile; are its sums new, does it finish them


@dataclass(frozen=True)
class Steps:
    """Bits that each step of a product fetches and stores, and the tile it works on."""

    fetched: Floats
    stored: Floats
    kinds: list[State]
    kind: npt.NDArray[np.int64]

    @property
    def read(self) -> int:
        """Bits fetched."""
        return int(self.fetched.sum())

    @property
    def write(self) -> int:
        """Bits stored."""
        return int(self.stored.sum())


def steps(region: State, holding: Holding, scheme: Scheme, on_chip: frozenset[str]) -> Steps:
    """List the steps of a region (a product, or a tile of an outer memory) in their order."""
    extents = dict(zip(DIMENSIONS, region[:3], strict=True))
    size = {d: min(getattr(holding.tile, d), extents[d]) for d in DIMENSIONS}
    trips = {d: -(-extents[d] // size[d]) for d in DIMENSIONS}
    grid = np.indices([trips[d] for d in holding.order]).reshape(3, -1)
    at = dict(zip(holding.order, grid, strict=True))
    side = {d: np.minimum(size[d], extents[d] - at[d] * size[d]) for d in DIMENSIONS}
    m, n, k = (side[d] for d in DIMENSIONS)
    fetched = np.zeros(grid.shape[1])
    if "A" not in on_chip:
        fetched += _entered(at["m"], at["k"]) * scheme.activation_bits(m, k)
    if "B" not in on_chip:
        fetched += _entered(at["k"], at["n"]) * scheme.weight_bits(k, n)
    enters = _entered(at["m"], at["n"])
    leaves = np.append(enters[1:], True)
    new = (at["k"] == 0) & region[3]
    done = (at["k"] == trips["k"] - 1) & region[4]
    stored = np.zeros(grid.shape[1])
    if "C" not in on_chip:
        fetched += (enters & ~new) * (m * n * scheme.accumulator)
        stored += leaves * (m * n * np.where(done, scheme.output, scheme.accumulator))
    # A tile is full or at an edge along each dimension: few kinds of steps, told by a number.
    code = np.zeros(grid.shape[1], dtype=np.int64)
    for flag in (*(at[d] == trips[d] - 1 for d in DIMENSIONS), new, done):
        code = 2 * code + flag
    used = np.flatnonzero(np.bincount(code, minlength=32))
    place = np.zeros(32, dtype=np.int64)
    place[used] = np.arange(len(used))
    first = np.zeros(32, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    kinds = [(int(m[f]), int(n[f]), int(k[f]), bool(new[f]), bool(done[f])) for f in first[used]]
    return Steps(fetched, stored, kinds, place[code])


def _entered(*places: npt.NDArray[np.int64]) -> Bools:
    """Steps in which a tile is not the one of the step before."""
    changed = np.zeros(len(places[0]), dtype=bool)
    changed[0] = True
    for place in places:
        changed[1:] |= place[1:] != place[:-1]
    return changed


def duration(
    listed: Steps, work: Callable[[State], float], level: Level, double: bool, batch: int
) -> float:
    """Cycles of all steps, ``batch`` times.

    Args:
        listed: the steps of one product.
        work: cycles of the work on one tile.
        level: the memory that tiles come from and go to.
        double: the next tile is fetched while one is worked on.
        batch: products, one after the other.
    """
    cycles = np.array([work(kind) for kind in listed.kinds])[listed.kind]
    if not double:
        one = float((cycles + level.cycles(listed.fetched, listed.stored)).sum())
        return one * batch
    ends = [_overlapped(listed, cycles, level, n) for n in range(1, min(batch, REPEATED) + 1)]
    if batch <= REPEATED:
        return ends[-1]
    return ends[-1] + (batch - REPEATED) * (ends[-1] - ends[-2])


def _overlapped(listed: Steps, cycles: Floats, level: Level, batch: int) -> float:
    fetched = np.append(np.tile(listed.fetched, batch), 0.0)
    stored = np.insert(np.tile(listed.stored, batch), 0, 0.0)
    moved = level.cycles(fetched[1:], stored[:-1])
    first = level.cycles(fetched[0], 0.0)
    last = level.cycles(0.0, stored[-1])
    return float(first + np.maximum(np.tile(cycles, batch), moved).sum() + last)
