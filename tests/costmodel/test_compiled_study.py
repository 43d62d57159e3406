# SPDX-License-Identifier: Apache-2.0
"""The study of GPT-2 as MLC-LLM compiles it is of the real model, and is reproduced in part."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import SCHEMES
from costmodel.estimate.model import phase_cost
from costmodel.estimate.workload import bind_phase, read_workloads
from costmodel.studies.report import totals_record

DOCS = Path(__file__).parents[2] / "docs" / "cost"
VOCABULARY = {"vocab_size": 50257}


def test_compiled_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    report = read_workloads(DOCS / "gpt2-q4f32_1.work.json")
    phase = bind_phase(report, "decode", 1024, VOCABULARY)
    width, layers, context = 768, 12, 1024
    weights = layers * 12 * width * width + VOCABULARY["vocab_size"] * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention


def test_a_part_of_the_compiled_study_is_reproduced() -> None:
    report = read_workloads(DOCS / "gpt2-q4f32_1.work.json")
    phase = bind_phase(report, "decode", 1024, VOCABULARY)
    names = ("systolic32x32", "input-stationary", "int4-g32")
    parts = (load_hardware(names[0]), load_dataflow(names[1]), SCHEMES[names[2]])
    result = phase_cost(phase, *parts)
    with (DOCS / "gpt2-q4f32_1.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for kind, totals in [*result.by_kind().items(), ("total", result.total)]:
        wanted = (phase.name, *names, kind)
        keys = ("phase", "hardware", "dataflow", "scheme", "kind")
        (row,) = (r for r in rows if tuple(r[k] for k in keys) == wanted)
        made = totals_record(totals, result)
        assert {k: float(row[k]) for k in made} == pytest.approx(made)
