# SPDX-License-Identifier: Apache-2.0
"""The search over accelerators, dataflows and mappings, and its Pareto fronts."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, product, repeat
from math import isqrt
from multiprocessing.pool import Pool
from typing import Any

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import FLOAT16, Scheme
from costmodel.accelerator.technology import of_width, technology
from costmodel.errors import CostError
from costmodel.estimate.execution import chained
from costmodel.estimate.model import item_scheme, other_work, phase_cost, product_key
from costmodel.estimate.product import Role, effective_scheme
from costmodel.estimate.tiling import LARGER, Holding
from costmodel.estimate.workload import Item, Phase
from costmodel.search.levels import BUFFER_AND_MEMORY, solve
from costmodel.search.products import (
    NoRoomError,
    Problem,
    Solution,
    lower_bound,
    refined,
)
from costmodel.search.systolic import FLOWS, Systolic
from groundwork.interrupts import end_with_parent

BUFFERS = (0.125, 0.25, 0.5, 1.0, 2.0)  # in buffers of the base
SPLITS = ((2, 4, 2), (1, 6, 1))  # eighths for A, B and C, of a buffer of the base's size
STEEPEST = 16  # longer to shorter side of an array
SMALLEST = 4  # side of an array
WORKERS = 2
MOST_PES = 1 << 20
ROUNDING = 1e-9  # by which the sums of a bound may be off
NEAR = 0.01  # of latency and energy: designs so near to a front get finer tiles, too
SQUARE_MM = 1e6  # square micrometres
Plans = Mapping[str, tuple[Holding, ...]]  # by product, from the array outwards
Accuracy = Mapping[str, float]  # perplexity by scheme
Figures = Mapping[str, Any]  # a scheme and the objectives
Solver = Callable[[tuple[Problem, ...]], Sequence[Solution]]
OBJECTIVES = ("latency_ms", "energy_mj", "area_mm2", "perplexity")


@dataclass(frozen=True)
class Design:
    """An accelerator of the search: its array and the bytes of its buffer.

    Attributes:
        split: separate eighths of the buffer for A, B and C; None: A, B and C share the buffer.
    """

    array: tuple[int, int]
    buffer: int
    split: tuple[int, ...] | None = None

    def hardware(self, base: Hardware) -> Hardware:
        """Return the base with this design's array and buffer."""
        first, *others = base.levels
        energy = first.read_energy, first.write_energy
        if first.memory:
            energy = (technology().memories[first.memory].energy_of(self.buffer),) * 2
        parts = self.split and tuple(self.buffer * part for part in self.split)
        level = replace(
            first,
            size=8 * self.buffer,
            read_energy=energy[0],
            write_energy=energy[1],
            split=parts,
        )
        fabric = replace(base.fabric, shape=self.array)
        return replace(base, fabric=fabric, levels=(level, *others))


def arrays(pes: int) -> list[tuple[int, int]]:
    """Return arrays of at most ``pes`` PEs, of at most half as many, a quarter, and so on.

    For each number, a side is a power of two and the other side is as long as possible. If the
    number is not a power of two, both sides may also be about equal. No side is shorter than
    `SMALLEST` nor longer than `STEEPEST` times the other side.
    """
    shapes: dict[tuple[int, int], None] = {}
    while pes >= SMALLEST**2:
        longest = isqrt(pes * STEEPEST)
        sides = [1 << n for n in range(longest.bit_length())]
        if pes & (pes - 1):
            sides.append(isqrt(pes))
        for side in sides:
            other = pes // side
            if min(side, other) >= SMALLEST and max(side, other) <= STEEPEST * min(side, other):
                shapes |= {(side, other): None, (other, side): None}
        pes //= 2
    return list(shapes)


