# SPDX-License-Identifier: Apache-2.0
"""Conversion of text to the words that BPE merges, and back, from ``tokenizer.json``.

Two kinds are supported: byte-level BPE (GPT-2 and its successors), and SentencePiece's BPE of
characters, with bytes for characters without a token (Llama 2, Mistral, Gemma). The functions
refuse every other feature of the tokenizers library by name.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers.normalizers import Normalizer

from crosslab.tokenizer.unsupported import UnsupportedTokenizerError
from crosslab.tokenizer.word_rules import rule_of, word_rules

BLANK = "\u2581"


class Flag(enum.IntFlag):
    """Properties of a tokenizer in ``tokenizer.bin``."""

    WHOLE_WORDS = 1
    CHAT = 2
    NFC = 8
    BY_CHARACTER = 128
    DROPS_BLANK = 256
    PREFIX_ALWAYS = 512
    PREFIX_UNLESS_THERE = 1024
    PREFIX_AT_BEGINNING = 1536


@dataclass(frozen=True)
class TextForm:
    """Conversion of a text to the words that BPE merges.

    Attributes:
        rule: the runner's number of the rule that splits words.
        flags: flags of the normalizer, the prefix and the decoder.
    """

    rule: int
    flags: Flag


def text_form(about: Mapping[str, Any], normalizer: Normalizer | None) -> TextForm:
    """Return the rule and the flags by which a tokenizer converts text to words and back.

    Args:
        about: content of ``tokenizer.json``, with all fields, as the library writes it.
        normalizer: the library's normalizer, or None.

    Raises:
        UnsupportedTokenizerError: the runner does not support a normalizer, rule, decoder or added
            token.
    """
    if about["model"]["type"] == "WordPiece":
        return _in_pieces(about)
    decoder = about.get("decoder") or {}
    form = _byte_level(about) if decoder.get("type") == "ByteLevel" else _by_character(about)
    _check_added(about, normalizer)
    return form


def _in_pieces(about: Mapping[str, Any]) -> TextForm:
    """Return the form of a WordPiece tokenizer; refuse normalizers and words other than BERT's."""
    for part, wanted in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        if (kind := (about.get(part) or {}).get("type")) != wanted:
            raise UnsupportedTokenizerError(f"it has WordPiece, and its {part} is {kind}")
    if late := [t["content"] for t in about["added_tokens"] if t["normalized"] or t["single_word"]]:
        raise UnsupportedTokenizerError(f"its token {late[0]} is normalized, or a word of its own")
    whole = next(rule for rule in word_rules() if rule.name == "whole")
    return TextForm(whole.number, Flag.DROPS_BLANK)


def _byte_level(about: Mapping[str, Any]) -> TextForm:
    flags = Flag(0)
    for step in _steps(about.get("normalizer"), "normalizers"):
        if step["type"] != "NFC":
            raise UnsupportedTokenizerError(f"it has the normalizer {step['type']}")
        flags |= Flag.NFC
    if about["model"].get("byte_fallback"):
        raise UnsupportedTokenizerError("it is byte-level, and its model uses byte_fallback")
    pre = about.get("pre_tokenizer")
    if pre and pre["type"] == "ByteLevel" and pre.get("add_prefix_space"):
        flags |= Flag.PREFIX_UNLESS_THERE
        pre = {**pre, "add_prefix_space": False}
    rule = rule_of(pre)
    if rule is None:
        raise UnsupportedTokenizerError(f"its pre_tokenizer is {json.dumps(pre)}")
    return TextForm(rule.number, flags)


def _by_character(about: Mapping[str, Any]) -> TextForm:
    model = about["model"]
    if not model.get("byte_fallback"):
        raise UnsupportedTokenizerError("it is neither byte-level nor has byte_fallback")
    if model.get("ignore_merges"):
        raise UnsupportedTokenizerError("its model of characters uses ignore_merges")
    flags = Flag.BY_CHARACTER | _decoder(about.get("decoder"))
    blanks = False
    for step in _steps(about.get("normalizer"), "normalizers"):
        if step == {"type": "Prepend", "prepend": BLANK} and not blanks:
            flags |= Flag.PREFIX_ALWAYS
        elif step == {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}:
            blanks = True
        else:
            raise UnsupportedTokenizerError(f"it has the normalizer {step['type']}")
    whole = next(rule for rule in word_rules() if rule.name == "whole")
    pre = about.get("pre_tokenizer")
    if pre and pre["type"] == "Metaspace" and not blanks and Flag.PREFIX_ALWAYS not in flags:
        flags |= _metaspace(pre)
        blanks = True
    elif pre is not None and rule_of(pre) != whole:
        raise UnsupportedTokenizerError(f"its pre_tokenizer is {json.dumps(pre)}")
    if not blanks:
        raise UnsupportedTokenizerError(f"it does not write spaces as {BLANK}")
    return TextForm(whole.number, flags)


def _metaspace(pre: Mapping[str, Any]) -> Flag:
    if pre.get("replacement") != BLANK or pre.get("split", True):
        raise UnsupportedTokenizerError(f"its pre_tokenizer is {json.dumps(pre)}")
    schemes = {
        "never": Flag(0),
        "always": Flag.PREFIX_UNLESS_THERE,
        "first": Flag.PREFIX_AT_BEGINNING,
    }
    return schemes[pre["prepend_scheme"]]


def _decoder(decoder: Mapping[str, Any] | None) -> Flag:
    """Check a decoder's steps; return DROPS_BLANK if they drop the first blank of a text."""
    steps = list(_steps(decoder, "decoders"))
    known: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if steps == known:
        return Flag(0)
    if steps == [*known, strip]:
        return Flag.DROPS_BLANK
    raise UnsupportedTokenizerError(f"its decoder is {json.dumps(decoder)}")


def _steps(part: Mapping[str, Any] | None, field: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or a decoder; flatten nested sequences."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield dict(part)
        return
    for step in part[field]:
        yield from _steps(step, field)


def _check_added(about: Mapping[str, Any], normalizer: Normalizer | None) -> None:
    """Refuse added tokens that the runner and the library would match differently."""
    if not list(_steps(about.get("normalizer"), "normalizers")):
        normalizer = None  # a sequence without steps
    blanks = (about.get("pre_tokenizer") or {}).get("type") == "Metaspace"
    for added in about["added_tokens"]:
        content = added["content"]
        if added["single_word"]:
            raise UnsupportedTokenizerError(f"its token {content} has single_word")
        if not added["normalized"]:
            continue
        changed = normalizer is not None and normalizer.normalize_str(content) != content
        # Canonical composition may join the token with a following mark.
        joined = normalizer is not None and not content.isascii()
        if changed or joined or ((normalizer or blanks) and {" ", BLANK} & set(content)):
            raise UnsupportedTokenizerError(f"its token {content} is normalized itself")
