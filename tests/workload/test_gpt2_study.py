# SPDX-License-Identifier: Apache-2.0
"""The figures in docs/cost are those of the code: a part of them is made again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the models are built with apache-tvm")
from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import SCHEMES
from costmodel.estimate.model import phase_cost
from costmodel.estimate.workload import bind_phase
from costmodel.studies.report import totals_record
from crosslab.workload.extraction import model_workloads

SHIPPED = Path(__file__).parents[2] / "docs" / "cost" / "gpt2.csv"


def test_a_part_of_the_gpt2_study_is_reproduced() -> None:
    report = model_workloads("gpt2")
    with SHIPPED.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    checked = 0
    phase = bind_phase(report, "decode", 1024, {})
    for hardware, flow, scheme in (
        ("edge8x8", "weight-stationary", "float16"),
        ("systolic128x128", "output-stationary", "int8-channel"),
        ("systolic32x32", "input-stationary", "int4-g32"),
    ):
        result = phase_cost(phase, load_hardware(hardware), load_dataflow(flow), SCHEMES[scheme])
        for kind, totals in [*result.by_kind().items(), ("total", result.total)]:
            wanted = {
                "phase": phase.name,
                "hardware": hardware,
                "dataflow": flow,
                "scheme": scheme,
                "kind": kind,
            }
            (row,) = (r for r in rows if all(r[k] == v for k, v in wanted.items()))
            made = totals_record(totals, result)
            assert {k: float(row[k]) for k in made} == pytest.approx(made)
            checked += 1
    assert checked >= 3 * 8


def test_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    phase = bind_phase(model_workloads("gpt2"), "decode", 1024, {})
    width, layers, context, vocabulary = 768, 12, 1024, 50257
    weights = layers * 12 * width * width + vocabulary * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention
    assert phase.unclassified == ()
