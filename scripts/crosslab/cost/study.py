# SPDX-License-Identifier: Apache-2.0
"""The studies of docs/cost, made again by ``python -m crosslab cost --study docs/cost``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from crosslab.cost import inputs, plots
from crosslab.cost.model import PhaseCost, every_combination
from crosslab.cost.report import short, totals_record
from crosslab.cost.scheme import COMPARED, SCHEMES, schemes
from crosslab.cost.workload import Phase, bind_phase
from crosslab.cost.zoo import model_workloads

MODELS = {"gpt2": "GPT-2 (124M)", "smollm2": "SmolLM2-135M"}
ARRAYS = ("edge8x8", "systolic32x32", "systolic128x128")
FLOWS = ("output-stationary", "weight-stationary", "input-stationary")
PHASES = (("prefill", 512), ("decode", 1024))
CONTEXTS = (64, 128, 256, 512, 768, 1024)
DRAWN = ("float16", "int8-channel", "int4-g64")


def write_studies(folder: Path) -> None:
    """Write tables, CSV and figures of both studies."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        report = model_workloads(model)
        phases = [bind_phase(report, name, size, {}) for name, size in PHASES]
        results = _combinations(phases, COMPARED)
        _write_csv(folder / f"{model}.csv", results)
        _write_tables(folder / f"{model}.md", model, phases, results)
        drawn = [r for r in results if r.scheme in DRAWN]
        plots.draw_latency(folder / model, drawn)
        plots.draw_roofline(folder / model, [r for r in drawn if r.dataflow.name == FLOWS[1]])
        steps = [bind_phase(report, "decode", context, {}) for context in CONTEXTS]
        plots.draw_decode(folder / model, _combinations(steps, DRAWN, FLOWS[:2]))


def _combinations(
    phases: Sequence[Phase], names: Sequence[str], flows: Sequence[str] = FLOWS
) -> list[PhaseCost]:
    return every_combination(
        phases,
        inputs.hardware_by_names(ARRAYS),
        inputs.dataflows_by_names(flows, {}),
        schemes(names),
    )


def _write_csv(path: Path, results: Sequence[PhaseCost]) -> None:
    rows = []
    for r in results:
        where = {"phase": r.phase.name, "hardware": r.hardware.name}
        flow = {"dataflow": r.dataflow.name, "scheme": r.scheme}
        for kind, totals in [*r.by_kind().items(), ("total", r.total)]:
            rows.append({**where, **flow, "kind": kind, **totals_record(totals, r)})
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_tables(
    path: Path, model: str, phases: Sequence[Phase], results: Sequence[PhaseCost]
) -> None:
    lines = [
        f"# {MODELS[model]}: figures",
        "",
        "Made by `python -m crosslab cost --study docs/cost`; see [the page](README.md).",
        "",
    ]
    for phase in phases:
        lines += _work_table(phase)
        for title, value in (
            ("Latency in milliseconds, the skew of the array hidden", _milliseconds),
            ("Latency in milliseconds, every tile filling and draining the array", _skewed),
            ("Energy in millijoules", _energy),
            ("Outer traffic in megabytes", _megabytes),
        ):
            lines += _scheme_table(f"{phase.name}: {title}", phase, results, value)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _work_table(phase: Phase) -> list[str]:
    lines = [f"## {phase.name}", "", "| layer kind | count | batch x M x N x K | MACs |"]
    lines.append("|---|---:|---|---:|")
    kinds: dict[tuple[str, str], list[int]] = {}
    for item in phase.items:
        g = item.gemm
        row = kinds.setdefault((item.kind, f"{g.batch} x {g.m} x {g.n} x {g.k}"), [0, 0])
        row[0] += item.count
        row[1] += item.count * g.macs
    lines += [f"| {k} | {n} | {e} | {short(m)} |" for (k, e), (n, m) in kinds.items()]
    elements = sum(o.elements * o.count for o in phase.others)
    lines += [f"| other work | | {short(elements)} elements | |", ""]
    return lines


def _scheme_table(
    title: str,
    phase: Phase,
    results: Sequence[PhaseCost],
    value: Callable[[PhaseCost], float],
) -> list[str]:
    names = [n for n in COMPARED if n in SCHEMES]
    lines = [f"**{title}**", "", f"| array | dataflow | {' | '.join(names)} |"]
    lines.append(f"|---|---|{'---:|' * len(names)}")
    for array in ARRAYS:
        for flow in FLOWS:
            own = {
                r.scheme: r
                for r in results
                if (r.phase.name, r.hardware.name, r.dataflow.name) == (phase.name, array, flow)
            }
            cells = " | ".join(f"{value(own[n]):.4g}" for n in names)
            lines.append(f"| {array} | {flow} | {cells} |")
    return [*lines, ""]


def _milliseconds(result: PhaseCost) -> float:
    return result.total.latency / result.hardware.clock * 1e3


def _skewed(result: PhaseCost) -> float:
    return result.total.skewed / result.hardware.clock * 1e3


def _energy(result: PhaseCost) -> float:
    return result.total.energy / 1e9


def _megabytes(result: PhaseCost) -> float:
    return result.total.bits / 8e6
