# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5 in the engine: states follow their sequences; transformers judges the tokens."""

from __future__ import annotations

import importlib
import json
import random
import re
from typing import Any

import numpy as np
import pytest
from support import shared_builds, tiny_runner
from support.mlc_tree import host_library, tools_and_reference
from support.models.answering_model import AnsweringModel

from crosslab.compile.mlc import convert_weight
from crosslab.host.toolchain import Toolchain
from crosslab.models.families import chosen
from crosslab.models.params import from_bfloat16, to_bfloat16

CONTEXT, CHUNK, LENGTH = 512, 128, 1
RANDOM = random.Random(4)


def prompt_of(length: int) -> list[int]:
    return [RANDOM.randrange(512) for _ in range(length)]


PROMPTS = {n: prompt_of(n) for n in (1, 2, 63, 64, 65, 300)}


def random_model() -> Any:
    """The reference in float32, with weights that bfloat16 represents, and long memories."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    config = dict(chosen(["qwen3_5"])[0].config) | {"max_position_embeddings": CONTEXT}
    del config["model_type"]
    made = transformers.Qwen3_5TextConfig(**config)
    made._attn_implementation = "eager"
    torch.manual_seed(5)
    model = transformers.Qwen3_5ForCausalLM(made).eval().to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            value = weight.uniform_(-3, 0) if name.endswith("A_log") else weight
            if weight.ndim == 2:
                # Large embeddings, so that answers repeat themselves now and then.
                scale = 3 if "embed" in name else 1
                value = torch.randn(weight.shape) * scale / weight.shape[1] ** 0.5
            exact = from_bfloat16(to_bfloat16(value.numpy().astype(np.float32)))
            weight.copy_(torch.from_numpy(exact))
    return model


@pytest.fixture(scope="module")
def hybrid(sanitizers: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> AnsweringModel:
    trees = tools_and_reference()
    family = chosen(["qwen3_5"])[0]
    folder = tmp_path_factory.mktemp("hybrid")
    model = random_model()
    save = importlib.import_module("safetensors.numpy").save_file
    weights = {family.published(n): p.detach().numpy() for n, p in model.named_parameters()}
    save(weights, folder / "model.safetensors")
    config = {"text_config": {**family.config, "max_position_embeddings": CONTEXT}}
    text = json.dumps({"model_type": family.within, **config})
    (folder / "config.json").write_text(text, encoding="utf-8")
    cache = shared_builds.CACHE
    params = convert_weight(trees, folder, "q0f32", cache)
    library = host_library(folder, CONTEXT, CHUNK)
    delta = [entry for entry in library.tensorized if "delta" in entry["function"]]
    assert all(entry["symbol"] for entry in delta)
    assert len(delta) == 7
    probe = tiny_runner.build_engine_probe(tiny_runner.host_request())
    sizes = {"tokens": CONTEXT, "chunk": CHUNK}
    return AnsweringModel(probe, params, model, sizes, library.library)


@pytest.mark.parametrize(
    ("length", "chunk"),
    [(1, 128), (2, 128), (63, 128), (64, 128), (65, 1), (65, 7), (65, 64), (300, 128), (300, 100)],
)
def test_a_prompt_is_read_in_chunks_of_any_size(
    hybrid: AnsweringModel, length: int, chunk: int
) -> None:
    prompt = PROMPTS[length]
    told = hybrid.run([{"tokens": prompt, "max_tokens": 12}], chunk=chunk)
    (got,) = told["answers"]
    assert (got["finish"], len(got["tokens"])) == (LENGTH, 12), got["error"]
    hybrid.check(prompt, got["tokens"])


def most_sequences(hybrid: AnsweringModel, sequences: int) -> int:
    """The number of sequences that a refusal of this many names."""
    plan = {**hybrid.sizes, "sequences": sequences, "total": CONTEXT, "requests": []}
    where = {"library": hybrid.library}
    with tiny_runner.started_plan(hybrid.probe, hybrid.params, plan, **where) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    told = f"recurrent states of {sequences} sequences need indices of more than 32 bits"
    named = re.search(rf"{told}; use --parallel (\d+) or less", err)
    assert named is not None, err
    return int(named[1])


def test_states_beyond_32_bit_indices_are_refused(hybrid: AnsweringModel) -> None:
    most = most_sequences(hybrid, 2**29)
    assert 64 < most < 2**29
    assert most_sequences(hybrid, most + 1) == most


def test_sequences_of_several_lengths_answer_at_once(hybrid: AnsweringModel) -> None:
    """Decoded in one batch, and beside a prompt that is read."""
    lengths = (300, 2, 65, 64)
    asked = [{"tokens": PROMPTS[n], "max_tokens": 20, "step": 2 * i} for i, n in enumerate(lengths)]
    told = hybrid.run(asked, sequences=4)
    assert told["steps"][-1]["mixed"] > 0
    for length, got in zip(lengths, told["answers"], strict=True):
        assert len(got["tokens"]) == 20
        hybrid.check(PROMPTS[length], got["tokens"])


def test_a_chat_goes_on_where_its_states_are(hybrid: AnsweringModel) -> None:
    """A whole sequence goes on; one that differs late goes on from its checkpoint."""
    first = PROMPTS[65]
    (got,) = hybrid.run([{"tokens": first, "max_tokens": 10}])["answers"]
    second = [*first, *got["tokens"], 7, 8, 9]
    late = [*first[:60], 1, 2, 3]
    early = [*first[:30], 4, 5, 6]
    asked = [
        {"tokens": tokens, "max_tokens": 10, "step": 40 * i}
        for i, tokens in enumerate((first, second, late, early))
    ]
    told = hybrid.run(asked, sequences=2, steps=200)
    for wanted, got in zip(asked, told["answers"], strict=True):
        assert len(got["tokens"]) == 10
        hybrid.check(wanted["tokens"], got["tokens"])  # type: ignore[arg-type]
    # A checkpoint is a page before the last whole page of a prompt; the last token was never read.
    assert [got["cached"] for got in told["answers"]] == [0, 65 + 10 - 1, 48, 0]


def test_wrong_guesses_leave_no_trace_in_a_state(hybrid: AnsweringModel) -> None:
    prompt = [5, 6, 7, 8] * 20
    asked = [
        {"tokens": tokens, "max_tokens": 200, "step": 210 * i}
        for i, tokens in enumerate((prompt, PROMPTS[65], [*prompt, 9]))
    ]
    told = hybrid.run(asked, lookup=1, steps=650)
    last = told["steps"][-1]
    assert 0 < last["right"] < last["guessed"]
    for wanted, got in zip(asked, told["answers"], strict=True):
        assert len(got["tokens"]) == 200
        hybrid.check(wanted["tokens"], got["tokens"])  # type: ignore[arg-type]


def test_many_requests_in_little_room(hybrid: AnsweringModel) -> None:
    """Forks, cuts and evictions of sequences and their states."""
    choice = random.Random(6)
    prompts: list[list[int]] = []
    for _ in range(24):
        base = choice.choice([PROMPTS[65], PROMPTS[300][:100], *prompts[-4:]])
        cut = choice.randrange(1, len(base) + 1)
        prompts.append([*base[:cut], *(choice.randrange(512) for _ in range(3))][:110])
    asked = [{"tokens": p, "max_tokens": 6, "step": choice.randrange(100)} for p in prompts]
    told = hybrid.run(asked, sequences=3, total=480, tokens=128, steps=150, lookup=1)
    for wanted, got in zip(asked, told["answers"], strict=True):
        assert len(got["tokens"]) == 6, got["error"]
        hybrid.check(wanted["tokens"], got["tokens"])  # type: ignore[arg-type]
    assert told["steps"][-1]["cached"] > 0
    assert told["steps"][-1]["pages_running"] == 0