def designs(base: Hardware, pes: int) -> list[Design]:
    """Return the designs of a search: arrays of at most ``pes`` PEs, and buffers near the base's.

    Raises:
        CostError: the base has no 2D array behind a buffer, or no design is possible.
    """
    size = base.levels[0].size
    if len(base.fabric.shape) != 2 or len(base.levels) not in (2, 3) or size is None:
        raise CostError(
            f"{base.name}: a search needs a 2D array, a buffer, perhaps an L2, and a memory",
            remedy="--hardware edge8x8, systolic32x32, systolic128x128 or a file like them",
        )
    if pes > MOST_PES:
        raise CostError(f"{pes} PEs: a search takes at most {MOST_PES}", remedy=f"--pes {MOST_PES}")
    candidates = []
    for array in arrays(pes):
        candidates += [Design(array, max(1, int(size // 8 * b))) for b in BUFFERS]
        candidates += [Design(array, size // 8, split) for split in SPLITS]
    if len(base.levels) > BUFFER_AND_MEMORY:
        candidates = [d for d in candidates if 8 * d.buffer < (base.levels[1].size or 0)]
    if not candidates:
        if not arrays(pes):
            problem = f"{base.name}, {pes} PEs: no array has sides from {SMALLEST} on"
            raise CostError(problem, remedy=f"--pes {SMALLEST**2} or more")
        raise CostError(
            f"{base.name}: no buffer of the search is smaller than the L2, {base.levels[1].name}",
            remedy="give a --hardware with a smaller first level, or a larger second one",
        )
    return candidates


def area(hardware: Hardware, scheme: Scheme) -> float:
    """Return the area in mm2 of multipliers, buffer and L2, without wires, control and DRAM."""
    table = technology()
    multipliers = hardware.peak * of_width(table.mac_area, scheme.compute)
    cells = sum(
        (level.size or 0) * table.memories[level.memory or "sram-45nm"].area
        for level in hardware.levels[:-1]
    )
    return (multipliers + cells) / SQUARE_MM


Case = tuple[Scheme, str, Design]


@dataclass(frozen=True)
class Point:
    """A design under a dataflow and a scheme, its figures for a phase, and its mapped products.

    Attributes:
        figures: the scheme's name, and the objectives.
        plans: tiles and orders of each product by the product's key.
        least: cycles and pJ that no tiles on the design fall below; None: unknown.
    """

    case: Case
    figures: Figures
    plans: Plans
    least: tuple[float, float] | None


def groups(phase: Phase) -> list[list[Item]]:
    """Return groups of products that share a mapping: single products, or attention's pair."""
    grouped: list[list[Item]] = []
    for item in phase.items:
        last = grouped[-1][-1].gemm.role if grouped else Role.PRODUCT
        if item.gemm.role is Role.VALUES and last is Role.SCORES:
            grouped[-1].append(item)
        else:
            grouped.append([item])
    return grouped


@dataclass(frozen=True)
class _Round:
    """A search of a phase's mappings in many cases.

    Attributes:
        widest: bits of the search's largest buffer.
        accuracy: measured perplexity by scheme.
        solved: the search of each product.
        slack: a case is left out if a point dominates its bound, even if latency and energy of the
            bound were better by this part.
    """

    phase: Phase
    base: Hardware
    widest: int
    accuracy: Accuracy
    solved: Solver
    slack: float

    def spread(self, pool: Pool, grouped: Iterable[Sequence[Case]]) -> list[Point]:
        """Return the points of groups of cases; a group knows the points of earlier groups."""
        found: list[Point] = []
        groups = iter(grouped)
        while together := [*islice(groups, WORKERS)]:
            known = _front(found)
            parts = pool.starmap(self.points, [(each, known) for each in together])
            found += chain.from_iterable(parts)
        return found

    def points(self, cases: Sequence[Case], known: Sequence[Figures]) -> list[Point]:
        """Return the fastest and the most frugal point of each case that may be on a front.

        Designs that differ only in their buffer come one after the other, since they share the
        cache of the search's candidates.
        """
        found: list[Point] = []
        for case in cases:
            found += self._of_case(case, [*known, *(point.figures for point in found)])
        return found

    def _of_case(self, case: Case, known: Sequence[Figures]) -> list[Point]:
        scheme, flow, design = case
        hardware = design.hardware(self.base)
        size = area(hardware, scheme) * self.phase.all_arrays

        def figures(cycles: float, energy: float) -> Figures:
            return _figures(scheme, cycles / self.base.clock, energy, size, self.accuracy)

        def mapped(solver: Solver) -> list[tuple[float, float, Plans]]:
            return [*_mapped(self.phase, hardware, flow, scheme, solver, self.widest)]

        if len(hardware.levels) == BUFFER_AND_MEMORY:
            ((*least, _),) = mapped(lower_bound)
            wished = _wished(figures(*least), self.slack + ROUNDING)
            if any(dominates(other, wished) for other in known):
                return []
        try:
            fast, frugal, *limits = mapped(self.solved)
        except NoRoomError:
            return []  # a larger buffer may hold a tile
        limit = limits[0][:2] if limits else None
        pair = (fast, frugal)
        return [Point(case, figures(*found), plans, limit) for *found, plans in pair]


def _of_array(case: Case) -> tuple[str, str, tuple[int, int]]:
    """Return scheme, dataflow and array of a case: with equal ones, only the buffer differs."""
    scheme, flow, design = case
    return scheme.name, flow, design.array


def _mapped(
    phase: Phase,
    hardware: Hardware,
    flow: str,
    scheme: Scheme,
    solved: Solver,
    widest: int,
) -> Iterator[tuple[float, float, Plans]]:
    """Yield for each solution of the products: cycles, pJ of all arrays, plans."""
    phase = chained(phase, hardware.levels[0], scheme)
    rows, columns = hardware.fabric.shape
    array = Systolic(flow, rows, columns, hardware.fabric.lanes, hardware.drains_whole)
    work = other_work(phase, hardware, scheme)
    lag = sum(level.latency - 1 for level in hardware.levels)
    grouped = groups(phase)
    found = [
        solved(tuple(_problem(i, items, scheme, hardware, array, widest) for i in items))
        for items in grouped
    ]
    further: Iterable[tuple[float, float, Plans]] = repeat((0.0, 0.0, {}))
    if phase.beside:
        further = _mapped(phase.beside, hardware, flow, scheme, solved, widest)
    for chosen, (slower, added, plans) in zip(zip(*found, strict=True), further, strict=False):
        cycles, energy, own = float(work.latency), work.energy, dict(plans)
        for items, best in zip(grouped, chosen, strict=True):
            cycles += items[0].count * (best.cycles + lag * len(items))
            energy += items[0].count * best.energy
            own |= {
                product_key(item): tuple(held.turned(n == 0) for held in best.holdings)
                for n, item in enumerate(items)
            }
        yield max(cycles, slower), energy * phase.arrays + added, own


def _problem(
    item: Item,
    together: Sequence[Item],
    scheme: Scheme,
    hardware: Hardware,
    array: Systolic,
    widest: int,
) -> Problem:
    """Return the search problem of a product, without names: equal products share a solution."""
    widths = effective_scheme(item.gemm, item_scheme(item, scheme))
    reserved = max(i.gemm.reserved for i in together)
    gemm = replace(item.gemm, name=item.gemm.role.value, reserved=reserved)
    return Problem(gemm, replace(widths, name="", cache=FLOAT16.cache), hardware, array, widest)


@contextmanager
def _workers() -> Iterator[Pool]:
    """Yield a pool of processes, which end with the block."""
    # The workers inherit the blocked signal: the search process alone gets Ctrl-C.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Under "forkserver" a worker's parent is the server, and end_with_parent kills the worker.
    context = multiprocessing.get_context("fork")
    pool = context.Pool(WORKERS, end_with_parent, (os.getpid(),))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with pool:
        yield pool


def search(
    phases: Sequence[Phase],
    base: Hardware,
    schemes: Sequence[Scheme],
    pes: int | None = None,
    accuracy: Accuracy | None = None,
) -> list[dict[str, Any]]:
    """Search for designs and mappings, and return the Pareto fronts of all phases.

    Args:
        phases: the work.
        base: accelerator whose memory system and clock all designs share.
        schemes: to choose from.
        pes: most PEs; None: as many as the base has.
        accuracy: measured perplexity of the model by scheme.

    Returns:
        Rows ``{phase, scheme, dataflow, array, latency_ms, energy_mj, area_mm2, perplexity,
        excess, mapping}``, of which no row dominates another row of its phase; perplexity is None
        if it was not measured. ``excess`` is the proved part by which latency and energy are at
        most above those of the best tiles on the same design; None with an L2.

    Raises:
        CostError: the base cannot be searched, a phase has no product, or a product fits no buffer.
    """
    for phase in phases:
        if not phase.items:
            problem = f"{phase.name}: has no product of matrices to search"
            raise CostError(problem, remedy="leave it out of --phase")
    accuracy = accuracy or {}
    listed = designs(base, base.fabric.pes if pes is None else pes)
    arrays = [list(group) for _, group in groupby(listed, lambda design: design.array)]
    widest = 8 * max(design.buffer for design in listed)
    finer = refined if len(base.levels) == BUFFER_AND_MEMORY else solve
    fronts: list[dict[str, Any]] = []
    with _workers() as pool:
        for phase in phases:
            first = _Round(phase, base, widest, accuracy, solve, NEAR)
            every = first.spread(pool, ([*product(schemes, FLOWS, group)] for group in arrays))
            cases = {p.case: None for p in _best(every, phase, base, NEAR)}
            grouped = groupby(sorted(cases, key=_of_array), _of_array)
            second = replace(first, solved=finer, slack=0.0)
            best = _best(second.spread(pool, ([*each] for _, each in grouped)), phase, base)
            calls = [(phase, base, *p.case, p.plans, accuracy, p.least) for p in best]
            # Neighbours share an array, and a worker's counts of its tiles.
            exact = pool.starmap(row, calls, chunksize=-(-len(calls) // (4 * WORKERS)))
            # The counting engine's figures may differ where those of the closed forms are equal.
            kept = [r for r in exact if not any(dominates(o, r) for o in exact)]
            fronts += sorted(kept, key=_in_order)
    return fronts


def _best(points: Sequence[Point], phase: Phase, base: Hardware, slack: float = 0.0) -> list[Point]:
    """Return the points of a phase that no other point dominates; of equal points, the first.

    With a ``slack``, also points that nothing would dominate if they were better by that part.

    Raises:
        CostError: no design fits.
    """
    if not points:
        raise CostError(
            f"{base.name}: no buffer of the search holds a tile of {phase.name}",
            remedy=LARGER,
        )
    front = _front(points)
    kept = []
    for point in points:
        wished = _wished(point.figures, slack)
        if not any(dominates(other, wished) for other in front):
            kept.append(point)
    return list({tuple(p.figures.values()): p for p in reversed(kept)}.values())


def _front(points: Sequence[Point]) -> list[Figures]:
    """Return the figures that no other figures dominate."""
    front: list[Figures] = []
    listed = [point.figures for point in points]
    for figures in sorted(listed, key=_in_order):
        if not any(dominates(other, figures) for other in front):
            front.append(figures)
    return front


def _in_order(figures: Figures) -> list[float]:
    """Return the objectives, by which figures are sorted; an unknown one is 0."""
    return [figures[objective] or 0 for objective in OBJECTIVES]


def _wished(figures: Figures, slack: float) -> Figures:
    """Return figures with latency and energy lower by the part ``slack``."""
    return {**figures, **{name: figures[name] * (1 - slack) for name in OBJECTIVES[:2]}}


def _figures(
    scheme: Scheme, seconds: float, energy: float, size: float, accuracy: Accuracy
) -> Figures:
    return {
        "scheme": scheme.name,
        "latency_ms": seconds * 1e3,
        "energy_mj": energy / 1e9,
        "area_mm2": size,
        "perplexity": accuracy.get(scheme.name),
    }


def dominates(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if a row is nowhere worse than another row, and somewhere better.

    Rows of different schemes are not compared unless both perplexities are known.
    """
    if None in (row["perplexity"], other["perplexity"]) and row["scheme"] != other["scheme"]:
        return False
    pairs = [(row[o], other[o]) for o in OBJECTIVES if row[o] is not None and other[o] is not None]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def row(
    phase: Phase,
    base: Hardware,
    scheme: Scheme,
    flow: str,
    design: Design,
    plans: Plans,
    accuracy: Accuracy,
    least: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a row of a front, estimated by the counting engine with the given mappings.

    ``least``: cycles and pJ that no tiles on the design fall below; None: they are computed.
    """
    hardware = design.hardware(base)
    estimate = phase_cost(phase, hardware, load_dataflow(flow), scheme, plans=plans)
    excess = None
    if len(hardware.levels) == BUFFER_AND_MEMORY:
        if least is None:
            *_, (cycles, energy, _) = _mapped(phase, hardware, flow, scheme, refined, 0)
            least = cycles, energy
        excess = {
            "latency_ms": max(estimate.latency / least[0] - 1, 0.0),
            "energy_mj": max(estimate.energy / least[1] - 1, 0.0) if least[1] else 0.0,
        }
    size = area(hardware, scheme) * phase.all_arrays
    seconds = estimate.latency / base.clock
    return {
        "phase": phase.name,
        "scheme": scheme.name,
        "dataflow": flow,
        "array": list(design.array),
        **_figures(scheme, seconds, estimate.energy, size, accuracy),
        "excess": excess,
        "mapping": {
            "hardware": base.name,
            "buffer_bytes": design.buffer,
            "split": list(design.split) if design.split else None,
            "products": {key: [each.record() for each in held] for key, held in plans.items()},
        },
    }
