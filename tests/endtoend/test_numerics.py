# SPDX-License-Identifier: Apache-2.0
"""A model reads 128 tokens and goes on for 32, as a reference in numpy does.

The reference takes the same stored weights: those of the project's own definition in q0f32, and
MLC-LLM's in q4f32_1; where activations or keys and values are rounded to int8, it rounds them as
well. The tiny model has the pinned one's attention; the pinned one takes minutes in the emulator:
``-m long`` asks it, with libraries, parameters and runners of the main job.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_model
from support.mlc_tree import tools
from support.shared_builds import PROJECT, cross, tvm_tree

from crosslab.build.runner import Clock, build_runner
from crosslab.errors import LabError
from crosslab.job.job_options import Job, parse_job
from crosslab.job.main_job import (
    Question,
    RunResult,
    ask,
    run_model,
)
from crosslab.models.config import LlamaConfig, read_config
from crosslab.models.llama_params import param_shapes
from crosslab.models.params import read_params
from crosslab.models.reference import ReferenceLlama, answer
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.pins import read_pins
from crosslab.models.weights_file import F32
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
MODELS = [
    *((tiny_model.NAME, *mode) for mode in MODES),
    (tiny_model.NAME, "q0f32", "float32", "int8"),
    (tiny_model.NAME, "q0f16", "float32", "float32", "spacemit-x60"),
    (tiny_model.NAME, "q0f16", "float32", "int8", "spacemit-x60"),
    (tiny_model.NAME, "q4f16_1", "float32"),
    (tiny_model.NAME, "q4f16_1", "float32", "float32", "spacemit-x60"),
    *(
        pytest.param((PINNED, *mode), marks=pytest.mark.long, id="-".join((PINNED, *mode)))
        for mode in MODES
    ),
]
SAME_SUMS = 1e-5


@dataclass(frozen=True)
class Answered:
    """A prompt, and the compiled model's answer to it."""

    job: Job
    question: Question
    runner: Path
    said: RunResult

    @property
    def bound(self) -> float:
        """Largest error of a logit, of the step's largest."""
        return self.job.tolerance

    @property
    def rounds(self) -> bool:
        """Activations, or keys and values, are rounded on the way, to int8 or halves."""
        return self.job.int8 or self.job.int8_cache or self.job.recipe.weights.halves


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


def read_model(job: Job, asked: Question) -> tuple[LlamaConfig, dict[str, F32]]:
    """The model's sizes and its stored weights as float32."""
    config = read_config(asked.model.folder / "config.json")
    widths = {name: shape[-1] for name, shape in param_shapes(config).items()}
    return config, read_params(asked.params, widths, job.recipe.weights.packing)


def deviation(logits: F32, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """A step's largest error, of its largest logit."""
    return np.abs(logits - wanted).max(axis=1) / np.abs(wanted).max(axis=1)


def question_of(job: Job) -> Question:
    """The plain text, without a chat or a stop, and the reference's continuation."""
    asked = ask(replace(job, max_new=1), Clock())
    tokenizer = asked.tokenizer.tokenizer
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8").strip(), add_special_tokens=False).ids
    ids = ids[:PROMPT]
    config, values = read_model(job, asked)
    rounded = {"int8": job.int8, "int8_cache": job.int8_cache}
    reference = answer(config, values, ids, max_new=1 + STEPS, **rounded)
    no_stop = ChatTokenizer(tokenizer, {})
    options = ("--tokens", ",".join(map(str, ids)))
    assert asked.asked is not None
    own = replace(asked.asked, prompt=ids, answer=reference)
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
    reference = answered.question.asked.answer
    assert answered.said.tokens == reference.tokens
    if answered.job.model == PINNED:
        # A model that says one thing over and over would hide mistakes of position.
        assert len(set(reference.tokens)) > DISTINCT[answered.job.recipe.quantization]
    wanted = reference.logits.astype(np.float64)
    errors = deviation(answered.said.logits, wanted)
    assert errors.shape == (1 + STEPS,)
    print(f"\nlargest logit error {errors.max():.2e}, at step {errors.argmax()}")
    assert errors.max() < answered.bound


def test_what_is_asked_for_is_rounded(answered: Answered) -> None:
    """The answer is nearer to the reference that rounds as asked than to the other one."""
    asked, said = answered.question, answered.said
    config, values = read_model(answered.job, asked)
    job = answered.job
    heard = ReferenceLlama(config, values, int8=not (job.int8 or job.int8_cache))
    other = heard.read_all([*asked.prompt, *said.tokens[:-1]])[len(asked.prompt) - 1 :]
    apart = deviation(said.logits, other.astype(np.float64)).mean()
    near = deviation(said.logits, asked.asked.answer.logits.astype(np.float64)).mean()
    print(f"\nmean logit error {near:.2e}; of the other rounding's {apart:.2e}")
    assert near < apart / 2


def test_the_logits_tell_positions_apart(answered: Answered) -> None:
    """With random weights the tiny model repeats a token; its logits show where it stands."""
    asked = answered.question
    config, values = read_model(answered.job, asked)
    turned = replace(config, rope_theta=config.rope_theta * 1.1)
    other = answer(turned, values, asked.prompt, max_new=1 + STEPS, int8=answered.job.int8)
    steps = [a == b for a, b in zip(other.tokens, asked.asked.answer.tokens, strict=True)]
    same = [*steps, False].index(False) + 1  # as long as both have read the same tokens
    apart = deviation(other.logits[:same], asked.asked.answer.logits[:same].astype(np.float64))
    print(f"\nlargest difference with other positions {apart.max():.2e}")
    assert apart.max() > (2 if answered.rounds else 10) * answered.bound


def test_a_prompt_in_two_chunks_gives_the_same_logits(answered: Answered, tmp_path: Path) -> None:
    logits = tmp_path / "logits.bin"
    arguments = ["--params", str(answered.question.params), "--logits", str(logits), "--json"]
    arguments += ["--tokens", ",".join(map(str, answered.question.prompt)), "--max-new", "1"]
    arguments += ["--prefill-chunk", str(CHUNK)]
    job = answered.job
    machine = GuestMachine(vlen=job.recipe.vlens[-1], zvfh=job.recipe.zvfh)
    result = run_guest(answered.runner, arguments, machine)
    assert len(json.loads(result.stdout)["prefill_seconds"]) == 2
    whole = answered.said.logits[0]
    if job.int8_cache:
        # The second part sees the first one rounded.
        model = read_model(job, answered.question)
        prompt = answered.question.prompt
        whole = answer(*model, prompt, max_new=1, int8_cache=True, chunk=CHUNK).logits[0]
    difference = np.abs(np.fromfile(logits, np.float32) - whole).max()
    same = answered.bound if answered.rounds else SAME_SUMS
    assert difference / np.abs(whole).max() < same
