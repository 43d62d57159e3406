# SPDX-License-Identifier: Apache-2.0
"""The work of GPT-2, whose products TVM builds from its sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm", reason="the models are built with apache-tvm")
from accelerator.workload.extraction import model_workloads
from costmodel.estimate.workload import bind_phase


def test_gpt2_has_the_multiplications_that_its_sizes_ask_for() -> None:
    phase = bind_phase(model_workloads("gpt2"), "decode", 1024, {})
    width, layers, context, vocabulary = 768, 12, 1024, 50257
    weights = layers * 12 * width * width + vocabulary * width
    attention = layers * 2 * context * width
    assert sum(i.count * i.gemm.macs for i in phase.items) == weights + attention
    assert phase.unclassified == ()
