# SPDX-License-Identifier: Apache-2.0
"""Search for the best tiles and loop order of a product on an accelerator.

The candidates are every tile of a small product, and the tiles of
:func:`costmodel.estimate.tiling.sizes` of a larger product, in each of the six orders. A candidate
has two lower bounds: the bus moves all its bits, and the array does all its cycles after the first
fetch and before the last store; double buffering overlaps only these two. The search simulates
candidates in the order of the larger bound, until that bound reaches the best simulated time: no
other candidate is better. :func:`refined` then tries finer sizes where a bound of all tiles is
below what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import permutations
from itertools import product as combinations
from math import prod
from operator import add, and_
from typing import Any

import numpy as np

from costmodel.accelerator.hardware import Hardware, Level
from costmodel.accelerator.scheme import FLOAT16, Grain, Scheme
from costmodel.estimate.pipeline import Count, State, Steps, duration, many_steps, steps
from costmodel.estimate.product import Gemm, Role, pe_energies
from costmodel.estimate.tiling import (
    DIMENSIONS,
    BufferTile,
    Holding,
    attention_room,
    fits,
    in_tiles,
    operand_bits,
    outer_traffics,
    room,
    sizes,
)
from costmodel.estimate.transfer import NOTHING, MovedBits, boundary_energy, memory_energy
from costmodel.search.bounded import in_order_of_bounds
from costmodel.search.systolic import Counts, Systolic

ORDERS = tuple(permutations(DIMENSIONS))
EVERY = 1 << 16  # most tiles of a product whose every tile is a candidate
ROOMY = 4  # passes along each dimension of a tile; a buffer that holds it needs no finer sizes
KEPT = 16  # products whose candidates stay in memory, for the buffers of an array
STREAMED = 8  # elements of a streaming dimension that count as a pass


Tile = tuple[Count, Count, Count]


class NoRoomError(Exception):
    """The error for a memory that is too small for every tile of a product."""


@dataclass(frozen=True)
class Solution:
    """A mapping of a product, its cycles and pJ.

    Attributes:
        holdings: the tile in each memory, from the array outwards.
    """

    holdings: tuple[Holding, ...]
    cycles: float
    energy: float


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
        """Return the problem with the search's largest buffer; with its own if that is tight."""
        if self.tight:
            return replace(self, widest=0)
        size = self.hardware.levels[0].size
        return self.with_buffer(size and max(size, self.widest))

    def with_buffer(self, size: int | None) -> Problem:
        """Return the problem with a shared buffer of a size, without the buffer's energies."""
        buffer, behind = self.hardware.levels
        buffer = replace(buffer, size=size, split=None, read_energy=0.0, write_energy=0.0)
        return replace(self, hardware=replace(self.hardware, levels=(buffer, behind)), widest=0)

    def simulate(self, tiles: Tile, orders: Count, region: State | None = None) -> Count:
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
        sides = (listed.m, listed.n, listed.k)
        rescales = self.rescales(self.array.passes(*sides), *sides)
        scaled = int((listed.times * rescales).sum())
        memories = memory_energy(buffer, port, moved) + memory_energy(behind, moved, NOTHING)
        return float(memories + scaled * self.rescale_energy)

    def rescales(self, passes: Counts, m: Count, n: Count, k: Count) -> Count:
        """Return the number of operands of a part that are scaled as they enter the array."""
        if self.scheme.weight_grain in (Grain.GROUP, Grain.ROW):
            return passes[0] * n * k
        return passes[1] * m * k * (self.scheme.activation_grain is Grain.EMBEDDING)

    @property
    def rescale_energy(self) -> float:
        """The energy in pJ of a multiplication by a scale."""
        return self.hardware.mac(FLOAT16.activation)

    def orders(self) -> list[tuple[str, ...]]:
        """Return the loop orders over tiles, loops over extents of 1 first; attention has one."""
        if self.gemm.role is not Role.PRODUCT:
            return [DIMENSIONS]
        alone = tuple(d for d in DIMENSIONS if getattr(self.gemm, d) == 1)
        return [o for o in ORDERS if o[: len(alone)] == alone]

    def tiles(self, most: int = EVERY) -> Grid:
        """Return the candidate tiles that fit.

        Args:
            most: if a product has at most this many tiles, every tile is a candidate.
        """
        every = self.grid(lambda extent, _: range(1, extent + 1))
        if prod(map(len, every)) <= most:
            return self.fitting_tiles(every)
        if self.tight:
            return self.fitting_tiles(
                self.grid(lambda extent, grain: sorted({*sizes(extent, 1), *sizes(extent, grain)}))
            )
        return self.fitting_tiles(self.grid(sizes))

    def grid(self, choice: Callable[[int, int], Sequence[int]]) -> list[Sequence[int]]:
        """Return sizes along M, N, K by ``choice`` of extent and grain; a head's width is whole."""
        # Tiles of keys and values have the whole width; queries and sums of the result stay, too.
        fixed = {Role.SCORES: 2, Role.VALUES: 1}.get(self.gemm.role)
        pairs = zip(self.gemm.extents, self.array.grains(), strict=True)
        return [[e] if axis == fixed else choice(e, g) for axis, (e, g) in enumerate(pairs)]

    def fitting_tiles(self, sides: Sequence[Sequence[int]]) -> Grid:
        """Return the tiles that fit of all combinations of sizes along M, N and K."""
        sparse = np.meshgrid(*map(np.array, sides), indexing="ij", sparse=True)
        used = self.fitting(sparse)
        return Grid(sparse, np.broadcast_to(used, [len(side) for side in sides]))

    @property
    def tight(self) -> bool:
        """True if the buffer has no room for ROOMY passes along M, N and K: finer sizes matter."""
        passes = (STREAMED if grain == 1 else grain for grain in self.array.grains())
        few = [np.minimum(e, ROOMY * p) for e, p in zip(self.gemm.extents, passes, strict=True)]
        return not self.fitting(few)

    def fitting(self, grid: Sequence[Any]) -> Any:
        """Return a mask of the tiles that fit the buffer."""
        gemm, level = self.gemm, self.gemm.beside(self.hardware).levels[0]
        m, n, k = grid
        if gemm.role is Role.PRODUCT:
            return fits(room(m, n, k, self.scheme, level), level)
        context, width = (n, k) if gemm.role is Role.SCORES else (k, n)
        return fits(attention_room(m, context, width, self.scheme, level), level)

    def bounds(
        self, grid: Tile, least: bool = False, edges: bool = True
    ) -> tuple[Any, list[MovedBits], MovedBits, Any]:
        """Return lower bounds of the cycles of orders x tiles, and the traffic of each tile.

        Args:
            grid: extents of the tiles, arrays that broadcast.
            least: bound all tiles of equal numbers, of which the given tile is the smallest.
            edges: include what is less for more tiles: the first fetch and the array's port.

        Returns:
            lower bounds of the cycles, and bits between buffer and outer memory, by order; bits
            between buffer and array, and the number of scaled operands, of each tile.
        """
        gemm, array, scheme = self.gemm, self.array, self._widths(least)
        buffer, behind = self.hardware.levels
        tiles = tuple(-(-e // s) for e, s in zip(self.gemm.extents, grid, strict=True))
        if least:
            passes = tuple(map(np.maximum, array.passes(*self.gemm.extents), tiles))
            depth = np.maximum(-(-gemm.k // array.lanes), tiles[2])
        else:
            sides = [
                in_tiles(e, s, partial(_along, array, axis))
                for axis, (e, s) in enumerate(zip(self.gemm.extents, grid, strict=True))
            ]
            passes, depth = tuple(sides), in_tiles(gemm.k, grid[2], lambda s: -(-s // array.lanes))
        operands = operand_bits(gemm.extents, grid, scheme)
        inward, matrix = operands[0] * passes[1], operands[1] * passes[0]
        work = array.total_cycles(self.gemm.extents, tiles, passes, depth)
        if edges:
            # The port's time is in whole cycles for each tile, rounded down.
            work = np.maximum(work, (inward + matrix) / buffer.read - prod(tiles))
        work = work * gemm.batch
        finished = gemm.m * gemm.n
        spilled = (passes[2] - 1) * finished * scheme.accumulator
        port = MovedBits(inward, matrix, spilled, spilled + finished * scheme.output)
        first = scheme.weight_bits(grid[2], grid[1])
        if "A" not in gemm.on_chip:
            first = first + scheme.activation_bits(grid[0], grid[2])
        # The last tile may be ragged: it stores at least a single element.
        last = 0 if "C" in gemm.on_chip else scheme.output
        inside = work + edges * (first / behind.read + last / behind.write)
        bounds, listed = [], []
        orders = self.orders()
        for each in outer_traffics(gemm.extents, grid, orders, scheme, gemm.on_chip, operands):
            moved = each * gemm.batch
            listed.append(moved)
            bus = behind.cycles(moved.read, moved.write)
            bounds.append(np.maximum(bus, inside) if buffer.double_buffered else bus + work)
        scaled = self.rescales(passes, *self.gemm.extents) * gemm.batch
        return bounds, listed, port * gemm.batch, scaled

    def _widths(self, least: bool) -> Scheme:
        """Return the scheme; with ``least``, no group is shorter than the others."""
        scheme = self.scheme
        if not least or scheme.weight_grain is not Grain.GROUP:
            return scheme
        beside: Any = (scheme.scale + scheme.zero_point) / scheme.group
        return replace(scheme, weight=scheme.weight + beside, weight_grain=Grain.NONE)

    def fixed_energy(self) -> float:
        """Return the energy in pJ that is the same for all mappings."""
        gemm, scheme = self.gemm, self.scheme
        scaled = scheme.scales_of_sums * gemm.batch * gemm.m * gemm.n
        energies = pe_energies(gemm, self.hardware, scheme)
        return sum(energies.values()) + scaled * self.rescale_energy


def _along(array: Systolic, axis: int, size: Count) -> Count:
    """Return the passes of a tile along a dimension."""
    return array.passes(size, size, size)[axis]


@dataclass(frozen=True)
class Grid:
    """Tiles of a product: combinations of sizes along M, N and K, and a mask of those in use."""

    sides: Sequence[Any]
    used: Any

    @property
    def tiles(self) -> list[Any]:
        """The extents along M, N and K of the tiles in use."""
        return list(self.at(self.sides, int))

    def at(self, listed: Sequence[Any], kind: type = float) -> Any:
        """Return figures of all combinations, which broadcast, as figures x tiles in use."""
        # A filled array takes less time than a stack of np.broadcast_to.
        every = np.empty((len(listed), *self.used.shape), kind)
        for row, figures in zip(every, listed, strict=True):
            row[...] = figures
        return every.reshape(len(listed), -1)[:, self.places]

    @cached_property
    def places(self) -> Any:
        """The flat indices of the tiles in use."""
        return slice(None) if self.used.all() else np.flatnonzero(self.used)

    def bits(self, listed: Sequence[MovedBits]) -> MovedBits:
        """Return the transfers of several orders as transfers of orders x tiles in use."""
        each = (vars(moved).values() for moved in listed)
        return MovedBits(*map(self.at, zip(*each, strict=True)))


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

    problems: Sequence[Problem]
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
        # A bit between the memories has one energy for each operand: few passes over the arrays.
        each = vars(boundary_energy(buffer, behind)).values()
        outer = sum(e * bits for e, bits in zip(each, vars(self.outer).values(), strict=True))
        fixed = sum(problem.fixed_energy() for problem in self.problems)
        tile = memory_energy(buffer, self.port.at(inside), NOTHING) + fixed
        tile = tile + self.scaled[inside] * self.problems[0].rescale_energy
        return (outer[:, inside] + tile).ravel()

    def simulate(self, places: Count) -> Any:
        """Return the times of the mappings at ``places``, simulated where they are not known."""
        new = places[np.isnan(self.times[places])]
        number, lead = len(self.grid[0]), self.problems[0]
        grid = [g[new % number] for g in self.grid]
        turns = np.array([[DIMENSIONS.index(d) for d in order] for order in self.orders]).T
        order = turns[:, new // number]
        if len(new):
            self.times[new] = sum(p.simulate(turned(grid, p is lead), order) for p in self.problems)
        return self.times[places]


def turned(grid: Sequence[Any], lead: bool) -> Tile:
    """Return the tiles of attention's second product, with N and K exchanged, unless ``lead``."""
    m, n, k = grid
    return (m, n, k) if lead else (m, k, n)


def candidates(
    problems: Sequence[Problem], grid: Grid, least: bool = False, edges: bool = True
) -> Candidates:
    """Return the candidate mappings of products; the arguments are those of `Problem.bounds`."""
    lead = problems[0]
    parts = [p.bounds(turned(grid.sides, p is lead), least, edges) for p in problems]
    bounds = reduce(add, (grid.at(part[0]) for part in parts)).ravel()
    outer = reduce(add, (grid.bits(part[1]) for part in parts))
    port = reduce(add, (grid.bits([part[2]]).at(0) for part in parts))
    scaled = reduce(add, (grid.at([part[3]])[0] for part in parts))
    times = np.full(bounds.shape, np.nan)
    return Candidates(problems, grid.tiles, lead.orders(), bounds, outer, port, scaled, times)


@lru_cache(maxsize=KEPT)
def _shared(problems: tuple[Problem, ...]) -> Candidates:
    """Return the candidates of products, cached for further buffers of an array."""
    return candidates(problems, problems[0].tiles())


@lru_cache(maxsize=1 << 16)
def search_together(problems: tuple[Problem, ...]) -> tuple[Solution, Solution]:
    """Return the best mappings of products that share tiles: a product, or attention's pair.

    Scores stay on chip, so both products of attention have the same rows of queries and the same
    part of the cache: M and N of SCORES, M and K of VALUES.

    Returns:
        the fastest mapping and the mapping of the least energy, with cycles and pJ of all products.

    Raises:
        NoRoomError: no tile fits.
    """
    return _best(problems[0], _shared(tuple(p.in_widest() for p in problems)))


def _best(lead: Problem, listed: Candidates) -> tuple[Solution, Solution]:
    """Return the fastest and the most frugal candidate that fits the buffer of ``lead``."""
    memory = lead.hardware.levels[0]
    number = len(listed.grid[0])
    inside = np.flatnonzero(lead.fitting(listed.grid))
    if not len(inside):
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {memory.name}")
    # Indices of the mappings that fit, orders x tiles, among all mappings.
    fitting = (np.arange(len(listed.orders))[:, None] * number + inside).ravel()
    bounds = listed.bounds[fitting]
    energies = listed.energies(lead.hardware.levels, inside)

    times = in_order_of_bounds(bounds, lambda places: listed.simulate(fitting[places]))
    # Sums of the same bits in another order are equal.
    least, soonest = (np.flatnonzero(f <= np.nanmin(f) * (1 + 1e-12)) for f in (energies, times))
    frugal = int(least[np.argmin(bounds[least])])
    fastest = int(soonest[np.argmin(energies[soonest])])
    listed.simulate(fitting[[frugal]])

    def solution(at: int) -> Solution:
        order, tile = divmod(int(fitting[at]), number)
        held = Holding(BufferTile(*(int(g[tile]) for g in listed.grid)), listed.orders[order])
        cycles = float(listed.times[fitting[at]])
        return Solution((held,), cycles, float(energies[at]))

    return solution(fastest), solution(frugal)


def lower_bound(problems: tuple[Problem, ...]) -> tuple[Solution]:
    """Return the cycles and pJ that no mapping falls below, those of a single tile.

    More tiles only raise the bound of bits and cycles.
    """
    listed = _whole(tuple(p.with_buffer(None) for p in problems))
    energies = listed.energies(problems[0].hardware.levels, slice(None))
    return (Solution((), float(listed.bounds.min()), float(energies.min())),)


@lru_cache(maxsize=KEPT)
def _whole(problems: tuple[Problem, ...]) -> Candidates:
    """Return the bounds of products in a single tile."""
    sides = [np.array([extent]) for extent in problems[0].gemm.extents]
    return candidates(problems, Grid(sides, np.array([True])), least=True, edges=False)


@lru_cache(maxsize=1 << 14)
def refined(problems: tuple[Problem, ...]) -> tuple[Solution, Solution, Solution]:
    """Return the best mappings of finer sizes, and the cycles and pJ that no tile falls below.

    All tiles that divide a product into equal numbers move as many bits between the memories, and
    the array has at least the passes of the whole product, and a pass for each tile. So the
    smallest tile for each number of tiles bounds all others. Where that bound is below the result
    of :func:`search_together`, the smallest tile and its sizes in whole passes are candidates, too.

    Returns:
        the fastest mapping, the mapping of the least energy, the bounds without a mapping.

    Raises:
        NoRoomError: no tile fits.
    """
    lead, (quick, cheap) = problems[0], search_together(problems)

    def bounded(grid: Grid, edges: bool) -> tuple[Candidates, Any, Any]:
        """Return the smallest tiles, their energies, and a mask of those that may be better."""
        listed = candidates(problems, grid, True, edges)
        energies = listed.energies(lead.hardware.levels, slice(None))
        better = (listed.bounds < quick.cycles) | (energies < cheap.energy)
        return listed, energies, better.reshape(len(listed.orders), -1).any(axis=0)

    def promising(sides: Sequence[Any], single: Sequence[Sequence[int]]) -> list[Any]:
        """Return masks of sizes that may be better if the axes in ``single`` have a single tile."""
        grids = []
        for axes in single:
            some = [[extents[n]] if n in axes else side for n, side in enumerate(sides)]
            grids.append(np.meshgrid(*some, indexing="ij"))
        tiles = [np.concatenate([grid[n].ravel() for grid in grids]) for n in range(3)]
        better = bounded(Grid(tiles, np.full(len(tiles[0]), True)), False)[2]
        ends = np.cumsum([grid[0].size for grid in grids])[:-1]
        masks = zip(np.split(better, ends), grids, strict=True)
        return [mask.reshape(grid[0].shape) for mask, grid in masks]

    extents = lead.gemm.extents
    sides: list[Any] = [np.array(side) for side in lead.grid(lambda extent, _: sizes(extent, 1))]
    # More tiles along the other dimensions only raise the bound of bits and cycles.
    masks = promising(sides, ((1, 2), (0, 2), (0, 1)))
    sides = [side[mask.ravel()] for side, mask in zip(sides, masks, strict=True)]
    grid = lead.fitting_tiles(sides)
    used = grid.used & reduce(and_, promising(sides, ((0,), (1,), (2,))))
    tiles = Grid(grid.sides, used).tiles
    listed, energies, better = bounded(Grid(tiles, np.full(len(tiles[0]), True)), True)
    cycles = min(quick.cycles, float(listed.bounds.min(initial=np.inf)))
    energy = min(cheap.energy, float(energies.min(initial=np.inf)))
    least = Solution((), cycles, energy)
    if not better.any():
        return quick, cheap, least
    smallest = [side[better] for side in listed.grid]
    passes = zip(smallest, extents, lead.array.grains(), strict=True)
    rounded = [np.minimum(extent, -(-side // grain) * grain) for side, extent, grain in passes]
    both = [np.stack(tile) for tile in combinations(*zip(smallest, rounded, strict=True))]
    tiles = list(np.unique(np.concatenate(both, axis=1), axis=1))
    finer = _best(lead, candidates(problems, Grid(tiles, lead.fitting(tiles))))
    quick = min(quick, finer[0], key=lambda found: found.cycles)
    cheap = min(cheap, finer[1], key=lambda found: found.energy)
    return quick, cheap, least
