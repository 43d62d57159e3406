# SPDX-License-Identifier: Apache-2.0
"""The search over accelerators, dataflows and mappings, and its Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import Scheme
from costmodel.accelerator.technology import technology
from costmodel.accuracy.measure import known
from costmodel.errors import CostError
from costmodel.estimate.gemm import Role, effective_scheme
from costmodel.estimate.model import item_scheme, other_work, phase_cost, product_key
from costmodel.estimate.tiling import BufferTile, Holding
from costmodel.estimate.workload import Item, Phase
from costmodel.search.products import Found, NoRoomError, Problem, beside, solve
from costmodel.search.systolic import FLOWS, Systolic

SHARES = (1, 4)  # of the PEs that may be built: all, a quarter
BUFFERS = (0.5, 1.0, 2.0)  # of the base's
STEEPEST = 16  # longer to shorter side of an array
SMALLEST = 4  # side of an array
WORKERS = 2
SQUARE_MM = 1e6  # square micrometres
OBJECTIVES = ("latency_ms", "energy_mj", "area_mm2", "perplexity")


@dataclass(frozen=True)
class Design:
    """An accelerator of the search: its array and the bytes of its buffer."""

    array: tuple[int, int]
    buffer: int

    def hardware(self, base: Hardware) -> Hardware:
        """The base with this array and buffer."""
        first, *others = base.levels
        energy = first.read_energy, first.write_energy
        if first.memory:
            energy = (technology().memories[first.memory].energy_of(self.buffer),) * 2
        level = replace(first, size=8 * self.buffer, read_energy=energy[0], write_energy=energy[1])
        fabric = replace(base.fabric, shape=self.array)
        return replace(base, fabric=fabric, levels=(level, *others))


def designs(base: Hardware, pes: int) -> list[Design]:
    """Arrays of at most so many PEs, and buffers about the base's.

    Raises:
        CostError: the base is not an array of two axes behind one buffer.
    """
    size = base.levels[0].size
    if len(base.fabric.shape) != 2 or len(base.levels) != 2 or size is None:
        raise CostError(
            f"{base.name}: a search needs an array of two axes, a buffer and a memory behind it",
            remedy="--hardware edge8x8, systolic32x32, systolic128x128 or a file like them",
        )
    found = []
    for share in SHARES:
        number = pes // share
        sides = [d for d in range(SMALLEST, number + 1) if number % d == 0]
        for rows in sides:
            columns = number // rows
            if columns >= SMALLEST and max(rows, columns) <= STEEPEST * min(rows, columns):
                found += [Design((rows, columns), int(size // 8 * b)) for b in BUFFERS]
    if not found:
        raise CostError(f"--pes {pes}: no array of sides from {SMALLEST} on")
    return found


def area(hardware: Hardware, scheme: Scheme) -> float:
    """Square millimetres of multipliers and buffer; wires, control and DRAM left out."""
    table, first = technology(), hardware.levels[0]
    multipliers = hardware.peak * table.area_of_mac(scheme.compute)
    cell = table.memories[first.memory or "sram-45nm"].area
    return (multipliers + (first.size or 0) * cell) / SQUARE_MM


@dataclass(frozen=True)
class Point:
    """A phase on a design under a dataflow and a scheme, each product mapped.

    Attributes:
        plans: tile and order of each product by its key.
    """

    phase: int
    scheme: str
    flow: str
    design: Design
    latency: float
    energy: float
    area: float
    plans: Mapping[str, Holding]


def groups(phase: Phase) -> list[list[Item]]:
    """Products that are mapped together: each alone, attention's two as one."""
    found: list[list[Item]] = []
    for item in phase.items:
        last = found[-1][-1].gemm.role if found else Role.PRODUCT
        if item.gemm.role is Role.VALUES and last is Role.SCORES:
            found[-1].append(item)
        else:
            found.append([item])
    return found


