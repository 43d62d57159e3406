# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of GGUF files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import text_probe
from tokenizers import Tokenizer

from crosslab.errors import UserError
from crosslab.tokenizer.chat_tokenizer import (
    ChatTokenizer,
    build_tokenizer,
    save_tokenizer,
    stop_tokens,
)
from crosslab.tokenizer.device_tokenizer import pack
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError


def of_characters(theirs: Tokenizer, added: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The fields of a file with a tokenizer's characters, and more tokens with their kinds."""
    about = json.loads(theirs.to_str())["model"]
    kinds = {"<unk>": 2, **{f"<0x{byte:02X}>": 6 for byte in range(256)}, **(added or {})}
    tokens = [*sorted(about["vocab"], key=about["vocab"].get), *(added or {})]
    tokens = list(dict.fromkeys(tokens))
    ranks = {"".join(pair): -float(i) for i, pair in enumerate(about["merges"])}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [ranks.get(token, -1e9) for token in tokens],
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_of_characters_gives_the_tokens_of_the_one_that_it_is_of(
    tmp_path: Path, prefix: bool
) -> None:
    blanks = "prepend" if prefix else "replace"
    theirs = text_probe.by_character(blanks, strips=prefix).tokenizer
    added = {token.content for token in theirs.get_added_tokens_decoder().values()}
    fields = {
        **of_characters(theirs),
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": 5,
    }
    ours = build_tokenizer(fields)
    save_tokenizer(ours, fields, tmp_path)
    assert ChatTokenizer.load(tmp_path).first_ids() == [5]
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
    with pytest.raises(UserError, match=r"no tokenizer\.ggml\.scores for each token"):
        build_tokenizer(fields)


def test_a_file_without_kinds_of_tokens_has_normal_ones() -> None:
    fields = of_characters(text_probe.by_character("prepend", strips=True).tokenizer)
    wanted = build_tokenizer(fields).encode("The quick brown fox").ids
    del fields["tokenizer.ggml.token_type"]
    assert build_tokenizer(fields).encode("The quick brown fox").ids == wanted


@pytest.mark.parametrize("types", [[1], 1, []], ids=str)
def test_kinds_of_some_tokens_are_refused(types: Any) -> None:
    fields = byte_level("qwen2") | {"tokenizer.ggml.token_type": types}
    with pytest.raises(UserError, match=r"no tokenizer\.ggml\.token_type for each token"):
        build_tokenizer(fields)


def test_pieces_of_one_kind_are_refused() -> None:
    fields = pieces_of(text_probe.in_pieces().tokenizer)
    fields["tokenizer.ggml.token_type"] = [1] * len(fields["tokenizer.ggml.tokens"])
    with pytest.raises(UserError, match=r"token_type .* makes '\[UNK\]' a part of a word"):
        build_tokenizer(fields)


def test_the_unknown_token_is_the_first_unless_the_file_names_another() -> None:
    """Phi-3's vocabulary has several of that kind, and its <unk> is of another."""
    theirs = text_probe.by_character("prepend", strips=True).tokenizer
    fields = of_characters(theirs, {"<unk>": 3, "[PAD1]": 2, "[PAD2]": 2})
    assert build_tokenizer(fields).model.unk_token == "<unk>"
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"tokenizer.ggml.unknown_token_id": tokens.index("[PAD2]")}
    assert build_tokenizer({**fields, **named}).model.unk_token == "[PAD2]"
    with pytest.raises(UserError, match="unknown_token_id"):
        build_tokenizer({**fields, "tokenizer.ggml.unknown_token_id": len(tokens)})


def test_tokens_of_the_kind_unknown_are_not_split() -> None:
    theirs = text_probe.by_character("prepend", strips=True).tokenizer
    ours = build_tokenizer(of_characters(theirs))
    ids = ours.encode("the<unk>the").ids
    assert ids.count(ours.token_to_id("<unk>")) == 1
    assert ours.decode(ids) == "the the"


