# SPDX-License-Identifier: Apache-2.0
"""Results as a terminal table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from costmodel.accelerator.tenet import TenetResult
from costmodel.estimate.array import OUTPUT
from costmodel.estimate.model import ItemCost, PhaseCost, Totals
from costmodel.estimate.product import GemmCost
from groundwork.files import atomic_write

GIGA = 1e9
FILE_WIDTH = 180


def console() -> Console:
    """Return a console that does not squeeze tables into 80 columns if the output is a file.

    Texts are printed as they are, since names of a user's files may look like markup.
    """
    width = None if sys.stdout.isatty() else FILE_WIDTH
    return Console(width=width, markup=False, emoji=False)


def gemm_record(cost: GemmCost) -> dict[str, Any]:
    """Return a GEMM's cost as plain data: cycles, elements, bits and pJ; volumes by tensor."""
    gemm = cost.gemm
    return {
        "gemm": gemm.name,
        "batch": gemm.batch,
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "hardware": cost.hardware,
        "dataflow": cost.dataflow,
        "scheme": cost.scheme,
        "macs": cost.macs,
        "T": cost.stamps,
        "loading": cost.loading,
        "utilisation": cost.utilisation,
        "active_pes": cost.active_pes,
        "busiest_pe": cost.busiest,
        "total": dict(cost.total),
        "unique": dict(cost.unique),
        "reuse": {t: cost.total[t] - cost.unique[t] for t in cost.total},
        "bits": dict(cost.widths),
        "partial_sums": cost.partial_sums,
        "in_delay": cost.in_delay,
        "out_delay": cost.out_delay,
        "compute_delay": cost.compute_delay,
        "delay": cost.delay,
        "latency": cost.latency,
        "waiting": cost.waiting,
        "bound": cost.bound,
        "bus": dict(cost.bus),
        "traffic": {
            t.level: {
                "read_bits": t.read,
                "write_bits": t.write,
                "filled_bits": t.filled,
                "drained_bits": t.drained,
                "required_bits_per_cycle": t.required,
                "achieved_bits_per_cycle": t.achieved,
            }
            for t in cost.traffic
        },
        "energy_pj": {**cost.energy, "sum": sum(cost.energy.values())},
        "rescales": cost.rescales,
        "tile": cost.tile and cost.tile._asdict(),
        "plan": {level: held.record() for level, held in cost.plan.items()},
        "roofline": {"macs_per_bit": cost.intensity, "attainable_macs_per_cycle": cost.attainable},
    }


def phase_record(phase: PhaseCost) -> dict[str, Any]:
    """Return a phase as plain data: all products, and sums by kind and by layer."""
    return {
        "phase": phase.phase.name,
        "function": phase.phase.entry,
        "sizes": dict(phase.phase.sizes),
        "arrays": phase.phase.all_arrays,
        "hardware": phase.hardware.name,
        "dataflow": phase.dataflow.name,
        "scheme": phase.scheme,
        "gemms": [_item_record(i) for i in phase.items],
        "others": [vars(o) for o in phase.phase.others],
        "unclassified": list(phase.phase.unclassified),
        "by_kind": {k: totals_record(t, phase) for k, t in phase.by_kind().items()},
        "by_layer": {k: totals_record(t, phase) for k, t in phase.by_layer().items()},
        "total": totals_record(phase.total, phase),
        "by_token": token_record(phase),
    }


def _item_record(item: ItemCost) -> dict[str, Any]:
    layer = {"kind": item.item.kind, "layer": item.item.layer, "count": item.item.count}
    return {**layer, **gemm_record(item.cost)}


def totals_record(totals: Totals, phase: PhaseCost) -> dict[str, Any]:
    """Return sums as plain data with derived figures: seconds, bandwidth at the outermost level."""
    cycles = max(totals.latency, 1)
    return {
        "macs": totals.macs,
        "T": totals.stamps,
        "compute_delay": totals.compute,
        "latency": totals.latency,
        "seconds": totals.latency / phase.hardware.clock,
        "outer_bits": totals.bits,
        "achieved_bits_per_cycle": totals.bits / cycles,
        "energy_pj": totals.energy,
        "rescales": totals.rescales,
        "link_bits": totals.link_bits,
        "utilisation": totals.macs / (cycles * phase.hardware.peak),
    }


def tenet_record(result: TenetResult) -> dict[str, Any]:
    """Return a TENET experiment's figures as plain data."""
    volumes = result.volumes
    return {
        "experiment": result.name,
        "T": volumes.occupancy.stamps,
        "macs": volumes.occupancy.instances,
        "active_pes": volumes.occupancy.active_pes,
        "average_active_pes": result.average_active,
        "total": dict(volumes.total),
        "unique": dict(volumes.unique),
        "reuse": {t: volumes.total[t] - volumes.unique[t] for t in volumes.total},
        "in_delay": result.in_delay,
        "out_delay": result.out_delay,
        "compute_delay": result.compute_delay,
        "delay": result.delay,
        "energy_macs": result.energy,
    }


