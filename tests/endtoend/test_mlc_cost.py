# SPDX-License-Identifier: Apache-2.0
"""The work of a model, written down while MLC-LLM compiles it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.mlc_tree import TINY, hf_weights, tools, write_model

from crosslab.compile.mlc import MlcCompileRequest, compile_model
from crosslab.compile.modes import ESTIMATE, WORK_FILE, KernelMode

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_a_compile_reports_its_work(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", hf_weights(TINY, 7))
    request = MlcCompileRequest(
        model,
        "q4f32_1",
        "riscv64:rvv256",
        context=TINY.context,
        mode=KernelMode(extras=(ESTIMATE,)),
    )
    made = compile_model(tools(), request, tmp_path / "cache")
    products = json.loads((made.folder / WORK_FILE).read_text())["entries"]["decode"]["products"]
    # qkv, o, gate_up and down of each layer, and the head.
    packed = [p for p in products if p["b"]["bits"] == 4]
    assert sum(p["count"] for p in packed) == 4 * TINY.layers + 1
    assert {p["b"]["quantization"]["group"] for p in packed} == {32}
    attention = [p for p in products if p["kind"] == "attention"]
    assert sum(p["count"] for p in attention) == 2 * TINY.layers
    assert {p["n"] for p in attention if p["block"] == "QK"} == {"context"}
