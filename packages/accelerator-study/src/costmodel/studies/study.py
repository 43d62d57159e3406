# SPDX-License-Identifier: Apache-2.0
"""Studies of models on every array, dataflow and scheme: a page, a CSV and figures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.accelerator import inputs
from costmodel.accelerator.scheme import COMPARED, SCHEMES, schemes
from costmodel.estimate.model import PhaseCost, every_combination
from costmodel.estimate.workload import Phase, bind_phase, model_name
from costmodel.studies import plots
from costmodel.studies.report import short, totals_record, write_rows
from groundwork.files import atomic_write

COMMAND = "nox -s cost -- --study packages/accelerator-study/docs/cost --of"
MODELS = {"gpt2": "GPT-2 (124M)", "smollm2": "SmolLM2-135M"}
# Models that are studied from a config.json.
CONFIGURED = {"llama2-7b": "packages/accelerator-study/tests/costmodel/data/llama2-7b.json"}
ARRAYS = ("edge8x8", "systolic32x32", "systolic128x128")
FLOWS = ("output-stationary", "weight-stationary", "input-stationary")
PHASES = (("prefill", 512), ("decode", 1024))
CONTEXTS = (64, 128, 256, 512, 768, 1024)
DRAWN = ("float16", "int8-channel", "int4-g64")


def write_study(
    folder: Path,
    work: Path,
    report: Mapping[str, Any],
    given: Mapping[str, int],
    data: Path | None = None,
) -> None:
    """Write the study of a model to files with the model's name.

    Args:
        folder: of the page and its picture; made if missing.
        work: path of the model's work file, for its name.
        report: the content of the work file.
        given: values of the model's open sizes, such as ``vocab_size``.
        data: folder of the CSV and of further figures; None: write neither.

    Raises:
        CostError: the work file lacks a phase, or has further open sizes.
    """
    name = model_name(work)
    if name in CONFIGURED:
        title, source = name, CONFIGURED[name]
    elif name in MODELS:
        title, source = MODELS[name], name
    else:
        bound = "".join(f" --bind {size}={value}" for size, value in sorted(given.items()))
        title, source = f"{name}, as it is compiled", f"out/cost/{work.name}{bound}"
    phases = [bind_phase(report, phase, size, given) for phase, size in PHASES]
    results = _combinations(phases, COMPARED)
    drawn = [r for r in results if r.scheme in DRAWN]
    page = _page(name, title, f"{COMMAND} {source}", phases, results)
    atomic_write(folder / f"{name}.md", page)
    plots.save(folder / f"{name}.png", plots.latency, drawn, comment=digest(page))
    if data is not None:
        write_rows(data / f"{name}.csv", _rows(results))
        stationary = [r for r in drawn if r.dataflow.name == FLOWS[1]]
        plots.save(data / f"{name}-roofline.png", plots.roofline, stationary)
        steps = [bind_phase(report, "decode", context, given) for context in CONTEXTS]
        through = _combinations(steps, DRAWN, FLOWS[:2])
        plots.save(data / f"{name}-decode_bandwidth.png", plots.decode_bandwidth, through)


def _combinations(
    phases: Sequence[Phase], names: Sequence[str], flows: Sequence[str] = FLOWS
) -> list[PhaseCost]:
    return every_combination(
        phases,
        inputs.hardware_by_names(ARRAYS),
        inputs.dataflows_by_names(flows, {}),
        schemes(names),
    )


def _rows(results: Sequence[PhaseCost]) -> list[dict[str, Any]]:
    return [
        {
            "phase": r.phase.name,
            "hardware": r.hardware.name,
            "dataflow": r.dataflow.name,
            "scheme": r.scheme,
            "kind": kind,
            **totals_record(totals, r),
        }
        for r in results
        for kind, totals in [*r.by_kind().items(), ("total", r.total)]
    ]


def digest(page: str) -> str:
    """Return the SHA-256 of a page; its picture contains it, to show that both match."""
    return hashlib.sha256(page.encode()).hexdigest()


def _page(
    name: str, title: str, command: str, phases: Sequence[Phase], results: Sequence[PhaseCost]
) -> str:
    lines = [
        f"# {title}: figures",
        "",
        f"Made by `{command}`; [README.md](README.md) explains the figures.",
        "",
        f"![Latency by kind of layer]({name}.png)",
        "",
    ]
    for phase in phases:
        lines += _work_table(phase)
        for heading, value in (
            ("Latency in milliseconds", _milliseconds),
            ("Energy in millijoules", _energy),
            ("Outer traffic in megabytes", _megabytes),
        ):
            lines += _scheme_table(f"{phase.name}: {heading}", phase, results, value)
    return "\n".join(lines) + "\n"


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
            by_scheme = {
                r.scheme: r
                for r in results
                if (r.phase.name, r.hardware.name, r.dataflow.name) == (phase.name, array, flow)
            }
            cells = " | ".join(f"{value(by_scheme[n]):.4g}" for n in names)
            lines.append(f"| {array} | {flow} | {cells} |")
    return [*lines, ""]


def _milliseconds(result: PhaseCost) -> float:
    return result.total.latency / result.hardware.clock * 1e3


def _energy(result: PhaseCost) -> float:
    return result.total.energy / 1e9


def _megabytes(result: PhaseCost) -> float:
    return result.total.bits / 8e6