def _points(
    number: int, phase: Phase, base: Hardware, scheme: Scheme, listed: Sequence[Design]
) -> list[Point]:
    """Designs and dataflows of a phase under a scheme; those that cannot be best are left out."""
    found: list[Point] = []
    for design in listed:
        hardware = design.hardware(base)
        size = area(hardware, scheme)
        if any(_beats(p, _floor(phase, hardware, scheme), size) for p in found):
            continue
        for flow in FLOWS:
            try:
                chosen = list(_mapped(phase, hardware, flow, scheme))
            except NoRoomError:
                continue  # a larger buffer may do
            for cycles, energy, plans in chosen:
                place = (number, scheme.name, flow, design)
                found.append(Point(*place, cycles, energy, size, plans))
    return found


def _beats(point: Point, floor: tuple[float, float], size: float) -> bool:
    return point.latency <= floor[0] and point.energy <= floor[1] and point.area <= size


def _floor(phase: Phase, hardware: Hardware, scheme: Scheme) -> tuple[float, float]:
    """Lower bounds of a phase's cycles and pJ: the roofline with every bit moved once."""
    behind = hardware.levels[-1]
    work = other_work(phase, hardware, scheme)
    cycles, energy = float(work.latency), work.energy
    for item in phase.items:
        g, own = item.gemm, effective_scheme(item.gemm, item_scheme(item, scheme))
        read, write = own.weight_bits(g.k, g.n), g.m * g.n * own.output
        read += 0 if g.role is Role.VALUES else g.m * g.k * own.activation
        write = 0 if g.role is Role.SCORES else write
        bus = behind.cycles(g.batch * read, g.batch * write)
        cycles += item.count * max(g.macs / hardware.peak, float(bus))
        moved = g.batch * (read * behind.read_energy + write * behind.write_energy)
        energy += item.count * (moved + g.macs * hardware.mac(own.compute))
    return cycles, energy


def _mapped(
    phase: Phase, hardware: Hardware, flow: str, scheme: Scheme
) -> Iterator[tuple[float, float, dict[str, Holding]]]:
    """The fastest mappings of all products, then the most frugal: cycles, pJ, plans."""
    rows, columns = hardware.fabric.shape
    array = Systolic(flow, rows, columns, hardware.fabric.lanes)
    work = other_work(phase, hardware, scheme)
    lag = sum(level.latency - 1 for level in hardware.levels)
    sums = [[float(work.latency), work.energy], [float(work.latency), work.energy]]
    plans: list[dict[str, Holding]] = [{}, {}]
    for items in groups(phase):
        problems = tuple(
            Problem(
                replace(i.gemm, name=i.kind),
                effective_scheme(i.gemm, item_scheme(i, scheme)),
                hardware,
                array,
            )
            for i in items
        )
        for place, best in enumerate(solve(problems)):
            times = items[0].count
            sums[place][0] += times * (best.cycles + lag * len(items))
            sums[place][1] += times * best.energy
            plans[place] |= _plans(items, best)
    for (cycles, energy), own in zip(sums, plans, strict=True):
        yield cycles, energy, own


def _plans(items: Sequence[Item], best: Found) -> dict[str, Holding]:
    held = best.holding
    return {
        product_key(item): Holding(beside(held.tile, n == 0), held.order)
        for n, item in enumerate(items)
    }


