# SPDX-License-Identifier: Apache-2.0
"""Search for the best tiles and loop order of a product on an accelerator.

The candidates are every tile of a small product, and the tiles of
:func:`costmodel.estimate.tiling.sizes` of a larger product, in each of the six orders. A candidate
has two lower bounds: the bus moves all its bits, and the array does all its cycles after the first
fetch and before the last store; double buffering overlaps only these two. The search simulates
candidates in the order of the larger bound, until that bound reaches the best simulated time: no
other candidate is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Hardware, Level
from costmodel.accelerator.scheme import FLOAT16, Grain, Scheme
from costmodel.estimate.pipeline import Count, State, Steps, duration, many_steps, steps
from costmodel.estimate.product import Gemm, Role
from costmodel.estimate.tiling import (
    DIMENSIONS,
    BufferTile,
    Holding,
    fits,
    outer_traffics,
    room,
    sizes,
)
from costmodel.estimate.transfer import NOTHING, MovedBits, memory_energy
from costmodel.search.systolic import Systolic, in_tiles

ORDERS = tuple(permutations(DIMENSIONS))
EVERY = 1 << 16  # most tiles of a product whose every tile is a candidate
ROOMY = 4  # passes along each dimension of a tile; a buffer that holds it needs no finer sizes
STREAMED = 8  # elements of a streaming dimension that count as a pass
FIRST_CHUNK, CHUNK = 32, 256  # candidates of a call of simulate


class NoRoomError(Exception):
    """The error for a memory that is too small for every tile of a product."""


@dataclass(frozen=True)
class Solution:
    """A mapping of a product, its cycles and pJ, and the numbers of candidates and simulations.

    Attributes:
        holdings: the tile in each memory, from the array outwards.
    """

    holdings: tuple[Holding, ...]
    cycles: float
    energy: float
    candidates: int
    simulated: int


@dataclass(frozen=True)
class Problem:
    """A product with its widths, on an accelerator of two memories with a systolic dataflow.

    Attributes:
        widest: bits of the largest buffer in the search with this array; 0: the hardware's buffer.
    """

    gemm: Gemm
    scheme: Scheme
    hardware: Hardware
    array: Systolic
    widest: int = 0

    def in_widest(self) -> Problem:
        """Return the problem with the search's largest buffer, equal for all roomy buffers."""
        if self.tight:
            return replace(self, widest=0)
        buffer, behind = self.hardware.levels
        size = buffer.size and max(buffer.size, self.widest)
        buffer = replace(buffer, size=size, split=None, read_energy=0.0, write_energy=0.0)
        return replace(self, hardware=replace(self.hardware, levels=(buffer, behind)), widest=0)

    def simulate(self, tiles: Sequence[Count], orders: Count, region: State | None = None) -> Count:
        """Return the cycles of candidates, without the latencies of memories.

        Args:
            tiles: the candidates' extents along M, N and K.
            orders: 3 x candidates, the dimension of each loop.
            region: a part of the product; None: the whole product.
        """
        (buffer, behind), gemm, scheme = self.hardware.levels, self.gemm, self.scheme
        region = region or (gemm.m, gemm.n, gemm.k, True, True)
        listed = many_steps(region, tiles, orders, scheme, gemm.on_chip)
        port = self._port(listed)
        work = self.array.cycles(listed.m, listed.n, listed.k)
        work = np.maximum(work, np.maximum(port.read // buffer.read, port.write // buffer.write))
        return duration(listed, work, behind, buffer.double_buffered, gemm.batch)

    def _port(self, listed: Steps) -> MovedBits:
        """Return the bits between buffer and array in each kind of step."""
        scheme, elements = self.scheme, listed.m * listed.n
        inward, weights, visits = self.array.port(listed.m, listed.n, listed.k, scheme)
        back = (visits - listed.new) * elements * scheme.accumulator
        out = elements * (listed.done * scheme.output + (visits - listed.done) * scheme.accumulator)
        return MovedBits(inward, weights, back, out)

    def moving_energy(self, held: Holding, region: State) -> float:
        """Return the pJ of both memories, and of scaling, for a part of the product."""
        buffer, behind = self.hardware.levels
        listed = steps(region, held, self.scheme, self.gemm.on_chip)
        each = self._port(listed) * listed.times
        port = MovedBits(*(int(bits.sum()) for bits in vars(each).values()))
        moved = listed.moved()
        scaled = int((listed.times * self.rescales(listed.m, listed.n, listed.k)).sum())
        memories = memory_energy(buffer, port, moved) + memory_energy(behind, moved, NOTHING)
        return float(memories + scaled * self.rescale_energy)

    def rescales(self, m: Count, n: Count, k: Count) -> Count:
        """Return the number of a tile's operands that are scaled as they enter the array."""
        along_m, along_n, _ = self.array.passes(m, n, k)
        if self.scheme.weight_grain in (Grain.GROUP, Grain.ROW):
            return along_m * n * k
        return along_n * m * k * (self.scheme.activation_grain is Grain.EMBEDDING)

    @property
    def rescale_energy(self) -> float:
        """The energy in pJ of a multiplication by a scale."""
        return self.hardware.mac(FLOAT16.activation)

    def search(self) -> tuple[Solution, Solution]:
        """Return the fastest mapping, and the mapping of the least energy.

        Raises:
            NoRoomError: no tile fits.
        """
        return search_together([self])

    def orders(self) -> list[tuple[str, ...]]:
        """Return the loop orders over tiles: loops of a single tile first; attention has one."""
        if self.gemm.role is not Role.PRODUCT:
            return [DIMENSIONS]
        alone = tuple(d for d in DIMENSIONS if getattr(self.gemm, d) == 1)
        return [o for o in ORDERS if o[: len(alone)] == alone]

    def tiles(self, most: int = EVERY) -> list[Any]:
        """Return the extents of the candidate tiles that fit, as three arrays.

        Args:
            most: if a product has at most this many tiles, every tile is a candidate.
        """
        gemm = self.gemm
        extents = (gemm.m, gemm.n, gemm.k)
        # Tiles of keys and values have the whole width; queries and sums of the result stay, too.
        fixed = {Role.SCORES: 2, Role.VALUES: 1}.get(gemm.role)
        every = prod(e for axis, e in enumerate(extents) if axis != fixed) <= most
        sides: list[Sequence[int]] = []
        for axis, (extent, grain) in enumerate(zip(extents, self.array.grains(), strict=True)):
            finer = sizes(extent, 1) if self.tight else []
            reduced = sorted({*sizes(extent, grain), *finer})
            sides.append(range(1, extent + 1) if every else reduced)
            if axis == fixed:
                sides[axis] = [extent]
        grid = [g.ravel() for g in np.meshgrid(*(np.array(s) for s in sides), indexing="ij")]
        keep = self.fitting(grid)
        return [g[keep] for g in grid]

    @property
    def tight(self) -> bool:
        """True if a few passes of the array fill the buffer, so that finer sizes matter."""
        extents = (self.gemm.m, self.gemm.n, self.gemm.k)
        passes = (STREAMED if grain == 1 else grain for grain in self.array.grains())
        few = [np.minimum(e, ROOMY * p) for e, p in zip(extents, passes, strict=True)]
        return not self.fitting(few)

    def fitting(self, grid: Sequence[Any]) -> Any:
        """Return a mask of the tiles that fit the buffer."""
        gemm, level = self.gemm, self.gemm.beside(self.hardware).levels[0]
        m, n, k = grid
        copies = 2 if level.double_buffered else 1
        if gemm.role is Role.PRODUCT:
            return fits(room(m, n, k, self.scheme, copies), level)
        context, width = (n, k) if gemm.role is Role.SCORES else (k, n)
        queries, keys, scores = room(m, context, width, self.scheme, copies)
        return fits((queries, 2 * keys, scores + m * width * self.scheme.accumulator), level)

    def bounds(self, grid: Sequence[Any]) -> tuple[Any, MovedBits, MovedBits, Any]:
        """Return lower bounds of the cycles of orders x tiles, and the traffic of each tile.

        Returns:
            lower bounds of the cycles and bits between buffer and outer memory, of orders x tiles;
            bits between buffer and array and the number of scaled operands, of each tile.
        """
        gemm, scheme = self.gemm, self.scheme
        buffer, behind = self.hardware.levels
        m, n, k = grid
        extents, batch = (gemm.m, gemm.n, gemm.k), gemm.batch
        array: Any = 0
        inward: Any = 0
        weights: Any = 0
        visits: Any = 0
        scaled: Any = 0
        parts = (in_tiles(e, s) for e, s in zip(extents, (m, n, k), strict=True))
        for (tm, cm), (tn, cn), (tk, ck) in product(*parts):
            number = cm * cn * ck
            a, b, again = self.array.port(tm, tn, tk, scheme)
            # The port's time is in whole cycles, rounded down.
            work = np.maximum(self.array.cycles(tm, tn, tk), (a + b) / buffer.read - 1)
            array = array + number * work
            inward, weights = inward + number * a, weights + number * b
            visits = visits + number * again * tm * tn
            scaled = scaled + number * self.rescales(tm, tn, tk)
        partial = (visits - gemm.m * gemm.n) * scheme.accumulator
        outward = partial + gemm.m * gemm.n * scheme.output
        first = scheme.weight_bits(k, n)
        if "A" not in gemm.on_chip:
            first = first + scheme.activation_bits(m, k)
        # The last tile may be ragged: it stores at least a single element.
        last = 0 if "C" in gemm.on_chip else scheme.output
        inside = array * batch + first / behind.read + last / behind.write
        port = MovedBits(inward, weights, partial, outward) * batch
        bounds = []
        listed = outer_traffics(extents, (m, n, k), self.orders(), scheme, gemm.on_chip)
        for moved in listed:
            bus = behind.cycles(moved.read, moved.write) * batch
            both = np.maximum(bus, inside) if buffer.double_buffered else bus + array * batch
            bounds.append(np.asarray(both, dtype=float))
        return np.stack(bounds), _in_orders(listed) * batch, port, scaled * batch

    def fixed_energy(self) -> float:
        """Return the energy in pJ that is the same for all mappings."""
        gemm, scheme, hardware = self.gemm, self.scheme, self.hardware
        register = (2 * scheme.compute + 2 * scheme.accumulator) * hardware.register_energy
        each = {Grain.NONE: 0, Grain.GROUP: 0, Grain.ROW: 0}.get(scheme.weight_grain, 1)
        each += 1 if each and scheme.activation_grain is Grain.TOKEN else 0
        if scheme.activation_grain is Grain.EMBEDDING and scheme.weight_grain is Grain.NONE:
            each = 1
        scaled = each * gemm.batch * gemm.m * gemm.n
        return gemm.macs * (hardware.mac(scheme.compute) + register) + scaled * self.rescale_energy


def _in_orders(listed: Sequence[MovedBits]) -> MovedBits:
    """Stack the transfers of several orders to transfers of orders x tiles."""
    return MovedBits(
        *(np.stack(bits) for bits in zip(*(vars(t).values() for t in listed), strict=True))
    )


@dataclass(frozen=True)
class Candidates:
    """The candidate mappings of products that share tiles, for every size of the buffer.

    Arrays are orders x tiles unless stated otherwise; ``bounds`` and ``times`` are flattened.

    Attributes:
        grid: extents of the first product's tiles.
        bounds: lower bounds of the cycles of all products together.
        outer: bits between buffer and outer memory; port: between buffer and array, by tile.
        scaled: number of operands that are scaled as they enter the array, by tile.
        times: cycles; NaN before the simulation.
    """

    problems: tuple[Problem, ...]
    grid: list[Any]
    orders: list[tuple[str, ...]]
    bounds: Any
    outer: MovedBits
    port: MovedBits
    scaled: Any
    times: Any

    def energies(self, levels: Sequence[Level], inside: Any) -> Any:
        """Return the pJ of the mappings of some tiles in all orders, between two memories."""
        buffer, behind = levels
        port, outer = self.port.at(inside), self.outer.at((slice(None), inside))
        moved = memory_energy(buffer, port, outer) + memory_energy(behind, outer, NOTHING)
        scaled = self.scaled[inside] * self.problems[0].rescale_energy
        return (moved + scaled + sum(problem.fixed_energy() for problem in self.problems)).ravel()

    def simulate(self, places: Count) -> None:
        """Simulate the mappings at ``places`` that have no times yet."""
        places = places[np.isnan(self.times[places])]
        if not len(places):
            return
        number = len(self.grid[0])
        m, n, k = (g[places % number] for g in self.grid)
        turns = np.array([[DIMENSIONS.index(d) for d in order] for order in self.orders]).T
        turned = turns[:, places // number]
        lead = self.problems[0]
        cycles = [p.simulate((m, n, k) if p is lead else (m, k, n), turned) for p in self.problems]
        self.times[places] = sum(cycles)


@lru_cache(maxsize=24)
def candidates(problems: tuple[Problem, ...]) -> Candidates:
    """Return the candidate mappings of products, cached for further buffers of an array."""
    lead = problems[0]
    grid = lead.tiles()
    parts = [p.bounds(grid if p is lead else [grid[0], grid[2], grid[1]]) for p in problems]
    bounds = sum(part[0] for part in parts).ravel()
    outer, port = (sum((part[n] for part in parts), NOTHING) for n in (1, 2))
    scaled = sum(part[3] for part in parts) + np.zeros(len(grid[0]))
    times = np.full(bounds.shape, np.nan)
    return Candidates(problems, grid, lead.orders(), bounds, outer, port, scaled, times)


def search_together(problems: Sequence[Problem]) -> tuple[Solution, Solution]:
    """Return the best mappings of products that share tiles: a product, or attention's pair.

    Scores stay on chip, so both products of attention have the same rows of queries and the same
    part of the cache: M and N of SCORES, M and K of VALUES.

    Args:
        problems: the products.

    Returns:
        the fastest mapping and the mapping of the least energy, with cycles and pJ of all products.

    Raises:
        NoRoomError: no tile fits.
    """
    lead = problems[0]
    memory = lead.hardware.levels[0]
    listed = candidates(tuple(p.in_widest() for p in problems))
    number = len(listed.grid[0])
    inside = np.flatnonzero(lead.fitting(listed.grid))
    if not len(inside):
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {memory.name}")
    # Indices of the mappings that fit, orders x tiles, among all mappings.
    fitting = (np.arange(len(listed.orders))[:, None] * number + inside).ravel()
    bounds = listed.bounds[fitting]
    energies = listed.energies(lead.hardware.levels, inside)

    chunk = np.argpartition(bounds, min(FIRST_CHUNK, len(bounds)) - 1)[:FIRST_CHUNK]
    ranked: Count = None
    while len(chunk):
        listed.simulate(fitting[chunk])
        times = listed.times[fitting]
        best = np.nanmin(times)
        if ranked is None:
            left = np.setdiff1d(np.flatnonzero(bounds < best), chunk)
            ranked = left[np.argsort(bounds[left], kind="stable")]
        ranked = ranked[: np.searchsorted(bounds[ranked], best)]
        chunk, ranked = ranked[:CHUNK], ranked[CHUNK:]
    # Sums of the same bits in another order are equal.
    least, soonest = (np.flatnonzero(f <= np.nanmin(f) * (1 + 1e-12)) for f in (energies, times))
    frugal = int(least[np.argmin(bounds[least])])
    fastest = int(soonest[np.argmin(energies[soonest])])
    simulated = int(np.isfinite(times).sum())
    listed.simulate(fitting[[frugal]])

    def solution(at: int) -> Solution:
        order, tile = divmod(int(fitting[at]), number)
        held = Holding(BufferTile(*(int(g[tile]) for g in listed.grid)), listed.orders[order])
        cycles = float(listed.times[fitting[at]])
        return Solution((held,), cycles, float(energies[at]), len(bounds), simulated)

    return solution(fastest), solution(frugal)
