# SPDX-License-Identifier: Apache-2.0
"""The study of GPT-2 as MLC-LLM compiles it: docs/cost shows what the command writes.

``data/gpt2-q4f32_1.work.json`` is that of ``nox -s zoo -- --family gpt2 --work DIR`` with the
layers' products, twelve times the same, written once with their count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.cli import main
from costmodel.estimate.workload import bind_phase, read_workloads

DATA = Path(__file__).parent / "data"
WORK = DATA / "gpt2-q4f32_1.work.json"
DOCS = Path(__file__).parents[2] / "docs" / "cost"
VOCABULARY = {"vocab_size": 50257}


def test_compiled_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    phase = bind_phase(read_workloads(WORK), "decode", 1024, VOCABULARY)
    width, layers, context = 768, 12, 1024
    weights = layers * 12 * width * width + VOCABULARY["vocab_size"] * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention


def test_the_shown_page_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One array of the three: its lines are those of the page, in its order."""
    study = pytest.importorskip("costmodel.studies.study", reason="figures need matplotlib")
    monkeypatch.setattr(study, "ARRAYS", ("edge8x8",))
    bound = [f"{name}={value}" for name, value in VOCABULARY.items()]
    assert main(["--study", str(tmp_path), "--of", str(WORK), "--bind", *bound]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"gpt2-q4f32_1.md", "gpt2-q4f32_1.png"}
    shown = (DOCS / "gpt2-q4f32_1.md").read_text(encoding="utf-8").splitlines()
    made = (tmp_path / "gpt2-q4f32_1.md").read_text(encoding="utf-8").splitlines()
    assert made == [line for line in shown if not line.startswith("| systolic")]


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.png")), ids=lambda path: path.stem)
def test_the_shown_picture_was_written_with_its_page(path: Path) -> None:
    study = pytest.importorskip("costmodel.studies.study", reason="figures need matplotlib")
    image = pytest.importorskip("PIL.Image", reason="matplotlib brings it")
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert image.open(path).info["Comment"] == study.digest(page)
