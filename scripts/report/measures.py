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


def answer(found: Evidence) -> Content:
    """The main job's answer, checked against the reference."""
    job = found.first
    counters = job["counters"]
    facts = [
        ("model", text(f"{job['model']}, {job['quantization']}, {job['target']}")),
        ("compiled by", text(job["path"])),
        ("prompt", text(job["prompt"])),
        ("answer", text(job["text"])),
        (
            "tokens",
            verdict(
                job["tokens"] == job["reference_tokens"],
                "equal to the reference's",
                "differ from the reference's",
            ),
        ),
        ("largest logit error", scientific(job["max_logit_error"])),
        ("prefill", _instructions(counters["prefill"], "instructions")),
        ("decode", _instructions(counters["decode_per_token"], "a token")),
    ]
    return Content(facts=facts)


def _instructions(counts: Mapping[str, int] | None, unit: str) -> Cell:
    """Instructions of a phase; missing if the emulator has no plugins or no step was decoded."""
    return text(f"{counts['insns'] / MILLION:.1f} M {unit}" if counts else "not counted")


STEP_HEADS = ("step", "all", "weighted by LMUL", "cycles", "first / this", "source")


def ladder(found: Evidence) -> Content:
    """Guest instructions, and cycles of a core, from upstream to ours, and of the run's peer."""
    peers = distinct(row["variant"] for row in found.first if _mark(row) == "peer")
    facts = [("peer", text(", ".join(peers)) if peers else text(NO_PEER, Status.NOTE))]
    groups = distinct(_group(row) for row in found.first)
    tables, figures = [], []
    for name in groups:
        rows = [row for row in found.first if _group(row) == name]
        tables.append(Table(name, STEP_HEADS, _steps(rows)))
        labels = [_label(row) for row in rows]
        values = [row["insns"] / MILLION for row in rows]
        drawing = bars(labels, values, "M guest instructions", [_mark(row) for row in rows], name)
        figures.append(Figure(drawing, name, _words(labels, values)))
    return Content(facts, tables, figures)


def _group(row: Mapping[str, Any]) -> str:
    after = f" after {row['prompt']}" if row.get("prompt") else ""
    phase = f"prefill {row['tokens']}" if row["phase"] == "prefill" else f"decode{after}, a token"
    threads = f", {row['threads']} threads" if row["threads"] != 1 else ""
    alone = ", products of linear layers alone" if row.get("layers") == "products" else ""
    return f"{row['model']}, {row['quantization']}, VLEN {row['vlen']}, {phase}{threads}{alone}"


def _label(row: Mapping[str, Any]) -> str:
    shipped = ", as shipped" if row.get("layers") == "as shipped" else ""
    return f"{row['variant']}{shipped}"


def _mark(row: Mapping[str, Any]) -> str:
    if row["variant"] == OURS:
        return "ours"
    return "peer" if row.get("layers") else "step"


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
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
    if not row.get("core"):
        return NONE
    serial, vec_serial = row["cycles_serial"] / MILLION, row["cycles_vec_serial"] / MILLION
    sums = f"{serial:.2f} / {vec_serial:.2f} on {row['core']}"
    if pipeline := row.get("cycles_pipeline"):
        return f"{pipeline / MILLION:.2f} ({sums})"
    return sums


def _words(labels: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{label} {value:.3g} M" for label, value in zip(labels, values, strict=True))


def host(found: Evidence) -> Content:
    """Wall time of upstream over ours on the machine that compiled."""
    rows = [
        [
            text(f"{row['phase']} {row['tokens']}"),
            text(row["variant"]),
            number(row["threads"], 0),
            number(row["seconds"] * 1e3, 1),
            Cell(f"{row['ratio']:.2f} x" if row.get("ratio") else NONE, number=True),
        ]
        for row in found.first
    ]
    heads = ("phase", "variant", "threads", "milliseconds", "upstream / this")
    return Content(tables=[Table("Wall time", heads, rows)])


def families(found: Evidence) -> Content:
    """Architectures that compile, answer right, and use the kernels."""
    rows = []
    for row in found.first:
        right = row["outcome"] == "right"
        rows.append(
            [
                text(row["family"]),
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


def cost(found: Evidence) -> Content:
    """Studies of the cost model."""
    tables = [_study(Path(name).stem, rows) for name, rows in found.found.items()]
    return Content(tables=tables)


def _study(name: str, records: Sequence[Mapping[str, str]]) -> Table:
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


def artefacts(found: Evidence) -> Content:
    """Built files, each with its digest."""
    tables = []
    for path, manifest in found.found.items():
        rows = [
            [code(entry["path"]), number(entry["bytes"], 0), code(entry["sha256"])]
            for entry in manifest["files"]
        ]
        folder = path.removeprefix("dist/").removesuffix("/MANIFEST.json")
        name = f"{folder}, verdict on its answer: {manifest.get('verdict', 'unknown')}"
        tables.append(Table(name, ("file", "bytes", "sha256"), rows))
    return Content(tables=tables)
