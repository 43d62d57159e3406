# SPDX-License-Identifier: Apache-2.0
"""The work of GPT-2 as MLC-LLM compiles it.

``data/gpt2-q4f32_1.work.json`` is that of ``nox -s zoo -- --family gpt2 --work DIR`` with the
layers' products, twelve times the same, written once with their count.
"""

from __future__ import annotations

from pathlib import Path

from costmodel.estimate.workload import bind_phase, read_workloads

DATA = Path(__file__).parent / "data"
WORK = DATA / "gpt2-q4f32_1.work.json"
VOCABULARY = {"vocab_size": 50257}


def test_compiled_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    phase = bind_phase(read_workloads(WORK), "decode", 1024, VOCABULARY)
    width, layers, context = 768, 12, 1024
    weights = layers * 12 * width * width + VOCABULARY["vocab_size"] * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention
