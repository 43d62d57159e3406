# SPDX-License-Identifier: Apache-2.0
"""The best tiles and loop order for one product on one accelerator.

Every tile of :func:`costmodel.estimate.tiling.sizes` in each of the six orders is a candidate. Two
bounds hold for each: the bus moves all its bits, and the array does all its cycles after the first
fetch and before the last store; neither can be shorter, since double buffering overlaps the two and
no more. Candidates are simulated in the order of the larger bound, until that bound is as good as
the best time found (or closer to it than a gap that is asked for): none that is left out is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import Grain, Scheme
from costmodel.estimate.gemm import Gemm, Role
from costmodel.estimate.pipeline import State, duration, steps
from costmodel.estimate.tiling import (
    DIMENSIONS,
    BufferTile,
    Holding,
    fits,
    outer_traffic,
    room,
    sizes,
)
from costmodel.search.systolic import Systolic, in_tiles

ORDERS = tuple(permutations(DIMENSIONS))
GAP = 1e-3
MOST_TILES = 4096  # of one product; a mapping with more of them is no candidate


class NoRoomError(Exception):
    """A memory that is too small for any tile of a product."""


@dataclass(frozen=True)
class Found:
    """A mapping of a product, its cycles and pJ, and how many candidates were looked at."""

    holding: Holding
    cycles: float
    energy: float
    candidates: int
    simulated: int


@dataclass(frozen=True)
class Problem:
    """A product under its widths on an accelerator of two memories with a systolic dataflow."""

    gemm: Gemm
    scheme: Scheme
    hardware: Hardware
    array: Systolic

    def candidates(self) -> list[tuple[BufferTile, tuple[str, ...]]]:
        """Every tile that fits, in every order that differs."""
        grid = self.tiles()
        return [
            (BufferTile(int(m), int(n), int(k)), order)
            for m, n, k in zip(*grid, strict=True)
            for order in self.orders()
        ]

    def simulate(self, tile: BufferTile, order: tuple[str, ...]) -> float:
        """Cycles of a candidate, memory latencies left out."""
        buffer, behind = self.hardware.levels
        whole = (self.gemm.m, self.gemm.n, self.gemm.k, True, True)
        listed = steps(whole, Holding(tile, order), self.scheme, self.gemm.role.on_chip)
        both = buffer.double_buffered
        return duration(listed, self._work, behind, both, self.gemm.batch)

    def _work(self, state: State) -> float:
        """Cycles of a tile: of the array or of its port."""
        m, n, k, new, done = state
        first, scheme = self.hardware.levels[0], self.scheme
        read, visits, elements = self.array.port(m, n, k, scheme)
        back = read + (visits - (1 if new else 0)) * elements * scheme.accumulator
        last = 1 if done else 0
        out = elements * (last * scheme.output + (visits - last) * scheme.accumulator)
        return float(max(self.array.cycles(m, n, k), back // first.read, out // first.write))

    def search(self) -> tuple[Found, Found]:
        """Find the fastest mapping, and the one of the least energy.

        Raises:
            NoRoomError: no tile fits.
        """
        return search_together([self])

    def orders(self) -> list[tuple[str, ...]]:
        """Orders of the loops over tiles; fused attention has one."""
        fused = self.gemm.role is not Role.PRODUCT
        return [DIMENSIONS] if fused else list(ORDERS)

    def tiles(self) -> list[Any]:
        """Extents of the tiles that fit, as three arrays."""
        gemm, level = self.gemm, self.hardware.levels[0]
        extents = (gemm.m, gemm.n, gemm.k)
        pairs = list(zip(extents, self.array.grains(), strict=True))
        sides = [sizes(e, g) for e, g in pairs]
        copies = 2 if level.double_buffered else 1
        if gemm.role is not Role.PRODUCT:
            # Keys and values keep their whole width; queries and sums of the result stay as well.
            whole = 2 if gemm.role is Role.SCORES else 1
            sides[whole] = [extents[whole]]
        grid = [g.ravel() for g in np.meshgrid(*(np.array(s) for s in sides), indexing="ij")]
        m, n, k = grid
        if gemm.role is Role.PRODUCT:
            keep = fits(room(m, n, k, self.scheme, copies), level)
        else:
            context, width = (n, k) if gemm.role is Role.SCORES else (k, n)
            queries, keys, scores = room(m, context, width, self.scheme, copies)
            keep = fits((queries, 2 * keys, scores + m * width * self.scheme.accumulator), level)
        number = -(-gemm.m // m) * -(-gemm.n // n) * -(-gemm.k // k)
        return [g[keep & (number <= MOST_TILES)] for g in grid]

    def bounds(self, grid: list[Any]) -> tuple[Any, Any]:
        """Lower bounds of the cycles, and energy in pJ, of orders x tiles."""
        gemm, scheme = self.gemm, self.scheme
        buffer, behind = self.hardware.levels
        m, n, k = grid
        extents, batch = (gemm.m, gemm.n, gemm.k), gemm.batch
        array: Any = 0
        inward: Any = 0
        visits: Any = 0
        parts = (in_tiles(e, s) for e, s in zip(extents, (m, n, k), strict=True))
        for (tm, cm), (tn, cn), (tk, ck) in product(*parts):
            number = cm * cn * ck
            read, again, elements = self.array.port(tm, tn, tk, scheme)
            # The port's time is in whole cycles, rounded down.
            work = np.maximum(self.array.cycles(tm, tn, tk), read / buffer.read - 1)
            array = array + number * work
            inward, visits = inward + number * read, visits + number * again * elements
        partial = (visits - gemm.m * gemm.n) * scheme.accumulator
        inward, outward = inward + partial, partial + gemm.m * gemm.n * scheme.output
        first = scheme.weight_bits(k, n)
        if "A" not in gemm.role.on_chip:
            first = first + scheme.activation_bits(m, k)
        # The last tile may be ragged: that an element of it is stored is all that is sure.
        last = 0 if "C" in gemm.role.on_chip else scheme.output
        inside = array * batch + first / behind.read + last / behind.write
        port = inward * buffer.read_energy + outward * buffer.write_energy
        bounds, energies = [], []
        for order in self.orders():
            moved = outer_traffic(extents, (m, n, k), order, scheme, gemm.role.on_chip)
            bus = behind.cycles(moved.read, moved.write) * batch
            both = np.maximum(bus, inside) if buffer.double_buffered else bus + array * batch
            bounds.append(np.asarray(both, dtype=float))
            beyond = moved.read * behind.read_energy + moved.write * behind.write_energy
            energies.append(np.asarray(batch * (port + beyond) + self._fixed_energy()))
        return np.stack(bounds), np.stack(energies)

    def _fixed_energy(self) -> float:
        """Energy in pJ that no mapping changes."""
        gemm, scheme, hardware = self.gemm, self.scheme, self.hardware
        register = (2 * scheme.compute + 2 * scheme.accumulator) * hardware.register_energy
        each = {Grain.NONE: 0, Grain.GROUP: 0, Grain.ROW: 0}.get(scheme.weight_grain, 1)
        each += 1 if each and scheme.activation_grain is Grain.TOKEN else 0
        scaled = each * gemm.batch * gemm.m * gemm.n
        if scheme.weight_grain in (Grain.GROUP, Grain.ROW):
            scaled += gemm.batch * gemm.k * gemm.n
        return gemm.macs * (hardware.mac(scheme.compute) + register) + scaled * hardware.mac(16)


def search_together(problems: list[Problem], gap: float = GAP) -> tuple[Found, Found]:
    """Find the best mapping of products that share their tiles: one, or attention's two.

    Scores stay on chip, so both products of attention have the same rows of queries and the same
    part of the cache: SCORES has them as M and N, VALUES as M and K.

    Args:
        problems: the products.
        gap: what is found takes at most this share longer than the best.

    Returns:
        The fastest, and the one of the least energy; cycles and pJ of all products together.

    Raises:
        NoRoomError: no tile fits.
    """
    lead = problems[0]
    grid = lead.tiles()
    if not len(grid[0]):
        memory = lead.hardware.levels[0]
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {memory.name}")
    orders = lead.orders()
    parts = [p.bounds(grid if p is lead else [grid[0], grid[2], grid[1]]) for p in problems]
    bounds, energies = (sum(part[n] for part in parts).ravel() for n in (0, 1))
    number = len(grid[0])

    def candidate(at: int) -> Holding:
        return Holding(BufferTile(*(int(g[at % number]) for g in grid)), orders[at // number])

    def simulated(at: int) -> float:
        held = candidate(at)
        return sum(p.simulate(beside(held.tile, p is lead), held.order) for p in problems)

    best, fastest, looked = np.inf, 0, 0
    for at in np.argsort(bounds, kind="stable"):
        if bounds[at] >= best * (1 - gap):
            break
        time = simulated(int(at))
        looked += 1
        if time < best or (time == best and energies[at] < energies[fastest]):
            best, fastest = time, int(at)
    frugal = int(np.lexsort((bounds, energies))[0])
    quick, cheap = (
        Found(candidate(at), simulated(at), float(energies[at]), len(bounds), looked)
        for at in (fastest, frugal)
    )
    return quick, cheap


def beside(tile: BufferTile, lead: bool) -> BufferTile:
    """The tile of the second of attention's products, N and K changed."""
    return tile if lead else BufferTile(tile.m, tile.k, tile.n)


@lru_cache(maxsize=1 << 16)
def solve(problems: tuple[Problem, ...]) -> tuple[Found, Found]:
    """The fastest and the most frugal mapping of products that share their tiles."""
    return search_together(list(problems))
