# SPDX-License-Identifier: Apache-2.0
"""GGUF files of each family become what they were made from, in float32 and in blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from support import text_probe
from support.models import model_folder

from crosslab.errors import UserError
from crosslab.models.config import FamilyConfig, read_family
from crosslab.models.gguf_params import TYPES, GgufWeights
from crosslab.models.reference import scaled_frequencies
from crosslab.models.sources.gguf_import import import_into
from crosslab.models.weights_file import StoredWeights
from crosslab.peers.gguf_export import add_sizes
from crosslab.tokenizer.chat_tokenizer import build_tokenizer

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "plain": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma": MODEL_ARCH.GEMMA,
}
Q8 = GGMLQuantizationType.Q8_0


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp keeps a Llama's: (0, d/2, 1, d/2 + 1, ...) of a head."""
    d = len(rows) // heads
    order = [h * d + i % 2 * (d // 2) + i // 2 for h in range(heads) for i in range(d)]
    return rows[order]


def write_gguf(folder: Path, path: Path, family: str) -> None:
    """A model's folder as GGUF by the package's names; matrices are Q8_0."""
    config, architecture = read_family(folder / "config.json"), ARCHITECTURES[family]
    writer = GGUFWriter(path, "llama" if family == "plain" else family)
    add_sizes(writer, config, config.intermediate)
    add_tokens(writer, config)
    names = get_tensor_name_map(architecture, config.layers)
    weights = StoredWeights.of_model(folder)
    for name in weights.places:
        stem, _, kind = name.rpartition(".")
        values = weights.read(name)
        if architecture is MODEL_ARCH.LLAMA and stem.endswith(("q_proj", "k_proj")):
            heads = config.heads if stem.endswith("q_proj") else config.kv_heads
            values = interleaved(values, heads)
        if family == "gemma" and stem.endswith("norm"):
            values = values + 1
        theirs = f"{names.get_name(stem)}.{kind}"
        if values.ndim == 2:
            writer.add_tensor(theirs, quantize(values, Q8), raw_dtype=Q8)
        else:
            writer.add_tensor(theirs, values)
    if config.rope:
        plain = config.rope_theta ** (-np.arange(config.head_dim // 2) / (config.head_dim // 2))
        factors = (plain / scaled_frequencies(plain, config.rope)).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokens(writer: GGUFWriter, config: FamilyConfig) -> None:
    tokens = ["a", "b", "ab", *(f"token {i}" for i in range(3, config.vocab))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * config.vocab)


@pytest.fixture(params=ARCHITECTURES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 192}
    made = model_folder.write_folder(
        tmp_path / "model", family, model_folder.write_tokenizer(tokenizer), **sizes
    )
    if family == "llama":
        # The factors of a release.
        scaling = {
            **read_json(made)["rope_scaling"],
            "factor": 32.0,
            "original_max_position_embeddings": 8192,
        }
        model_folder.change(made, rope_scaling=scaling)
    return made


def read_json(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return table


@pytest.mark.parametrize("blocks", [False, True])
def test_a_file_becomes_the_folder_that_it_was_made_from(
    family: str, folder: Path, tmp_path: Path, blocks: bool
) -> None:
    write_gguf(folder, tmp_path / "model.gguf", family)
    out = tmp_path / "out"
    out.mkdir()
    import_into(tmp_path / "model.gguf", out, blocks=blocks)
    assert read_family(out / "config.json") == read_family(folder / "config.json")
    before, after = StoredWeights.of_model(folder), GgufWeights(out)
    types = read_json(out).get(TYPES, {})
    assert bool(types) == blocks
    for name in before.places:
        values, read = before.read(name), after.read(name)
        assert (name in types) == (blocks and values.ndim == 2), name
        if values.ndim == 2:
            largest = np.abs(values).max(axis=1, keepdims=True)
            assert np.all(np.abs(read - values) <= largest / 127), name
        else:
            assert np.abs(read - values).max() <= 2.0**-23, name
    assert set(after.layout({name: [name] for name in before.places})) == set(types)


def test_factors_of_no_release_are_rejected(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    made = model_folder.write_folder(
        tmp_path / "model",
        "llama",
        model_folder.write_tokenizer(tokenizer),
        hidden_size=256,
        intermediate_size=192,
    )
    write_gguf(made, tmp_path / "model.gguf", "llama")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UserError, match=r"rope_freqs\.weight has other factors"):
        import_into(tmp_path / "model.gguf", out)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_of_characters_gives_the_tokens_of_the_one_that_it_is_of(prefix: bool) -> None:
    blanks = "prepend" if prefix else "replace"
    theirs = text_probe.by_character(blanks, strips=prefix).tokenizer
    about = json.loads(theirs.to_str())["model"]
    tokens = sorted(about["vocab"], key=about["vocab"].get)
    ranks = {"".join(pair): -float(i) for i, pair in enumerate(about["merges"])}
    added = {token.content for token in theirs.get_added_tokens_decoder().values()}
    kinds = {"<unk>": 2, **{f"<0x{byte:02X}>": 6 for byte in range(256)}}
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [ranks.get(token, -1e9) for token in tokens],
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    ours = build_tokenizer(fields)
    for text in (
        "The quick brown fox",
        "  spaces   and",
        "\u017elu\u0165ou\u010dk\u00fd \u6771 \U0001f600",
        "over 13 lazy",
    ):
        if not any(token in text for token in added):
            expected = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special_tokens=False).ids == expected
            assert ours.decode(expected) == theirs.decode(expected)


def test_a_tokenizer_without_scores_is_rejected() -> None:
    fields = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    with pytest.raises(UserError, match="lacks a score for each token"):
        build_tokenizer(fields)
