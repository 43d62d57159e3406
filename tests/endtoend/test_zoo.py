# SPDX-License-Identifier: Apache-2.0
"""Families through MLC-LLM, the emulator and transformers; where torch is at hand."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds
from support.mlc_tree import tools_and_reference
from support.models.gguf_rewrite import MXFP4, exactly, rewrite
from support.models.llama_cpp_converter import PARTS, convert, name_class

from crosslab.assemble.pinned_archive import read_archive, unpack_source
from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import build_runner, layout_of, store_params
from crosslab.compile.modes import KernelMode
from crosslab.models.compare import compare
from crosslab.models.families import chosen
from crosslab.models.formats import GGUF
from crosslab.models.gguf_formats import FILE_TYPES
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.zoo.job import Spec, answer, judge, recipe_of
from crosslab.zoo.outcome import FamilyStatus
from crosslab.zoo.reference import _model, _save, ask
from crosslab.zoo.weights import USUAL

pytestmark = pytest.mark.usefixtures("emulator")


@pytest.fixture(scope="module")
def spec() -> Spec:
    trees = tools_and_reference()
    shared_builds.cross()
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


@pytest.mark.thorough
def test_a_model_of_real_size_says_what_it_costs(spec: Spec, tmp_path: Path) -> None:
    recipe = replace(spec.recipe, quantization="q4f32_1")
    asked = replace(spec, family="bert", recipe=recipe, layers=1, models=tmp_path)
    outcome = judge(asked)
    assert outcome.outcome is FamilyStatus.RIGHT, outcome.reason
    assert outcome.converted and outcome.compiled
    assert min(outcome.converted.memory, outcome.compiled.memory) > 50e6
    assert min(outcome.converted.cpu, outcome.compiled.cpu) > 1
    # Half a byte for each number of 30,522 words.
    assert outcome.largest >= 30522 * 384 / 2
    assert [path.name.partition("-")[0] for path in tmp_path.glob("[!.]*")] == ["zoo"]


# Numbers of every published model, which files do not have, and one that the converter asks for.
OF_FILES = {"llama4": {"floor_scale": 8192}, "internlm": {"num_key_value_heads": 2}}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_5", "internlm", "llama4", "rwkv6"])
def test_a_gguf_file_answers_as_transformers_does(spec: Spec, tmp_path: Path, name: str) -> None:
    """llama.cpp's own converter writes the file."""
    asked, family = replace(spec, family=name), chosen([name])[0]
    family = replace(family, config={**family.config, **OF_FILES.get(name, {})})
    question = ask(family, spec.cache)
    folder = tmp_path / "folder"
    shutil.copytree(question.model, folder)
    tree = unpack_source(read_archive(shared_builds.PROJECT), PARTS, tmp_path)
    name_class(folder, family)
    convert(tree, [folder])
    model = import_gguf(folder / "model.gguf", spec.cache)
    recipe = recipe_of(asked, model)
    tokens, logits = answer(asked, question, recipe, store_params(recipe, spec.cache))
    verdict = compare(tokens, logits, question.answer, 1e-5)
    assert tokens == question.answer.tokens
    assert verdict.within, verdict.logit_error


