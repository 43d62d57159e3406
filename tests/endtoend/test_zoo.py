# SPDX-License-Identifier: Apache-2.0
"""Families through MLC-LLM, the emulator and transformers; where torch is at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import shared_builds
from support.mlc_tree import tools

from crosslab.assemble.recipe import Recipe
from crosslab.errors import UserError
from crosslab.zoo.job import Spec, judge
from crosslab.zoo.outcome import FamilyStatus
from crosslab.zoo.reference import need_packages

pytestmark = pytest.mark.usefixtures("emulator")


@pytest.fixture(scope="module")
def spec() -> Spec:
    trees = tools()
    shared_builds.cross()
    try:
        need_packages()
    except UserError as error:
        pytest.skip(str(error))
    tvm = trees.tvm_tree
    recipe = Recipe("q0f32", (256,), tvm, tvm, mlc_tree=trees.mlc_tree)
    return Spec("", recipe, shared_builds.CACHE, "")


# Partial rotary embeddings with biases and layer norms; grouped heads, tied, with RMS norms; a
# mixture of experts in half precision.
@pytest.mark.parametrize(
    ("family", "quantization", "bound"),
    [
        ("qwen2", "q4f32_1", 1e-4),
        pytest.param("stablelm", "q0f32", 1e-4, marks=pytest.mark.thorough),
        pytest.param("mixtral", "q4f16_1", 4e-3, marks=pytest.mark.thorough),
    ],
)
def test_a_family_answers_as_transformers_does(
    spec: Spec, tmp_path: Path, family: str, quantization: str, bound: float
) -> None:
    recipe = replace(spec.recipe, quantization=quantization)
    asked = replace(spec, family=family, recipe=recipe, work=tmp_path)
    outcome = judge(asked)
    assert outcome.outcome is FamilyStatus.RIGHT, outcome.reason
    assert outcome.max_logit_error is not None
    # Far below the bound: the weights lose nothing in either format.
    assert outcome.max_logit_error < bound
    assert outcome.tensorized == outcome.total > 10
    assert (tmp_path / f"{family}-{quantization}.work.json").is_file()
