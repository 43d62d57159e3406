# SPDX-License-Identifier: Apache-2.0
"""BERT's tokenizer on the device against the library: the same ids, with those around a text."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import shared_builds, text_probe
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from crosslab.host.toolchain import Toolchain
from crosslab.tokenizer.chat_tokenizer import ChatTokenizer
from crosslab.tokenizer.device_tokenizer import pack
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError

TEXTS = [
    "",
    "The quick brown fox isn't jumping; over 13 lazy dogs!",
    "  Der Fu\u00df,\tla SE\u00d1ORA\r\n\u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "\u0130I\u0131 \u03a3\u03c2",
    "\u6771\u4eac\u306e\u5929\u6c17\u306f\u6674\u308c\u3067\u3059\u3002",
    "\u4e2d\u6587\ud55c\uad6d\uc5b4 \uf900\U0002f800",
    "[CLS] a [SEP]b[MASK] [mask] [UNK] \u0301a\u0301\u0323",
    "a" * 100 + " " + "a" * 101 + " " + "\u00e9" * 101,
    "x\x00y\x01z\u200b\ufeff\ufffd\u00ad\u2028\u00a0q \ue000 \u0378",
    "$5+3=8^2|~`<a>@b#c_d-e\u2014f\u00abg\u00bb\u00bf \U0001f600\U0001f468\u200d\U0001f469",
]


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> list[str]:
    return [str(text_probe.build_probe(sanitizers, shared_builds.CACHE))]


def check(
    probe: Sequence[str], tokenizer: ChatTokenizer, folder: Path, texts: Sequence[str]
) -> None:
    path = folder / "tokenizer.bin"
    path.write_bytes(pack(tokenizer))
    answers = text_probe.ask(probe, path, "raw", [text.encode() for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        assert answer["ids"] == tokenizer.tokenizer.encode(text).ids, text
        assert answer["text"] == tokenizer.decode(answer["ids"]), text


@pytest.mark.parametrize("lowercase", [False, True])
def test_pieces_are_the_librarys(probe: list[str], tmp_path: Path, lowercase: bool) -> None:
    choice = random.Random(3)
    some = "aA\u00e9e\u0301 .,$\u4e2d[CLS]th\u00dfing\u200b\x01\ud55c\U0001f600"
    random_texts = ["".join(choice.choices(some, k=40)) for _ in range(300)]
    tokenizer = text_probe.in_pieces(lowercase=lowercase)
    check(probe, tokenizer, tmp_path, [*TEXTS, *random_texts])


def test_each_character_is_the_librarys(probe: list[str], tmp_path: Path) -> None:
    """Of each range of a class its ends, and each that has a case, marks or a blank."""
    codes = [code for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    kinds = [unicodedata.category(chr(code)) for code in codes]
    border = [
        code
        for n, code in enumerate(codes[1:-1], 1)
        if kinds[n - 1] != kinds[n] or kinds[n] != kinds[n + 1] or n % 64 == 0
    ]
    cased = [c for c in codes if chr(c).lower() != chr(c) or unicodedata.combining(chr(c))]
    chosen = sorted({*border, *cased})
    texts = [
        " ".join(f"a{chr(c)}b {chr(c)}" for c in chosen[i : i + 512])
        for i in range(0, len(chosen), 512)
    ]
    check(probe, text_probe.in_pieces(), tmp_path, texts)


def test_other_forms_are_refused_by_name() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.raises(UnsupportedTokenizerError, match="its normalizer is None"):
        pack(ChatTokenizer(tokenizer, {}))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UnsupportedTokenizerError, match="its pre_tokenizer is Whitespace"):
        pack(ChatTokenizer(tokenizer, {}))