def write_csv(path: Path, phases: Sequence[PhaseCost]) -> None:
    """Write a CSV row for each kind of layer of each phase, and for the phase's total."""
    rows = [
        {
            "phase": phase.phase.name,
            "hardware": phase.hardware.name,
            "dataflow": phase.dataflow.name,
            "scheme": phase.scheme,
            "kind": kind,
            **totals_record(totals, phase),
        }
        for phase in phases
        for kind, totals in [*phase.by_kind().items(), ("total", phase.total)]
    ]
    _write_rows(path, rows)


def write_fronts(path: Path, fronts: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV row for each design of a search; its mapping is a text with all products."""
    rows = []
    for row in fronts:
        excess = row["excess"] or dict.fromkeys(("latency_ms", "energy_mj"))
        products = (
            f"{name}: tile {crossed(held['tile'])}, loops {' '.join(held['order'])}"
            for name, plan in row["mapping"]["products"].items()
            for held in plan
        )
        written = {
            **row,
            "array": crossed(row["array"]),
            "buffer_kib": _buffer(row),
            **{f"{objective}_excess": part for objective, part in excess.items()},
            "mapping": "; ".join(products),
        }
        del written["excess"]
        rows.append(written)
    _write_rows(path, rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file of rows with the same columns."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic_write(path, stream.getvalue())


def crossed(sides: Sequence[int]) -> str:
    """Return sides as text, such as 8x16."""
    return "x".join(map(str, sides))


def _buffer(row: Mapping[str, Any]) -> str:
    """Return the buffer's size in KiB, and the eighths of A, B and C if the buffer is split."""
    split = row["mapping"]["split"]
    size = f"{row['mapping']['buffer_bytes'] / 1024:.15g}"
    return f"{size}, split {':'.join(map(str, split))}" if split else size


def titled(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return a table with columns of words, then of numbers."""
    table = Table(title=title, title_justify="left")
    for column in (*words, *numbers):
        table.add_column(column, justify="left" if column in words else "right")
    return table


def show_phase(console: Console, phase: PhaseCost) -> None:
    """Print a phase by kind of layer."""
    head = f"{phase.phase.name} on {phase.hardware.name}, {phase.dataflow.name}, {phase.scheme}"
    if phase.phase.all_arrays > 1:
        head += f", the busiest of {phase.phase.all_arrays} arrays"
    numbers = ("MACs", "array", "compute", "latency", "share", "outer bit", "mJ")
    table = titled(head, ("layer kind",), numbers)
    whole = max(phase.total.latency, 1)
    for kind, totals in [*phase.by_kind().items(), ("total", phase.total)]:
        if kind == "total":
            table.add_section()
        table.add_row(
            kind,
            short(totals.macs),
            short(totals.stamps),
            short(totals.compute),
            short(totals.latency),
            f"{totals.latency / whole:.1%}",
            short(totals.bits),
            short(totals.energy / GIGA),
        )
    console.print(table)
    for text in phase.phase.unclassified:
        console.print(f"not counted: {text}", style="yellow")


def short(value: float) -> str:
    """Format a number with four digits and a prefix: 12.34 M."""
    for limit, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.4g}{prefix}"
    return f"{value:.4g}"


def show_gemm(console: Console, cost: GemmCost) -> None:
    """Print all figures of a GEMM."""
    gemm = cost.gemm
    console.print(
        f"{gemm.batch} x {gemm.m} x {gemm.n} x {gemm.k} on {cost.hardware}, "
        f"{cost.dataflow}, {cost.scheme}: {cost.macs:,} MACs, |T| {cost.stamps:,}, "
        f"loading {cost.loading:,}, "
        f"utilisation {cost.utilisation:.1%}"
    )
    console.print(
        f"  cycles: in {cost.in_delay:,}  out {cost.out_delay:,}  compute "
        f"{cost.compute_delay:,}  delay {cost.delay:,}  latency {cost.latency:,} "
        f"(limited by {cost.bound})"
    )
    busy = "".join(f"  {name} {cycles:,.0f}" for name, cycles in cost.bus.items())
    console.print(f"  busy: array {cost.array:,}{busy}")
    volumes = Table("tensor", "bits", "total", "unique", "reuse")
    for name, total in cost.total.items():
        unique = cost.unique[name]
        row = (cost.widths[name], total, unique, total - unique)
        volumes.add_row(name, *(f"{v:,}" for v in row))
    console.print(volumes)
    traffic = Table("level", "read bit", "write bit", "needed bit/cycle", "reached bit/cycle", "uJ")
    for level in cost.traffic:
        traffic.add_row(
            level.level,
            f"{level.read:,}",
            f"{level.write:,}",
            f"{level.required:,.1f}",
            f"{level.achieved:,.1f}",
            f"{cost.energy[level.level] / 1e6:,.3f}",
        )
    console.print(traffic)
    for level in cost.traffic[:-1]:
        console.print(
            f"  {level.level}: {level.filled:,} bits of the writes fill it from the level behind, "
            f"{level.drained:,} of the reads drain it"
        )
    if cost.partial_sums:
        console.print(f"  {cost.partial_sums:,} elements of {OUTPUT} leave the array unfinished")


def token_record(phase: PhaseCost) -> dict[str, float]:
    """Return a phase by token: milliseconds of the phase, tokens a second, mJ and bytes a token."""
    tokens = phase.phase.tokens
    seconds = max(phase.latency, 1) / phase.hardware.clock
    return {
        "ms": seconds * 1e3,
        "tokens_per_second": tokens / seconds,
        "mj_per_token": phase.energy / GIGA / tokens,
        "bytes_per_token": phase.bits / 8 / tokens,
    }


def show_comparison(console: Console, phases: Sequence[PhaseCost]) -> None:
    """Print a table with a line for each phase, accelerator, dataflow and scheme."""
    words = ("phase", "hardware", "dataflow", "scheme")
    table = titled("by token", words, ("ms", "tokens/s", "mJ/token", "bytes/token"))
    for p in phases:
        figures = [short(v) for v in token_record(p).values()]
        table.add_row(p.phase.name, p.hardware.name, p.dataflow.name, p.scheme, *figures)
    console.print(table)


def show_fronts(
    console: Console, fronts: Sequence[Mapping[str, Any]], most: float | None = None
) -> None:
    """Print the best design of each phase for each objective, and its mapping of each product.

    Args:
        console: console to print to.
        fronts: rows of a search.
        most: highest perplexity of the printed designs; None: any.
    """
    words = ("phase", "least", "scheme", "dataflow", "array", "buffer, KiB")
    numbers = ("ms", "mJ", "mm2", "perplexity", "above the best tiles")
    table = titled("the best of the fronts", words, numbers)
    objectives = {
        "latency": ("latency_ms",),
        "energy": ("energy_mj",),
        "area": ("area_mm2",),
        "latency x energy": ("latency_ms", "energy_mj"),
        "latency x energy x area": ("latency_ms", "energy_mj", "area_mm2"),
    }
    shown: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for phase in dict.fromkeys(r["phase"] for r in fronts):
        rows = [r for r in fronts if r["phase"] == phase and _within(r, most)]
        for name, keys in objectives.items() if rows else ():
            # Of equal rows the one with the least product of all three is shown.
            ranks = keys, ("latency_ms", "energy_mj", "area_mm2")
            best = min(rows, key=lambda row: [prod(row[key] for key in each) for each in ranks])
            excess = [part for key, part in (best["excess"] or {}).items() if (key,) == keys]
            titles = shown.get(id(best), ("", best))[0]
            shown[id(best)] = (f"{titles}, {name}" if titles else f"{phase}, least {name}", best)
            table.add_row(
                *(phase, name, best["scheme"], best["dataflow"]),
                *(crossed(best["array"]), _buffer(best)),
                *(short(best[n]) for n in ("latency_ms", "energy_mj", "area_mm2")),
                "-" if best["perplexity"] is None else f"{best['perplexity']:.4g}",
                "".join(f"at most {part:.1%}" for part in excess),
            )
    console.print(table)
    for title, row in shown.values():
        mapping = Table("product", "tile M,N,K", "loops over tiles", title=title)
        mapping.title_justify = "left"
        for name, plan in row["mapping"]["products"].items():
            for held in plan:
                mapping.add_row(name, ",".join(map(str, held["tile"])), " ".join(held["order"]))
        console.print(mapping)
    console.print(f"  {len(fronts)} designs on the fronts")
    over = dict.fromkeys(r["scheme"] for r in fronts if not _within(r, most))
    if over:
        console.print(
            f"  not among the best, as their perplexity is above {most:.4g} or not measured: "
            f"{', '.join(over)}; --max-perplexity allows more",
            soft_wrap=True,
        )


def _within(row: Mapping[str, Any], most: float | None) -> bool:
    return most is None or (row["perplexity"] is not None and row["perplexity"] <= most)


def show_tenet(console: Console, result: TenetResult) -> None:
    """Print a TENET experiment's figures."""
    record = tenet_record(result)
    table = Table("tensor", "total", "unique", "reuse", title=result.name, title_justify="left")
    for name, total in record["total"].items():
        unique = record["unique"][name]
        table.add_row(name, f"{total:,}", f"{unique:,}", f"{total - unique:,}")
    console.print(table)
    console.print(
        f"  |T| {record['T']:,}  in {result.in_delay:,}  out {result.out_delay:,}  compute "
        f"{result.compute_delay:,}  delay {result.delay:,}  active PEs {record['active_pes']} "
        f"(average {result.average_active:.2f})"
    )