def test_special_tokens_of_phi3_take_the_blanks_behind_them() -> None:
    theirs = text_probe.by_character("prepend", strips=True).tokenizer
    fields = of_characters(theirs, {"<unk>": 3, "<s>": 3, "</s>": 4, "<|user|>": 3})
    text = "<s> a<|user|>\n a</s> \n<|user|> <s>"
    found = {}
    for kind in ("phi3", "llama"):
        ours = build_tokenizer({**fields, "general.architecture": kind})
        # Training merges letters of equal frequency in any order.
        found[kind] = "".join(ours.id_to_token(index) for index in ours.encode(text).ids)
    blank = "\u2581"
    begun = f"<s>{blank}{blank}a<|user|>{blank}"
    assert found["phi3"] == f"{begun}a</s><|user|><s>"
    assert found["llama"].startswith(f"{begun}\n")


ENDS = {"<|im_end|>": 3, "<end_of_turn>": 4, "<|endoftext|>": 1, "<|tool|>": 3}
HARMONY = {"<|end|>": 3, "<|return|>": 3, "<|call|>": 3}


@pytest.mark.parametrize(
    ("kinds", "said", "wanted"),
    [
        (ENDS, {}, ["<|im_end|>", "<end_of_turn>"]),
        (ENDS, {"eos": 0, "eot": 4}, ["a", "<|tool|>", "<|im_end|>", "<end_of_turn>"]),
        (HARMONY, {"eos": 2}, ["<|return|>", "<|call|>"]),
        ({"<|end|>": 3, "<|call|>": 3}, {}, ["<|end|>", "<|call|>"]),
    ],
)
def test_a_turn_ends_with_a_token_of_a_known_text(
    kinds: dict[str, int], said: dict[str, int], wanted: list[str]
) -> None:
    """Also if no field names it; a token of the vocabulary's text does not end a turn."""
    tokens = ["a", *kinds]
    fields = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, *kinds.values()],
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in said.items()},
    }
    assert {tokens[index] for index in stop_tokens(fields)} == set(wanted)


def byte_level(pre: str) -> dict[str, Any]:
    """The fields of a file with two merges, a word that no merge makes, and markers."""
    tokens = [*text_probe.byte_alphabet(), "ab", "abcd", "<think>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[1] * (len(tokens) - 2), 4, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 258,
    }


def test_tokens_of_a_user_are_not_split() -> None:
    ours = build_tokenizer(byte_level("qwen2"))
    assert ours.encode("a<think>\n<|im_end|>").tokens == ["a", "<think>", "\u010a", "<|im_end|>"]
    assert ours.decode(ours.encode("<think>ab<|im_end|>").ids) == "<think>ab"


@pytest.mark.parametrize(
    ("pre", "word", "begins"),
    [
        ("llama-bpe", ["abcd"], True),
        ("falcon3", ["abcd"], True),
        ("tekken", ["abcd"], True),
        ("glm4", ["abcd"], False),
        ("qwen2", ["ab", "c", "d"], False),
    ],
)
def test_defaults_are_those_of_llama_cpp(
    tmp_path: Path, pre: str, word: list[str], begins: bool
) -> None:
    fields = byte_level(pre)
    ours = build_tokenizer(fields)
    assert ours.encode("abcd").tokens == word
    for said in ({}, {"tokenizer.ggml.add_bos_token": not begins}):
        save_tokenizer(ours, {**fields, **said}, tmp_path)
        first = ChatTokenizer.load(tmp_path).first_ids()
        assert first == ([258] if begins == (not said) else [])


def test_a_file_without_a_rule_for_words_is_refused() -> None:
    """Unless its family is known to cut words as GPT-2 does: a guess would give wrong tokens."""
    fields = byte_level("gpt-2")
    wanted = build_tokenizer(fields).to_str()
    del fields["tokenizer.ggml.pre"]
    with pytest.raises(UserError, match=r"lacks tokenizer\.ggml\.pre"):
        build_tokenizer({**fields, "general.architecture": "llama"})
    assert build_tokenizer({**fields, "general.architecture": "gptneox"}).to_str() == wanted


