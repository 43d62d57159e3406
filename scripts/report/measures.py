# SPDX-License-Identifier: Apache-2.0
"""The sections about measurements: the answer, the ladder of speed, families, artefacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report.blocks import (
    NONE,
    Cell,
    Content,
    Figure,
    Status,
    Table,
    code,
    distinct,
    number,
    scientific,
    text,
    verdict,
)
from report.evidence import Evidence
from report.plots import bars

MILLION = 1e6
OURS = "ours"
NO_PEER = "missing: nox -s bench -- --peer llama.cpp"


def answer(evidence: Evidence) -> Content:
    """Return the facts of the main job's answer, checked against the reference."""
    job = evidence.first
    counters = job["counters"]
    facts = [
        ("model", text(f"{job['model']}, {job['quantization']}, {job['target']}")),
        ("compiled by", text(job["path"])),
        ("prompt", text(job["prompt"])),
        ("answer", text(job["text"])),
        (
            "tokens",
            verdict(job["right"], "right by the reference", "wrong")
            if job["checked"]
            else text("not compared", Status.NOTE),
        ),
        ("largest logit error", scientific(job["max_logit_error"])),
        ("prefill", _instructions(counters["prefill"], "instructions")),
        ("decode", _instructions(counters["decode_per_token"], "a token")),
    ]
    return Content(facts=facts)


def _instructions(counts: Mapping[str, int] | None, unit: str) -> Cell:
    """Return the cell of a phase's instructions; without counts, "not counted"."""
    return text(f"{counts['insns'] / MILLION:.1f} M {unit}" if counts else "not counted")


STEP_HEADS = ("step", "all", "weighted by LMUL", "cycles", "first / this", "source")


def ladder(evidence: Evidence) -> Content:
    """Return the steps from upstream to ours and the peer: guest instructions, cycles of a core."""
    peers = distinct(row["variant"] for row in evidence.first if _mark(row) == "peer")
    facts = [("peer", text(", ".join(peers)) if peers else text(NO_PEER, Status.NOTE))]
    groups = distinct(_group(row) for row in evidence.first)
    tables, figures = [], []
    for name in groups:
        rows = [row for row in evidence.first if _group(row) == name]
        tables.append(Table(name, STEP_HEADS, _steps(rows)))
        labels = [_label(row) for row in rows]
        values = [row["insns"] / MILLION for row in rows]
        drawing = bars(labels, values, "M guest instructions", [_mark(row) for row in rows], name)
        figures.append(Figure(drawing, name, _words(labels, values)))
    return Content(facts, tables, figures)


def _group(row: Mapping[str, Any]) -> str:
    """Return the heading of a row's measurements: model, phase, and conditions."""
    after = f" after {row['prompt']}" if row.get("prompt") else ""
    phase = f"prefill {row['tokens']}" if row["phase"] == "prefill" else f"decode{after}, a token"
    threads = f", {row['threads']} threads" if row["threads"] != 1 else ""
    alone = ", products of linear layers alone" if row.get("layers") == "products" else ""
    return f"{row['model']}, {row['quantization']}, VLEN {row['vlen']}, {phase}{threads}{alone}"


def _label(row: Mapping[str, Any]) -> str:
    """Return the label of a row's variant."""
    shipped = ", as shipped" if row.get("layers") == "as shipped" else ""
    return f"{row['variant']}{shipped}"


def _mark(row: Mapping[str, Any]) -> str:
    """Return the mark of a row: ``ours``, ``peer`` or ``step``."""
    if row["variant"] == OURS:
        return "ours"
    return "peer" if row.get("layers") else "step"


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """Return the cells of the ladder's steps."""
    first = rows[0]["insns"]
    table = []
    for row in rows:
        weighted = row.get("lmul_weighted")
        table.append(
            [
                text(_label(row)),
                number(row["insns"] / MILLION),
                number(weighted / MILLION if weighted else None),
                text(_cycles(row)),
                Cell(f"{first / row['insns']:.1f} x", number=True),
                text(row.get("source", NONE)),
            ]
        )
    return table


def _cycles(row: Mapping[str, Any]) -> str:
    """Return the cycles of a core in millions, as text."""
    if not row.get("core"):
        return NONE
    serial, vec_serial = row["cycles_serial"] / MILLION, row["cycles_vec_serial"] / MILLION
    sums = f"{serial:.2f} / {vec_serial:.2f} on {row['core']}"
    if pipeline := row.get("cycles_pipeline"):
        return f"{pipeline / MILLION:.2f} ({sums})"
    return sums


def _words(labels: Sequence[str], values: Sequence[float]) -> str:
    """Return the values of a drawing as text."""
    return ", ".join(f"{label} {value:.3g} M" for label, value in zip(labels, values, strict=True))


def host(evidence: Evidence) -> Content:
    """Return a table of wall times on the host, and upstream's time divided by each."""
    rows = [
        [
            text(f"{row['phase']} {row['tokens']}"),
            text(row["variant"]),
            number(row["threads"], 0),
            number(row["seconds"] * 1e3, 1),
            Cell(f"{row['ratio']:.2f} x" if row.get("ratio") else NONE, number=True),
        ]
        for row in evidence.first
    ]
    heads = ("phase", "variant", "threads", "milliseconds", "upstream / this")
    return Content(tables=[Table("Wall time", heads, rows)])


def families(evidence: Evidence) -> Content:
    """Return the architectures that compile, with their answers' verdict and use of kernels."""
    rows = []
    for row in evidence.first:
        right = row["outcome"] == "right"
        real = f", {row['layers']} layers of real size" if row.get("layers") else ""
        rows.append(
            [
                text(row["family"] + real),
                text(row["quantization"]),
                text(row["outcome"], Status.GOOD if right else Status.BAD),
                scientific(row["max_logit_error"]),
                Cell(f"{row['tensorized']} of {row['total']}", number=True),
                text(row["reason"] or ""),
            ]
        )
    heads = (
        "family",
        "quantization",
        "outcome",
        "logit error",
        "GEMM blocks with kernels",
        "reason",
    )
    return Content(tables=[Table("Families", heads, rows)])


def cost(evidence: Evidence) -> Content:
    """Return a table of totals for each study of the cost model."""
    tables = [_study(Path(name).stem, rows) for name, rows in evidence.found.items()]
    return Content(tables=tables)


def _study(name: str, records: Sequence[Mapping[str, str]]) -> Table:
    """Return the table of a study's totals."""
    keys = ("phase", "hardware", "dataflow", "scheme")
    rows = [
        [
            *(text(record[key]) for key in keys),
            number(float(record["seconds"]) * 1e3, 3),
            number(float(record["energy_pj"]) / 1e9, 3),
        ]
        for record in records
        if record["kind"] == "total"
    ]
    return Table(name, (*keys, "latency, ms", "energy, mJ"), rows)


def artefacts(evidence: Evidence) -> Content:
    """Return the built files with their digests."""
    tables = []
    for path, manifest in evidence.found.items():
        rows = [
            [code(entry["path"]), number(entry["bytes"], 0), code(entry["sha256"])]
            for entry in manifest["files"]
        ]
        folder = path.removeprefix("dist/").removesuffix("/MANIFEST.json")
        name = f"{folder}, verdict on its answer: {manifest.get('verdict', 'unknown')}"
        tables.append(Table(name, ("file", "bytes", "sha256"), rows))
    return Content(tables=tables)
