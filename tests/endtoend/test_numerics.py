# SPDX-License-Identifier: Apache-2.0
"""A model reads 128 tokens and goes on for 32, as a reference in numpy does.

The reference takes the same stored weights: those of the project's own definition in q0f32, and
MLC-LLM's in q4f32_1. Where the run rounds to int8, the reference takes its roundings. The tiny
model has the pinned one's attention; the pinned one takes minutes in the emulator: ``-m long`` asks
it, with libraries, parameters and runners of the main job.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_model
from support.mlc_tree import tools
from support.shared_builds import PROJECT, cross, tvm_tree

from crosslab.assemble.runner import Clock, build_runner
from crosslab.errors import LabError
from crosslab.job.job_options import Job, parse_job
from crosslab.job.main_job import Question, RunResult, ask, run_model
from crosslab.job.verdict import AnswerVerdict, judge
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.pins import read_pins
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

pytestmark = pytest.mark.usefixtures("counting_emulator")

TEXT = Path(__file__).parent / "data" / "prompt-128.txt"
PROMPT = 128
STEPS = 32
CHUNK = 77  # parts the prompt in two; no multiple of a tile
PINNED = "smollm2-135m"
# More different tokens than these are answered: quantized, the pinned model repeats one sentence.
DISTINCT = {"q0f32": STEPS / 3, "q4f32_1": 4}
MODES = [("q0f32", "float32"), ("q4f32_1", "float32"), ("q4f32_1", "int8")]
QUICK = [
    *(("q0f32", "float32"), ("q4f32_1", "int8")),
    ("q0f16", "float32", "int8", "spacemit-x60"),
]
THOROUGH = [
    *(("q4f32_1", "float32"), ("q0f32", "float32", "int8")),
    ("q0f16", "float32", "float32", "spacemit-x60"),
    ("q4f16_1", "float32"),
    ("q4f16_1", "float32", "float32", "spacemit-x60"),
]
MODELS = [
    *((tiny_model.NAME, *mode) for mode in QUICK),
    *(pytest.param((tiny_model.NAME, *mode), marks=pytest.mark.thorough) for mode in THOROUGH),
    *(pytest.param((PINNED, *mode), marks=pytest.mark.long) for mode in MODES),
]


@dataclass(frozen=True)
class Answered:
    """A prompt, and the compiled model's answer to it."""

    job: Job
    question: Question
    runner: Path
    said: RunResult

    def judged(self, **changed: Any) -> AnswerVerdict:
        """The verdict by a reference, of which `changed` are other fields than the model's."""
        assert self.question.asked is not None
        asked, said = replace(self.question.asked, **changed), self.said
        verdict = judge(self.job, said.tokens, said.logits, said.record, asked)
        assert verdict is not None
        return verdict


def job_of(
    project: Path,
    model: str,
    quantization: str,
    activations: str,
    kv_cache: str = "float32",
    core: str = "",
) -> Job:
    cross()
    if model == tiny_model.NAME:
        tiny_model.make_project(project)
    else:
        project = PROJECT
    options = ["--project", str(project), "--tvm-tree", str(tvm_tree()), "--model", model]
    options += ["--quantization", quantization, "--activations", activations]
    options += ["--kv-cache", kv_cache]
    options += ["--max-new", str(1 + STEPS), *(["--core", core] if core else [])]
    if quantization != "q0f32":
        options += ["--mlc-tree", str(tools().mlc_tree)]
    # Two threads halve the emulator's minutes, and have to give the same sums as one.
    job = parse_job([*options, "--threads", str(min(2, os.cpu_count() or 1))])
    try:
        fetch_asset(read_pins(project).asset(job.model), job.cache)
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")
    return job


def question_of(job: Job) -> Question:
    """The plain text, without a chat or a stop."""
    asked = ask(job, Clock())
    tokenizer = asked.tokenizer.tokenizer
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8").strip(), add_special_tokens=False).ids
    ids = ids[:PROMPT]
    assert asked.asked is not None
    own = replace(asked.asked, prompt=ids, stop=())
    options = ("--tokens", ",".join(map(str, ids)))
    no_stop = ChatTokenizer(tokenizer, {})
    return replace(asked, tokenizer=no_stop, prompt=tuple(ids), options=options, asked=own)


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    job, clock = job_of(tmp_path_factory.mktemp("numerics") / "project", *request.param), Clock()
    question = question_of(job)
    runner = build_runner(job.recipe.of(question.model.folder), job.cache, clock).program
    return Answered(
        job, question, runner, run_model(job, question, runner, job.recipe.vlens[-1], clock)
    )


def test_the_text_is_as_long_as_it_says(answered: Answered) -> None:
    assert len(answered.question.prompt) == PROMPT
    assert len(answered.said.prefill_seconds) == 1
    assert len(answered.said.decode_seconds) == STEPS


def test_every_step_says_what_the_reference_says(answered: Answered) -> None:
    verdict = answered.judged()
    assert verdict.right, verdict
    assert len(verdict.reference) == 1 + STEPS
    if answered.job.model == PINNED:
        # A model that says one thing over and over would hide mistakes of position.
        assert len(set(answered.said.tokens)) > DISTINCT[answered.job.recipe.quantization]


def test_what_is_asked_for_is_rounded(answered: Answered) -> None:
    verdict = answered.judged()
    assert (verdict.taken is not None) == answered.job.rounds
    if verdict.taken and verdict.cost:
        assert verdict.taken.count > 0
        # The answer is farther from the reference that does not round.
        assert verdict.cost.logit_error > 3 * verdict.comparison.logit_error


def test_the_logits_tell_positions_apart(answered: Answered) -> None:
    """With random weights the tiny model repeats a token; its logits show where it stands."""
    assert answered.question.asked is not None
    config = answered.question.asked.config
    turned = replace(config, rope_theta=config.rope_theta * 1.1)
    assert not answered.judged(config=turned).right


def test_a_prompt_in_two_chunks_is_right(answered: Answered, tmp_path: Path) -> None:
    logits, record = tmp_path / "logits.bin", tmp_path / "record.bin"
    arguments = ["--params", str(answered.question.params), "--logits", str(logits), "--json"]
    arguments += ["--tokens", ",".join(map(str, answered.question.prompt)), "--max-new", "1"]
    arguments += ["--prefill-chunk", str(CHUNK), "--roundings", str(record)]
    recipe = answered.job.recipe
    machine = GuestMachine(vlen=recipe.vlens[-1], zvfh=recipe.zvfh)
    result = json.loads(run_guest(answered.runner, arguments, machine).stdout)
    assert len(result["prefill_seconds"]) == 2
    rows = np.fromfile(logits, np.float32).reshape(1, -1)
    said = replace(
        answered.said, tokens=tuple(result["tokens"]), logits=rows, record=record.read_bytes()
    )
    job = replace(answered.job, recipe=replace(recipe, prefill_chunk=CHUNK), max_new=1)
    verdict = replace(answered, said=said, job=job).judged()
    assert verdict.right, verdict
