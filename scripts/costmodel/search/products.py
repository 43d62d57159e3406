# SPDX-License-Identifier: Apache-2.0
"""The best tiles and loop order for one product on one accelerator.

Every tile of :func:`costmodel.estimate.tiling.sizes` in each of the six orders is a candidate. Two
bounds hold for each: the bus moves all its bits, and the array does all its cycles after the first
fetch and before the last store; neither can be shorter, since double buffering overlaps the two and
no more. Candidates are simulated in the order of the larger bound, until that bound is as good as
the best time found (or closer to it than a gap that is asked for): none that is left out is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import Grain, Scheme
from costmodel.estimate.pipeline import Count, State, duration, many_steps, steps
from costmodel.estimate.product import Gemm, Role
from costmodel.estimate.tiling import (
    DIMENSIONS,
    BufferTile,
    Holding,
    attention_holding,
    fits,
    outer_traffics,
    room,
    sizes,
)
from costmodel.search.systolic import Systolic, in_tiles

ORDERS = tuple(permutations(DIMENSIONS))
GAP = 1e-3
NUMBERS = (0, 1, 2, 3, 5, 8, 12, 20, 32)  # sizes of an L2's tiles that are tried, from the largest
L2_GAP = 1e-2
BUFFER_AND_MEMORY = 2  # levels without an L2
FIRST_CHUNK, CHUNK = 32, 256  # candidates that are simulated together


class NoRoomError(Exception):
    """A memory that is too small for any tile of a product."""


@dataclass(frozen=True)
class Found:
    """A mapping of a product, its cycles and pJ, and how many candidates were looked at.

    Attributes:
        holdings: what each memory holds, from the array outwards.
    """

    holdings: tuple[Holding, ...]
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

    def simulate(self, tiles: Sequence[Count], orders: Count, region: State | None = None) -> Count:
        """Cycles of candidates, memory latencies left out.

        Args:
            tiles: their extents along M, N and K.
            orders: 3 x candidates, the dimension of each loop.
            region: a part of the product; left out: all of it.
        """
        (buffer, behind), gemm, scheme = self.hardware.levels, self.gemm, self.scheme
        region = region or (gemm.m, gemm.n, gemm.k, True, True)
        listed = many_steps(region, tiles, orders, scheme, gemm.on_chip)
        inward, weights, visits = self.array.port(listed.m, listed.n, listed.k, scheme)
        elements = listed.m * listed.n
        back = inward + weights + (visits - listed.new) * elements * scheme.accumulator
        out = elements * (listed.done * scheme.output + (visits - listed.done) * scheme.accumulator)
        work = self.array.cycles(listed.m, listed.n, listed.k)
        work = np.maximum(work, np.maximum(back // buffer.read, out // buffer.write))
        return duration(listed, work, behind, buffer.double_buffered, gemm.batch)

    def search(self) -> tuple[Found, Found]:
        """Find the fastest mapping, and the one of the least energy.

        Raises:
            NoRoomError: no tile fits.
        """
        return search_together([self])

    def orders(self) -> list[tuple[str, ...]]:
        """Orders of the loops over tiles: a loop of one tile stands first; attention has one."""
        if self.gemm.role is not Role.PRODUCT:
            return [DIMENSIONS]
        alone = tuple(d for d in DIMENSIONS if getattr(self.gemm, d) == 1)
        return [o for o in ORDERS if o[: len(alone)] == alone]

    def tiles(self) -> list[Any]:
        """Extents of the tiles that fit, as three arrays."""
        gemm, level = self.gemm, self.gemm.beside(self.hardware).levels[0]
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
        return [g[keep] for g in grid]

    def bounds(self, grid: list[Any]) -> tuple[Any, Any]:
        """Lower bounds of the cycles, and energy in pJ, of orders x tiles."""
        gemm, scheme = self.gemm, self.scheme
        buffer, behind = self.hardware.levels
        m, n, k = grid
        extents, batch = (gemm.m, gemm.n, gemm.k), gemm.batch
        array: Any = 0
        inward: Any = 0
        weights: Any = 0
        visits: Any = 0
        parts = (in_tiles(e, s) for e, s in zip(extents, (m, n, k), strict=True))
        for (tm, cm), (tn, cn), (tk, ck) in product(*parts):
            number = cm * cn * ck
            a, b, again = self.array.port(tm, tn, tk, scheme)
            # The port's time is in whole cycles, rounded down.
            work = np.maximum(self.array.cycles(tm, tn, tk), (a + b) / buffer.read - 1)
            array = array + number * work
            inward, weights = inward + number * a, weights + number * b
            visits = visits + number * again * tm * tn
        partial = (visits - gemm.m * gemm.n) * scheme.accumulator
        outward = partial + gemm.m * gemm.n * scheme.output
        first = scheme.weight_bits(k, n)
        if "A" not in gemm.on_chip:
            first = first + scheme.activation_bits(m, k)
        # The last tile may be ragged: that an element of it is stored is all that is sure.
        last = 0 if "C" in gemm.on_chip else scheme.output
        inside = array * batch + first / behind.read + last / behind.write
        each = buffer.operand_energy()
        port = inward * each[0] + weights * each[1] + partial * each[2] + outward * each[3]
        bounds, energies = [], []
        orders = self.orders()
        for moved in outer_traffics(extents, (m, n, k), orders, scheme, gemm.on_chip):
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

    turns = np.array([[DIMENSIONS.index(d) for d in order] for order in orders]).T

    def simulated(places: Count) -> Count:
        m, n, k = (g[places % number] for g in grid)
        turned = turns[:, places // number]
        own = [p.simulate((m, n, k) if p is lead else (m, k, n), turned) for p in problems]
        return sum(own)

    best, fastest, looked = np.inf, 0, 0
    some = np.argpartition(bounds, min(FIRST_CHUNK, len(bounds)) - 1)[:FIRST_CHUNK]
    ranked: Count = None
    while len(some):
        times = simulated(some)
        at = int(np.lexsort((energies[some], times))[0])
        if (times[at], energies[some[at]]) < (best, energies[fastest]):
            best, fastest = float(times[at]), int(some[at])
        looked += len(some)
        if ranked is None:
            left = np.setdiff1d(np.flatnonzero(bounds < best * (1 - gap)), some)
            ranked = left[np.argsort(bounds[left], kind="stable")]
        ranked = ranked[: np.searchsorted(bounds[ranked], best * (1 - gap))]
        some, ranked = ranked[:CHUNK], ranked[CHUNK:]
    least = np.flatnonzero(energies == energies.min())
    frugal = int(least[np.argmin(bounds[least])])

    def found(at: int) -> Found:
        tile = BufferTile(*(int(g[at % number]) for g in grid))
        cycles = float(simulated(np.array([at]))[0])
        held = Holding(tile, orders[at // number])
        return Found((held,), cycles, float(energies[at]), len(bounds), looked)

    return found(fastest), found(frugal)


def beside(tile: BufferTile, lead: bool) -> BufferTile:
    """The tile of the second of attention's products, N and K changed."""
    return tile if lead else BufferTile(tile.m, tile.k, tile.n)