def search(
    phases: Sequence[Phase],
    base: Hardware,
    schemes: Sequence[Scheme],
    pes: int | None = None,
    model: str = "",
) -> list[dict[str, Any]]:
    """Search, and give the Pareto fronts of all phases.

    Args:
        phases: the work.
        base: accelerator whose memory system and clock are kept.
        schemes: to choose from.
        pes: most PEs; the base's when left out.
        model: name under which its accuracy is known.

    Returns:
        Rows ``{phase, scheme, dataflow, array, latency_ms, energy_mj, area_mm2, perplexity,
        mapping}``, none of which is better in everything than another of its phase; perplexity is
        None where it was not measured.

    Raises:
        CostError: the base cannot be searched, or a product fits no buffer.
    """
    listed = designs(base, base.fabric.pes if pes is None else pes)
    jobs = [(n, phase, base, s, listed) for n, phase in enumerate(phases) for s in schemes]
    with ProcessPoolExecutor(WORKERS) as pool:
        points = [p for part in pool.map(_points, *zip(*jobs, strict=True)) for p in part]
    by_name = {s.name: s for s in schemes}
    fronts = []
    for number in range(len(phases)):
        own = [p for p in points if p.phase == number]
        if not own:
            raise CostError(
                f"{base.name}: no buffer of the search holds a tile of {phases[number].name}",
                remedy="give a --hardware with a larger first level",
            )
        rows = [(_figures(p, base, model), p) for p in own]
        kept = [(r, p) for r, p in rows if not any(dominates(o, r) for o, _ in rows)]
        kept = list({tuple(r.items()): (r, p) for r, p in kept}.values())
        exact = [
            row(phases[number], base, by_name[p.scheme], p.flow, p.design, p.plans, model)
            for _, p in kept
        ]
        fronts += sorted(exact, key=lambda r: r["latency_ms"])
    return fronts


def _figures(point: Point, base: Hardware, model: str) -> dict[str, Any]:
    return {
        "scheme": point.scheme,
        "latency_ms": point.latency / base.clock * 1e3,
        "energy_mj": point.energy / 1e9,
        "area_mm2": point.area,
        "perplexity": known(model).get(point.scheme),
    }


def dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether a row is nowhere worse than another, and somewhere better.

    Where a perplexity is not known, only rows of one scheme are compared.
    """
    if None in (one["perplexity"], other["perplexity"]) and one["scheme"] != other["scheme"]:
        return False
    pairs = [(one[o], other[o]) for o in OBJECTIVES if one[o] is not None and other[o] is not None]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def row(
    phase: Phase,
    base: Hardware,
    scheme: Scheme,
    flow: str,
    design: Design,
    plans: Mapping[str, Holding],
    model: str,
) -> dict[str, Any]:
    """A row of a front, estimated by the counting engine with these mappings."""
    hardware = design.hardware(base)
    held = {key: (plan,) for key, plan in plans.items()}
    total = phase_cost(phase, hardware, load_dataflow(flow), scheme, plans=held).total
    return {
        "phase": phase.name,
        "scheme": scheme.name,
        "dataflow": flow,
        "array": list(design.array),
        "latency_ms": total.latency / base.clock * 1e3,
        "energy_mj": total.energy / 1e9,
        "area_mm2": area(hardware, scheme),
        "perplexity": known(model).get(scheme.name),
        "mapping": {
            "hardware": base.name,
            "buffer_bytes": design.buffer,
            "products": {
                key: {"tile": list(vars(h.tile).values()), "order": list(h.order)}
                for key, h in plans.items()
            },
        },
    }


def again(
    found: Mapping[str, Any],
    phases: Sequence[Phase],
    base: Hardware,
    schemes: Mapping[str, Scheme],
    model: str,
) -> list[dict[str, Any]]:
    """Estimate the rows of a search's file anew.

    Raises:
        CostError: it is no such file, or of another model, phase or accelerator.
    """
    by_name = {p.name: p for p in phases}
    rows = []
    for number, old in enumerate(found.get("fronts", [])):
        try:
            mapping = old["mapping"]
            if mapping["hardware"] != base.name:
                raise CostError(
                    f"fronts[{number}] is of {mapping['hardware']}",
                    remedy=f"--hardware {mapping['hardware']}",
                )
            plans = {
                key: Holding(BufferTile(*plan["tile"]), tuple(plan["order"]))
                for key, plan in mapping["products"].items()
            }
            high, wide = old["array"]
            design = Design((high, wide), mapping["buffer_bytes"])
            phase, scheme = by_name[old["phase"]], schemes[old["scheme"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CostError(
                f"--mapping: fronts[{number}] does not fit: {error!r}",
                remedy="give the --phase and --bind of the search that wrote it",
            ) from error
        rows.append(row(phase, base, scheme, old["dataflow"], design, plans, model))
    return rows
