# SPDX-License-Identifier: Apache-2.0
"""BERTs on the device give transformers' vectors, with the pooling that their folders name."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_builds, text_probe
from support.mlc_tree import tools_and_reference

from crosslab.assemble.recipe import Recipe
from crosslab.assemble.runner import build_runner, store_params
from crosslab.errors import LabError
from crosslab.models.sources.model_folder import import_folder
from crosslab.models.weights_file import F32
from crosslab.run.emulator import GuestMachine, run_guest
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import DEVICE_FILE, device_tokenizer

CONTEXT, VLENS = 512, (128, 1024)
LENGTHS = (512, 300, 17, 2, 1)
STEPS = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Encoder:
    """A runner with a BERT in it, its folder, and transformers' one of the same weights."""

    program: Path
    params: Path
    folder: Path
    imported: Path
    torch_model: Any

    def states(self, ids: Sequence[int]) -> F32:
        torch = importlib.import_module("torch")
        with torch.no_grad():
            states = self.torch_model(torch.tensor([list(ids)])).last_hidden_state[0]
        values: F32 = states.double().numpy()
        return values

    def run(self, *arguments: str, vlen: int = VLENS[0]) -> dict[str, Any]:
        words = ["--params", str(self.params), "--json", *arguments]
        answer: dict[str, Any] = json.loads(
            run_guest(self.program, words, GuestMachine(vlen=vlen)).stdout
        )
        return answer


def write_steps(folder: Path, steps: Sequence[str], pooling: Mapping[str, Any]) -> None:
    """Write the files of sentence-transformers."""
    table = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"models.{kind}"}
        for n, kind in enumerate(steps)
    ]
    (folder / "modules.json").write_text(json.dumps(table), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    text = json.dumps({"word_embedding_dimension": 64, **pooling})
    (folder / "1_Pooling" / "config.json").write_text(text, encoding="utf-8")


# The config of a published Nomic's BERT, whose sizes have other names than transformers'.
PUBLISHED = {
    **{"model_type": "nomic_bert", "n_embd": 64, "n_inner": 96, "n_head": 2, "n_layer": 2},
    **{"n_positions": CONTEXT, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000},
    **{"activation_function": "swiglu", "causal": False, "qkv_proj_bias": False},
    **{"rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "type_vocab_size": 2},
}


def make(
    root: Path, steps: Sequence[str], pooling: Mapping[str, Any], kind: str = "Bert"
) -> Encoder:
    trees = tools_and_reference()
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    folder = root / "model"
    tokenizer = text_probe.in_pieces()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        **sizes,
        num_hidden_layers=2,
        vocab_size=tokenizer.tokenizer.get_vocab_size(),
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(9)
    model = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    model.save_pretrained(folder)
    if kind != "Bert":
        table = json.dumps({**PUBLISHED, "vocab_size": config.vocab_size})
        (folder / "config.json").write_text(table, encoding="utf-8")
    # As published files have it; the device reads whole texts.
    tokenizer.tokenizer.enable_truncation(8)
    tokenizer.tokenizer.enable_padding()
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    write_steps(folder, steps, pooling)
    imported = import_folder(folder, "tiny", root / "cache").folder
    recipe = Recipe(
        "q0f32",
        VLENS,
        trees.tvm_tree,
        trees.tvm_tree,
        mlc_tree=trees.mlc_tree,
        model=imported,
    )
    program = build_runner(recipe, shared_builds.CACHE).program
    params = store_params(recipe, shared_builds.CACHE)
    return Encoder(program, params, folder, imported, model)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return make(tmp_path_factory.mktemp("mean"), STEPS, {"pooling_mode_mean_tokens": True})


@pytest.fixture(scope="module")
def nomic(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    root = tmp_path_factory.mktemp("nomic")
    return make(root, STEPS, {"pooling_mode_mean_tokens": True}, "NomicBert")


def unit(vector: F32) -> F32:
    scaled: F32 = vector / np.linalg.norm(vector)
    return scaled


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 250, length).tolist()


@pytest.mark.parametrize("vlen", VLENS)
@pytest.mark.parametrize("kind", ["encoder", "nomic"])
def test_texts_of_every_length_have_transformers_vectors(
    request: pytest.FixtureRequest, kind: str, vlen: int
) -> None:
    """In one batch, of which a call reads as many as it has room for."""
    encoder: Encoder = request.getfixturevalue(kind)
    texts = [prompt_of(length) for length in LENGTHS]
    first, *others = [",".join(map(str, text)) for text in texts]
    beside = [word for text in others for word in ("--beside", text)]
    told = encoder.run("--tokens", first, *beside, vlen=vlen)
    assert told["vlen"] == vlen
    assert told["tokens"] == []
    for text, vector in zip(texts, told["vectors"], strict=True):
        wanted = unit(encoder.states(text).mean(axis=0))
        np.testing.assert_allclose(vector, wanted, atol=1e-5, err_msg=str(len(text)))
    # Short texts share a call: its seconds are those of both.
    assert len(told["prefill_seconds"]) == 1


def test_a_text_becomes_the_librarys_tokens(encoder: Encoder, tmp_path: Path) -> None:
    words = device_tokenizer(encoder.imported, tmp_path)
    assert words.name == DEVICE_FILE
    text = "The quick brown F\u00f3x isn't jumping over 13 lazy dogs, and they've 4567 more;"
    told = encoder.run("--tokenizer", str(words), "--prompt", text)
    ids = ChatTokenizer.load(encoder.imported).tokenizer.encode(text).ids
    assert told["prompt_ids"] == ids
    wanted = unit(encoder.states(ids).mean(axis=0))
    np.testing.assert_allclose(told["vectors"][0], wanted, atol=1e-5)


def test_a_longer_text_than_the_context_is_refused(encoder: Encoder) -> None:
    too_long = ",".join(map(str, prompt_of(CONTEXT + 1)))
    with pytest.raises(LabError, match="the prompt has 513 tokens, more than the longest"):
        encoder.run("--tokens", too_long)


def test_it_is_measured_and_does_not_chat(encoder: Encoder, tmp_path: Path) -> None:
    words = str(device_tokenizer(encoder.imported, tmp_path))
    with pytest.raises(LabError, match="this model gives vectors of texts, and answers nothing"):
        run_guest(
            encoder.program, ["--chat", "--params", str(encoder.params), "--tokenizer", words]
        )
    bench = ["bench", "--params", str(encoder.params), "--json", "--threads", "1", "--repeat", "1"]
    told = json.loads(run_guest(encoder.program, [*bench, "--prompt-tokens", "20"]).stdout)
    assert [row["test"] for row in told["rows"]] == ["pp20"]
    with pytest.raises(LabError, match="--new-tokens: this model gives vectors"):
        run_guest(encoder.program, [*bench, "--new-tokens", "1"])


def test_the_first_tokens_state_is_a_vector_of_its_own_length(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("cls")
    encoder = make(root, STEPS[:2], {"pooling_mode_cls_token": True})
    text = prompt_of(17)
    told = encoder.run("--tokens", ",".join(map(str, text)))
    np.testing.assert_allclose(told["vectors"][0], encoder.states(text)[0], atol=1e-4)
