# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of GGUF files."""

from __future__ import annotations

import json

import pytest
from support import text_probe

from crosslab.errors import UserError
from crosslab.tokenizer.chat_tokenizer import build_tokenizer


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
