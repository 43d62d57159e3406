# SPDX-License-Identifier: Apache-2.0
"""The studies of models that are built here: docs/cost shows what the commands write."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="the models are built with apache-tvm")
pytest.importorskip("matplotlib", reason="figures need matplotlib")
from accelerator.workload.extraction import model_workloads
from costmodel.estimate.workload import bind_phase
from costmodel.studies import study

DOCS = Path(__file__).parents[2] / "docs" / "cost"


def test_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    phase = bind_phase(model_workloads("gpt2"), "decode", 1024, {})
    width, layers, context, vocabulary = 768, 12, 1024, 50257
    weights = layers * 12 * width * width + vocabulary * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention
    assert phase.unclassified == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if model == "gpt2" else pytest.mark.thorough)
        for model in sorted(study.MODELS)
    ],
)
def test_the_shown_page_is_that_of_the_command(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One array of the three: its lines are those of the page, in its order."""
    monkeypatch.setattr(study, "ARRAYS", ("edge8x8",))
    work = tmp_path / f"{model}.work.json"
    study.write_study(tmp_path, work, model_workloads(model), {})
    shown = (DOCS / f"{model}.md").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in shown if not line.startswith("| systolic")]
    assert (tmp_path / f"{model}.md").read_text(encoding="utf-8").splitlines() == wanted
