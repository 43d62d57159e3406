# SPDX-License-Identifier: Apache-2.0
"""The pinned model reads 128 tokens and goes on for 32, as a float32 reference does.

The reference takes the same stored weights: those of the project's own definition in q0f32, and
MLC-LLM's in q4f32_1. Libraries, parameters and runners are those of the main job, from the same
cache.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.mlc_tree import tools
from support.shared_builds import PROJECT, cross, need_emulator, tvm_tree

from crosslab.build.runner import Clock, build_runner
from crosslab.errors import LabError
from crosslab.job.job_options import Job, parse_job
from crosslab.job.main_job import (
    Question,
    RunResult,
    ask,
    run_model,
)
from crosslab.models.asset import fetch_asset
from crosslab.models.config import read_config
from crosslab.models.llama_params import param_shapes
from crosslab.models.params import read_params
from crosslab.models.pins import read_pins
from crosslab.models.reference import answer
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

pytestmark = pytest.mark.emulator

TEXT = Path(__file__).parent / "data" / "prompt-128.txt"
PROMPT = 128
STEPS = 32
CHUNK = 77  # parts the prompt in two; no multiple of a tile
# More different tokens than these are answered: quantized, the model repeats one sentence.
DISTINCT = {"q0f32": STEPS / 3, "q4f32_1": 4}
# Of a step's largest logit.
BOUND = 1e-3
SAME_SUMS = 1e-5


@dataclass(frozen=True)
class Answered:
    """A prompt, and the compiled model's answer to it."""

    job: Job
    question: Question
    runner: Path
    said: RunResult


def job_of(quantization: str) -> Job:
    need_emulator(plugins=True)
    cross()
    options = ["--project", str(PROJECT), "--tvm-tree", str(tvm_tree())]
    options += ["--quantization", quantization, "--max-new", str(1 + STEPS)]
    if quantization != "q0f32":
        options += ["--mlc-tree", str(tools().mlc_tree)]
    # Two threads halve the emulator's minutes, and have to give the same sums as one.
    job = parse_job([*options, "--threads", str(min(2, os.cpu_count() or 1))])
    try:
        fetch_asset(read_pins(PROJECT).asset(job.model), job.cache)
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")
    return job


def question_of(job: Job) -> Question:
    """The text as it is, without a chat around it or a stop, and the reference's continuation."""
    asked = ask(replace(job, max_new=1), Clock())
    tokenizer = asked.tokenizer.tokenizer
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8").strip(), add_special_tokens=False).ids
    config = read_config(asked.model / "config.json")
    widths = {name: shape[-1] for name, shape in param_shapes(config).items()}
    values = read_params(asked.params, widths, job.weights.packing)
    reference = answer(config, values, ids, max_new=1 + STEPS)
    no_stop = ChatTokenizer(tokenizer, {})
    options = ("--tokens", ",".join(map(str, ids)))
    return replace(
        asked, tokenizer=no_stop, prompt=tuple(ids), options=options, reference=reference
    )


@pytest.fixture(scope="module", params=["q0f32", "q4f32_1"])
def answered(request: pytest.FixtureRequest) -> Answered:
    job, clock = job_of(request.param), Clock()
    question = question_of(job)
    runner = build_runner(job.recipe(question.model), job.cache, clock).program
    return Answered(job, question, runner, run_model(job, question, runner, clock))


def test_the_text_is_as_long_as_it_says(answered: Answered) -> None:
    assert len(answered.question.prompt) == PROMPT
    assert len(answered.said.prefill_seconds) == 1
    assert len(answered.said.decode_seconds) == STEPS


def test_every_step_says_what_the_reference_says(answered: Answered) -> None:
    reference = answered.question.reference
    assert answered.said.tokens == reference.tokens
    # A model that says one thing over and over would hide mistakes of position.
    assert len(set(reference.tokens)) > DISTINCT[answered.job.quantization]
    wanted = reference.logits.astype(np.float64)
    errors = np.abs(answered.said.logits - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
    assert errors.shape == (1 + STEPS,)
    print(f"\nlargest logit error {errors.max():.2e}, at step {errors.argmax()}")
    assert errors.max() < BOUND


@pytest.mark.long
def test_a_prompt_in_two_chunks_gives_the_same_logits(answered: Answered, tmp_path: Path) -> None:
    logits = tmp_path / "logits.bin"
    arguments = ["--params", str(answered.question.params), "--logits", str(logits), "--json"]
    arguments += ["--tokens", ",".join(map(str, answered.question.prompt)), "--max-new", "1"]
    arguments += ["--prefill-chunk", str(CHUNK)]
    result = run_guest(answered.runner, arguments, GuestMachine(vlen=answered.job.vlen))
    assert len(json.loads(result.stdout)["prefill_seconds"]) == 2
    whole = answered.said.logits[0]
    difference = np.abs(np.fromfile(logits, np.float32) - whole).max()
    assert difference / np.abs(whole).max() < SAME_SUMS
