# SPDX-License-Identifier: Apache-2.0
"""Search for the best tiles of products in every memory inside of the outermost memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from costmodel.estimate.pipeline import duration, steps
from costmodel.estimate.product import Role
from costmodel.estimate.tiling import DIMENSIONS, BufferTile, Holding, attention_holding
from costmodel.estimate.transfer import NOTHING, memory_energy
from costmodel.search.products import NoRoomError, Problem, Solution, search_together, turned

NUMBERS = (0, 1, 2, 3, 5, 8, 12, 20, 32)  # candidate sizes of an L2's tiles, 0 is the largest
L2_GAP = 1e-2
BUFFER_AND_MEMORY = 2  # levels without an L2


def solve(problems: tuple[Problem, ...]) -> tuple[Solution, Solution]:
    """Return the fastest and the most frugal mapping of products that share their tiles.

    Raises:
        NoRoomError: no tile fits.
    """
    if len(problems[0].hardware.levels) == BUFFER_AND_MEMORY:
        return search_together(problems)
    return _search_behind(problems)


@lru_cache(maxsize=1 << 16)
def _search_behind(problems: tuple[Problem, ...]) -> tuple[Solution, Solution]:
    """Search the tiles of an L2 between buffer and memory, each with the best tiles within it.

    The bounds come from :meth:`Problem.bounds` for an L2 without a port: the array's cycles for a
    tile of the L2 are no more than for the tile's parts. As every candidate needs a search within
    it, candidates are few, and the result is within a hundredth of the best candidate. Attention
    keeps the fewest blocks of rows and the longest part of the cache in the L2.
    """
    lead = problems[0]
    buffer, level, memory = lead.hardware.levels
    free = replace(level, read=np.inf, write=np.inf)
    outer = replace(lead, hardware=replace(lead.hardware, levels=(free, memory)))
    if lead.gemm.role is Role.PRODUCT:
        grid, orders = _thinned(outer.tiles(most=0).tiles), outer.orders()
        bounds = outer.bounds(turned(grid, True))[0] if len(grid[0]) else [np.array([])]
        flat = np.concatenate(bounds)
    else:
        g = lead.gemm
        blocks = attention_holding(g.m, g.n, g.k, lead.scheme, level)
        grid = [np.array([side]) for side in (*blocks, g.k)] if blocks else [np.array([])] * 3
        orders, flat = [DIMENSIONS], np.zeros(1 if blocks else 0)
    if not len(flat):
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {level.name}")
    quick: Solution | None = None
    cheap: Solution | None = None
    for at in np.argsort(flat, kind="stable"):
        if quick and cheap and flat[at] >= quick.cycles * (1 - L2_GAP):
            break
        tile = BufferTile(*(int(side[at % len(grid[0])]) for side in grid))
        try:
            mappings = list(within(problems, Holding(tile, orders[at // len(grid[0])])))
        except NoRoomError:
            continue  # a smaller part may have tiles that fit the buffer
        for mapping in mappings:
            quick = mapping if quick is None or mapping.cycles < quick.cycles else quick
            cheap = mapping if cheap is None or mapping.energy < cheap.energy else cheap
    if quick is None or cheap is None:
        raise NoRoomError(f"{lead.hardware.name}: no tile of {lead.gemm.name} fits {buffer.name}")
    return quick, cheap


def _thinned(grid: list[Any]) -> list[Any]:
    """Return tiles of few sizes along each dimension: the largest sizes, then ever wider apart."""
    keep: Any = True
    for side in grid:
        values = np.unique(side)[::-1]
        keep = keep & np.isin(side, values[[n for n in NUMBERS if n < len(values)]])
    return [side[keep] for side in grid]


def within(problems: tuple[Problem, ...], held: Holding) -> Iterator[Solution]:
    """Yield mappings of products in parts ``held`` by an L2, with totals over all parts."""
    lead = problems[0]
    buffer, level, memory = lead.hardware.levels
    close = replace(lead.hardware, levels=(buffer, level))
    parts = []
    for problem in problems:
        tile = held.turned(problem is lead).tile
        gemm = replace(problem.gemm, **tile._asdict(), batch=1)
        parts.append(replace(problem, gemm=gemm, hardware=close, widest=0))
    for inner in solve(tuple(parts)):
        cycles, energy = 0.0, 0.0
        for problem, part in zip(problems, parts, strict=True):
            gemm, first = problem.gemm, part is parts[0]
            outer, tile_in_buffer = held.turned(first), inner.holdings[0].turned(first)
            whole = (gemm.m, gemm.n, gemm.k, True, True)
            listed = steps(whole, outer, problem.scheme, gemm.on_chip)
            work = np.zeros(listed.times.shape)
            for state, kinds in listed.states().items():
                work[kinds] = part.simulate(*tile_in_buffer.arrays(), state)[0]
                times = gemm.batch * int(listed.times[kinds].sum())
                energy += times * part.moving_energy(tile_in_buffer, state)
            both = level.double_buffered
            cycles += float(duration(listed, work, memory, both, gemm.batch)[0])
            # The energy of the parts includes the L2's traffic to and from the buffer.
            moved = listed.moved() * gemm.batch
            energy += memory_energy(memory, moved, NOTHING) + memory_energy(level, NOTHING, moved)
            energy += problem.fixed_energy()
        yield Solution((*inner.holdings, held), cycles, energy)