# Weights of products that the file or the definition keeps in float32.
EXACT = r"mlp\.(gate|router|shared_expert_gate)\.|kv_b_proj"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "kind", "bound"),
    [
        ("qwen2_moe", "Q4_0", 1e-5),
        # Noise below float32's changes a rounding in these, which changes others: transformers' own
        # logits move by 2e-2, and those of gpt-oss by 0.13 where another expert is chosen.
        ("deepseek_v2", "Q4_0", 3e-2),
        ("gpt_oss", "MXFP4", 3e-2),
    ],
)
def test_experts_stay_in_the_blocks_of_a_file(
    spec: Spec, tmp_path: Path, name: str, kind: str, bound: float
) -> None:
    """The weights are exactly transformers', whose products round activations as kernels do."""
    family = chosen([name])[0]
    if name == "gpt_oss":
        # A file has no limit: it is that of every published model.
        family = replace(family, config={**family.config, "swiglu_limit": 7.0})
    question, folder = ask(family, spec.cache), tmp_path / "folder"
    rounded = importlib.import_module("support.models.rounded_torch")
    with importlib.import_module("torch").no_grad():
        reference = _model(family, USUAL)
        if kind == "MXFP4":
            rounded.snap_experts(reference, MXFP4)
        _save(family, reference, folder)
    name_class(folder, family)
    convert(unpack_source(read_archive(shared_builds.PROJECT), PARTS, tmp_path), [folder])
    encode = partial(exactly, experts=kind)
    rewrite(folder / "model.gguf", tmp_path / "blocks.gguf", encode=encode)
    model = import_gguf(tmp_path / "blocks.gguf", spec.cache, blocks=True)
    mode = KernelMode("tiles", "int8")
    for vlen in (128, 1024):
        shared = replace(spec.recipe, quantization=GGUF, vlens=(vlen,), mode=mode)
        asked = replace(spec, family=name, recipe=shared)
        recipe = recipe_of(asked, model)
        layout = layout_of(recipe)
        experts = {s.format.name for n, each in layout.items() if ".moe_" in n for s in each}
        assert experts == {FILE_TYPES[kind].board}
        assert "lm_head.weight" in layout
        tokens, logits = answer(asked, question, recipe, store_params(recipe, spec.cache))
        read = [*question.prompt, *tokens[:-1]]
        wanted = rounded.rounded_logits(reference, read, len(question.prompt) - 1, EXACT)
        assert np.abs(logits - wanted).max() < bound * np.abs(wanted).max()


HYBRID = "qwen3_5", 96, (1, 2, 63, 64, 65, 300)
# A window of 16 tokens.
SINKS = "gpt_oss", 16, (1, 2, 15, 16, 17, 60)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("asked_of", "vlen"),
    [*((HYBRID, vlen) for vlen in (128, 256, 512, 1024)), (SINKS, 128), (SINKS, 1024)],
    ids=str,
)
def test_prompts_around_chunks_and_windows(
    spec: Spec, tmp_path: Path, asked_of: tuple[str, int, tuple[int, ...]], vlen: int
) -> None:
    """Calls of some tokens, chunks of 64, tiles of 16, and answers in one batch."""
    torch = importlib.import_module("torch")
    name, chunk, lengths = asked_of
    asked = replace(spec, family=name, recipe=replace(spec.recipe, vlens=(vlen,)))
    family = chosen([name])[0]
    recipe = recipe_of(asked, ask(family, spec.cache).model)
    params, program = store_params(recipe, spec.cache), build_runner(recipe, spec.cache).program
    with torch.no_grad():
        model = _model(family, USUAL)

    def run(prompt: str, *more: str) -> Any:
        words = ["--params", str(params), "--tokens", prompt, "--json", *more]
        words += ["--roi", "none", "--prefill-chunk", str(chunk), "--max-new", "3"]
        words += ["--vocab", str(family.vocab)]
        return json.loads(run_guest(program, words, GuestMachine(vlen=vlen, timeout=600)).stdout)

    answers = {}
    for length in lengths:
        prompt = np.random.default_rng(length).integers(0, family.vocab, length).tolist()
        logits, words = tmp_path / f"{length}.bin", ",".join(map(str, prompt))
        tokens = answers[words] = run(words, "--logits", str(logits))["tokens"]
        with torch.no_grad():
            rows = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        expected = rows[length - 1 : -1].numpy()
        found = np.fromfile(logits, np.float32).reshape(len(tokens), -1)
        assert len(tokens) == 3
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max(), length
    *others, longest = answers
    beside = [word for prompt in others[-3:] for word in ("--beside", prompt)]
    together = run(longest, *beside)
    assert [*together["beside"], together["tokens"]] == list(answers.values())[-4:]