def pieces_of(theirs: Tokenizer) -> dict[str, Any]:
    """The fields of a file, as llama.cpp's converter writes them."""
    special = {token.content for token in theirs.get_added_tokens_decoder().values()}
    vocabulary = theirs.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    begun = {token: token[2:] if token.startswith("##") else f"\u2581{token}" for token in tokens}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [t if t in special else begun[t] for t in tokens],
        "tokenizer.ggml.token_type": [3 if t in special else 1 for t in tokens],
        "tokenizer.ggml.unknown_token_id": vocabulary["[UNK]"],
        "tokenizer.ggml.bos_token_id": vocabulary["[CLS]"],
        "tokenizer.ggml.seperator_token_id": vocabulary["[SEP]"],
    }


@pytest.mark.parametrize("lowercase", [True, False])
def test_pieces_of_words_are_those_of_the_tokenizer_that_they_are_of(lowercase: bool) -> None:
    theirs = text_probe.in_pieces(lowercase=lowercase).tokenizer
    ours = build_tokenizer(pieces_of(theirs))
    older = pieces_of(theirs)
    older["tokenizer.ggml.cls_token_id"] = older.pop("tokenizer.ggml.bos_token_id")
    assert build_tokenizer(older).to_str() == ours.to_str()
    for text in ("The quick brown F\u00f6x", "[CLS] \u017elu\u0165 [MASK]\u6771\x00 zq", ""):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == theirs.decode(ours.encode(text).ids)


def test_pieces_without_the_ends_of_a_text_are_rejected() -> None:
    fields = pieces_of(text_probe.in_pieces().tokenizer)
    del fields["tokenizer.ggml.seperator_token_id"]
    with pytest.raises(UserError, match="seperator_token_id"):
        build_tokenizer(fields)


# As the converter spells RWKV's vocabulary: Python's own escapes, and one token of a text's end.
BYTES = [repr(bytes([byte]))[2:-1] for byte in range(256)]
PIECES = ["ab", "abc", "cd", r"\n\n", " a", repr("é".encode())[2:-1], r"a\\", "[PAD0]"]
RWKV = {
    "tokenizer.ggml.model": "rwkv",
    "tokenizer.ggml.tokens": ["<s>", *BYTES, *PIECES],
    "tokenizer.ggml.token_type": [3, *[1] * (len(BYTES) + len(PIECES) - 1), 5],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.chat_template": "rwkv-world",
}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abcd", [b"abc", b"d"]),
        ("abd", [b"ab", b"d"]),
        ("a\n\n\n", [b"a", b"\n\n", b"\n"]),
        (" abc", [b" a", b"b", b"c"]),
        ("éa\\ü", ["é".encode(), b"a\\", b"\xc3", b"\xbc"]),
        ("[PAD0]", [b"[", b"P", b"A", b"D", b"0", b"]"]),
    ],
)
def test_rwkv_takes_the_longest_piece(tmp_path: Path, text: str, pieces: list[bytes]) -> None:
    ours = build_tokenizer(RWKV)
    ids = [RWKV["tokenizer.ggml.tokens"].index(repr(piece)[2:-1]) for piece in pieces]
    assert ours.encode(text).ids == ids
    assert ours.decode(ids) == text
    assert ours.encode(f"<s>{text}").ids == [0, *ids]
    save_tokenizer(ours, RWKV, tmp_path)
    stored = ChatTokenizer.load(tmp_path)
    # The name of a template of llama.cpp is not a template.
    assert not stored.has_chat
    assert stored.chat_ids(text) == ids
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        pack(stored)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(BYTES[:-1], "no token for the byte 255"), ([*BYTES, "é"], "'é', which does not spell bytes")],
)
def test_a_vocabulary_that_is_not_rwkvs_is_refused(tokens: list[str], message: str) -> None:
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    with pytest.raises(UserError, match=message):
        build_tokenizer({**RWKV, **fields})
