# SPDX-License-Identifier: Apache-2.0
"""The studies of docs/cost, made again by ``python -m crosslab cost --study docs/cost``.

With ``--of REPORT`` it is one study, of what a compiler has written of a model:
``nox -s zoo -- --family gpt2 --work docs/cost`` writes that of GPT-2, as MLC-LLM compiles it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crosslab.cost import inputs, plots
from crosslab.cost.model import PhaseCost, every_combination
from crosslab.cost.modules import model_workloads
from crosslab.cost.report import short, totals_record
from crosslab.cost.scheme import COMPARED, SCHEMES, schemes
from crosslab.cost.workload import Phase, bind_phase, read_workloads

COMMAND = "python -m crosslab cost --study docs/cost"
MODELS = {"gpt2": "GPT-2 (124M)", "smollm2": "SmolLM2-135M"}
ARRAYS = ("edge8x8", "systolic32x32", "systolic128x128")
FLOWS = ("output-stationary", "weight-stationary", "input-stationary")
PHASES = (("prefill", 512), ("decode", 1024))
CONTEXTS = (64, 128, 256, 512, 768, 1024)
DRAWN = ("float16", "int8-channel", "int4-g64")


def write_studies(folder: Path) -> None:
    """Write tables, CSV and figures of both shipped studies."""
    for model, title in MODELS.items():
        write_study(folder, model, title, model_workloads(model), COMMAND)


def write_report_study(folder: Path, report: Path, given: Mapping[str, int]) -> None:
    """Write the study of a compiled model, named like its report without ``.work.json``.

    Args:
        folder: where.
        report: of the extraction pass.
        given: sizes that the compiled model leaves open, as ``vocab_size``.

    Raises:
        UserError: it is no report of workloads.
    """
    name = report.name.removesuffix(".json").removesuffix(".work")
    bound = "".join(f" --bind {size}={value}" for size, value in sorted(given.items()))
    command = f"{COMMAND} --of docs/cost/{report.name}{bound}"
    title = f"{name}, as it is compiled"
    write_study(folder, name, title, read_workloads(report), command, given)


def write_study(
    folder: Path,
    name: str,
    title: str,
    report: Mapping[str, Any],
    command: str,
    given: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write tables, CSV and figures of one model.

    Args:
        folder: where; made when it is not there.
        name: of the files.
        title: of the page.
        report: the model's workloads.
        command: that makes the page again.
        given: sizes beside those of the phases.
    """
    folder.mkdir(parents=True, exist_ok=True)
    phases = [bind_phase(report, phase, size, given) for phase, size in PHASES]
    results = _combinations(phases, COMPARED)
    _write_csv(folder / f"{name}.csv", results)
    _write_tables(folder / f"{name}.md", title, command, phases, results)
    drawn = [r for r in results if r.scheme in DRAWN]
    plots.draw_latency(folder / name, drawn)
    plots.draw_roofline(folder / name, [r for r in drawn if r.dataflow.name == FLOWS[1]])
    steps = [bind_phase(report, "decode", context, given) for context in CONTEXTS]
    plots.draw_decode(folder / name, _combinations(steps, DRAWN, FLOWS[:2]))


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
    path: Path, title: str, command: str, phases: Sequence[Phase], results: Sequence[PhaseCost]
) -> None:
    lines = [
        f"# {title}: figures",
        "",
        f"Made by `{command}`; see [the page](README.md).",
        "",
    ]
    for phase in phases:
        lines += _work_table(phase)
        for heading, value in (
            ("Latency in milliseconds, the skew of the array hidden", _milliseconds),
            ("Latency in milliseconds, every tile filling and draining the array", _skewed),
            ("Energy in millijoules", _energy),
            ("Outer traffic in megabytes", _megabytes),
        ):
            lines += _scheme_table(f"{phase.name}: {heading}", phase, results, value)
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