@lru_cache(maxsize=1 << 16)
def solve(problems: tuple[Problem, ...]) -> tuple[Found, Found]:
    """The fastest and the most frugal mapping of products that share their tiles.

    Raises:
        NoRoomError: no tile fits.
    """
    if len(problems[0].hardware.levels) == BUFFER_AND_MEMORY:
        return search_together(list(problems))
    return _search_behind(problems)


def _search_behind(problems: tuple[Problem, ...]) -> tuple[Found, Found]:
    """Search the tiles of an L2 between buffer and memory, each with the best tiles within it.

    The bounds are those of :meth:`Problem.bounds` for an L2 without a port: the array's cycles for
    a tile of the L2 are no more than for its parts. Few sizes are tried, and the best of them is
    looked for to a hundredth: every candidate asks for a search of its own. Attention keeps the
    fewest blocks of rows and the longest part of the cache in the L2.
    """
    lead = problems[0]
    buffer, level, memory = lead.hardware.levels
    free = replace(level, read=np.inf, write=np.inf)
    outer = replace(lead, hardware=replace(lead.hardware, levels=(free, memory)))
    if lead.gemm.role is Role.PRODUCT:
        grid, orders = _thinned(outer.tiles()), outer.orders()
        flat = outer.bounds(grid)[0].ravel() if len(grid[0]) else np.array([])
    else:
        g = lead.gemm
        blocks = attention_holding(g.m, g.n, g.k, lead.scheme, level)
        grid = [np.array([side]) for side in (*blocks, g.k)] if blocks else [np.array([])] * 3
        orders, flat = [DIMENSIONS], np.zeros(1 if blocks else 0)
    if not len(flat):
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {level.name}")
    quick: Found | None = None
    cheap: Found | None = None
    for looked, at in enumerate(np.argsort(flat, kind="stable")):
        if quick and cheap and flat[at] >= quick.cycles * (1 - L2_GAP):
            break
        tile = BufferTile(*(int(side[at % len(grid[0])]) for side in grid))
        try:
            some = list(within(problems, Holding(tile, orders[at // len(grid[0])]), looked))
        except NoRoomError:
            continue  # a smaller part may have tiles that fit the buffer
        for found in some:
            quick = found if quick is None or found.cycles < quick.cycles else quick
            cheap = found if cheap is None or found.energy < cheap.energy else cheap
    if quick is None or cheap is None:
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {buffer.name}")
    return quick, cheap


def _thinned(grid: list[Any]) -> list[Any]:
    """Tiles of some sizes of each dimension, the largest first and then ever wider apart."""
    keep: Any = True
    for side in grid:
        values = np.unique(side)[::-1]
        keep = keep & np.isin(side, values[[n for n in NUMBERS if n < len(values)]])
    return [side[keep] for side in grid]


def within(problems: tuple[Problem, ...], held: Holding, looked: int) -> Iterator[Found]:
    """Map the part of a product that an L2 holds, and add up over all parts."""
    lead = problems[0]
    buffer, level, memory = lead.hardware.levels
    close = replace(lead.hardware, levels=(buffer, level))
    parts = []
    for problem in problems:
        tile = beside(held.tile, problem is lead)
        gemm = replace(problem.gemm, m=tile.m, n=tile.n, k=tile.k, batch=1)
        parts.append(replace(problem, gemm=gemm, hardware=close))
    for inner in solve(tuple(parts)):
        cycles, energy = 0.0, 0.0
        for problem, part in zip(problems, parts, strict=True):
            gemm, first = problem.gemm, part is parts[0]
            own = Holding(beside(held.tile, first), held.order)
            near = inner.holdings[0]
            sides = [np.array([s]) for s in vars(beside(near.tile, first)).values()]
            order = np.array([[DIMENSIONS.index(d)] for d in near.order])
            whole = (gemm.m, gemm.n, gemm.k, True, True)
            listed = steps(whole, own, problem.scheme, gemm.on_chip)
            work = np.zeros(listed.times.shape)
            for state, kinds in listed.states().items():
                work[kinds] = part.simulate(sides, order, state)[0]
            both = level.double_buffered
            cycles += float(duration(listed, work, memory, both, gemm.batch)[0])
            moved = int(listed.read[0]) * memory.read_energy
            moved += int(listed.write[0]) * memory.write_energy
            energy += gemm.batch * moved
        share = lead.gemm.macs / parts[0].gemm.macs
        yield Found((*inner.holdings, held), cycles, energy + share * inner.energy, 0, looked + 1)
