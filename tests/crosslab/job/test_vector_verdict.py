# SPDX-License-Identifier: Apache-2.0
"""The judge of vectors: a right one is right, and a fault in weights or pooling is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.judged import JudgedJob

from crosslab.errors import LabError
from crosslab.job.verdict import AnswerVerdict, AskedVector, judge
from crosslab.models.encoder import EncoderConfig, vector_of
from crosslab.models.weights_file import F32

CONFIG = EncoderConfig(16, 2, 2, 1e-12, "gelu", "mean", normalize=True)
PROMPT = (3, 7, 7, 20, 1)
JOB: Any = JudgedJob(None, 8, 512, 1e-4, rounds=False)


def weights() -> dict[str, F32]:
    random = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{table}_embeddings.weight": (rows, 16)
        for table, rows in (("word", 30), ("position", 12), ("token_type", 2))
    }
    shapes |= {f"embeddings.LayerNorm.{part}": (16,) for part in ("weight", "bias")}
    sizes = {"attention.self.qkv": (48, 16), "attention.output.dense": (16, 16)}
    sizes |= {"intermediate.dense": (24, 16), "output.dense": (16, 24)}
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for name, (rows, columns) in sizes.items():
            shapes |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (rows,)}
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{norm}.{part}": (16,) for part in ("weight", "bias")}
    return {n: random.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}


def verdict(vector: Any, params: dict[str, F32]) -> AnswerVerdict:
    asked = AskedVector(CONFIG, params, params, PROMPT)
    found = judge(JOB, (), np.asarray(vector, np.float32)[None], None, asked)
    assert found is not None
    return found


def test_a_right_vector_is_right() -> None:
    params = weights()
    found = verdict(vector_of(CONFIG, params, PROMPT), params)
    assert found.right
    assert found.stored is not None and found.stored < 1e-6
    assert found.table["reference_tokens"] == []


FAULTS = ["scale", "rows", "norm", "token", "position", "pooling", "length", "number"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    params, config, prompt = weights(), CONFIG, list(PROMPT)
    run = {name: values.copy() for name, values in params.items()}
    if fault == "scale":
        run["encoder.layer.0.output.dense.weight"] *= np.float32(1.01)
    elif fault == "rows":
        run["encoder.layer.1.attention.self.qkv.weight"][[0, 1]] = params[
            "encoder.layer.1.attention.self.qkv.weight"
        ][[1, 0]]
    elif fault == "norm":
        run["embeddings.LayerNorm.bias"][3] += np.float32(0.05)
    elif fault == "token":
        prompt[0] = 4
    elif fault == "position":
        run["embeddings.position_embeddings.weight"][[0, 1]] = params[
            "embeddings.position_embeddings.weight"
        ][[1, 0]]
    elif fault == "pooling":
        config = replace(CONFIG, pooling="cls")
    elif fault == "length":
        config = replace(CONFIG, normalize=False)
    vector = vector_of(config, run, prompt)
    if fault == "number":
        vector[5] = np.nan
    assert not verdict(vector, params).right


def test_a_vector_of_another_width_is_an_error() -> None:
    params = weights()
    with pytest.raises(LabError, match="shape"):
        verdict(vector_of(CONFIG, params, PROMPT)[:8], params)
