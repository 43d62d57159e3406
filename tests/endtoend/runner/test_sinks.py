# SPDX-License-Identifier: Apache-2.0
"""gpt-oss in the engine: sequences share windows and sinks; transformers judges the tokens."""

from __future__ import annotations

import importlib
import random

import pytest
from support import shared_builds, tiny_runner
from support.mlc_tree import tools_and_reference
from support.models.answering_model import AnsweringModel

from crosslab.assemble.link import LinkRequest
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import compile_library, store_params
from crosslab.compile.modes import KernelMode
from crosslab.models.families import chosen
from crosslab.zoo.job import Spec, recipe_of
from crosslab.zoo.reference import _model, ask
from crosslab.zoo.weights import USUAL

pytestmark = pytest.mark.usefixtures("emulator")
WINDOW, VLEN = 16, 256
RANDOM = random.Random(8)
# Longer than two windows.
SYSTEM = [RANDOM.randrange(512) for _ in range(2 * WINDOW + 5)]


# An int8 cache moves logits by a part of a hundred; a token out of a window moves them by more.
@pytest.fixture(scope="module", params=[("float32", 1e-4), ("int8", 2e-2)], ids=lambda p: p[0])
def model(request: pytest.FixtureRequest) -> AnsweringModel:
    kv_cache, tie = request.param
    trees = tools_and_reference()
    tvm, cache, family = trees.tvm_tree, shared_builds.CACHE, chosen(["gpt_oss"])[0]
    mode = KernelMode("tiles", kv_cache=kv_cache)
    shared = Recipe("q0f32", (VLEN,), tvm, tvm, mlc_tree=trees.mlc_tree, mode=mode)
    recipe = recipe_of(Spec(family.name, shared, cache, ""), ask(family, cache).model)
    parts = shared_builds.runtime(), shared_builds.cross()
    library = compile_library(recipe, cache).library
    link = LinkRequest(*parts, library=library, vlens=(VLEN,), server=False)
    probe = tiny_runner.build_engine_probe(link)
    sizes = {"tokens": 128, "chunk": WINDOW, "sequences": 3}
    params = store_params(recipe, cache)
    with importlib.import_module("torch").no_grad():
        reference = _model(family, USUAL)
    return AnsweringModel(probe, params, reference, sizes, tie=tie)


def test_forks_and_guesses_see_their_window_and_sinks(model: AnsweringModel) -> None:
    """Sequences that share pages with another one that is answered, one of them with guesses."""
    prompts = [
        SYSTEM,
        [*SYSTEM, 1, 2, 3],
        # It leaves the shared one within a page, and is alone at last.
        [*SYSTEM[:20], 4, 5],
        [*SYSTEM[: 2 * WINDOW], *[5, 6, 7] * 4],
    ]
    asked = [
        {"tokens": prompt, "max_tokens": most, "step": step}
        for prompt, most, step in zip(prompts, (14, 8, 4, 20), (0, 4, 5, 6), strict=True)
    ]
    told = model.run(asked, lookup=1)
    for wanted, got in zip(asked, told["answers"], strict=True):
        assert len(got["tokens"]) == wanted["max_tokens"], got["error"]
        model.check(wanted["tokens"], got["tokens"])  # type: ignore[arg-type]
    assert [got["cached"] for got in told["answers"]] == [0, 37, 20, 32]
    last = told["steps"][-1]
    assert last["right"] < last["guessed"]
    assert last["pages_running"] == 0
