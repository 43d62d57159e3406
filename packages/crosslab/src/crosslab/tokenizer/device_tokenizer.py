# SPDX-License-Identifier: Apache-2.0
"""Converter of a tokenizer and its chat template to a table that the runner reads.

runner/text/tokenizer_file.h describes the layout.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.tokenizer.byte_pieces import byte_alphabet
from crosslab.tokenizer.chat_tokenizer import TOKENIZER_FILE, ChatTokenizer
from crosslab.tokenizer.text_form import Flag, text_form
from crosslab.tokenizer.tool_format import ToolFormat, tool_format
from crosslab.tokenizer.unsupported import UnsupportedTokenizerError
from crosslab.tokenizer.word_pieces import word_pieces
from crosslab.tokenizer.word_rules import TABLE
from groundwork.hashing import digest

DEVICE_FILE = "tokenizer.bin"
MAGIC = b"RVVTOKEN"
VERSION = 4
SOURCES = sorted(Path(__file__).parent.glob("*.py"))
NO_TOKEN = 0xFFFFFFFF


class TokenKind(enum.IntFlag):
    """Properties of a token."""

    SPECIAL = 1
    MARKER = 2
    LATE_MARKER = 4
    WORD = 8
    TAKES_LEFT = 16
    TAKES_RIGHT = 32
    SPELLED = 64


def device_tokenizer(model: Path, cache: Path, usable: ChatTokenizer | None = None) -> Path:
    """Write the ``tokenizer.bin`` of an imported model to ``cache`` once; return the path.

    Args:
        model: folder of the model.
        cache: folder of finished builds.
        usable: the model's tokenizer after ``with_usable_chat``; None: it is loaded here.

    Raises:
        UnsupportedTokenizerError: the tokenizer has a feature that the runner lacks.
    """
    tokenizer = usable or ChatTokenizer.load(model).with_usable_chat()[0]
    settings = json.dumps([dict(tokenizer.settings), tokenizer.stop_ids], sort_keys=True)
    key = digest(*SOURCES, TABLE, model / TOKENIZER_FILE, settings)

    def make(folder: Path) -> None:
        (folder / DEVICE_FILE).write_bytes(pack(tokenizer))

    return cached_build(cache, "device-tokenizer", key, make) / DEVICE_FILE


def pack(tokenizer: ChatTokenizer) -> bytes:
    """Convert a tokenizer to the bytes of ``tokenizer.bin``.

    Raises:
        UnsupportedTokenizerError: the tokenizer has a feature that the runner lacks.
    """
    about = json.loads(tokenizer.tokenizer.to_str())
    model = about["model"]
    _check(about)
    form = text_form(about, tokenizer.tokenizer.normalizer)
    in_pieces = model["type"] == "WordPiece"
    by_character = Flag.BY_CHARACTER in form.flags
    alphabet = {} if by_character or in_pieces else byte_alphabet()
    vocabulary: dict[str, int] = model["vocab"]
    tokens, kinds = _tokens(vocabulary, about["added_tokens"], alphabet)
    spelled = [f"<0x{b:02X}>" for b in range(256)] if by_character else list(alphabet)
    of_bytes = [vocabulary.get(name, NO_TOKEN) for name in spelled] or [NO_TOKEN] * 256
    merges = _merges(model.get("merges", ()), vocabulary)
    no_byte = NO_TOKEN in of_bytes and not in_pieces
    if no_byte and (by_character or model.get("unk_token") is not None):
        raise UnsupportedTokenizerError("it has an unk_token, and no tokens for some bytes")
    flags = form.flags | (Flag.WHOLE_WORDS if model.get("ignore_merges") else Flag(0))
    first, last = _outer_ids(tokenizer)
    if last and not in_pieces:
        raise UnsupportedTokenizerError("it adds more to a text than first tokens")
    texts = [b"", b"", b"", word_pieces(tokenizer.tokenizer, last) if in_pieces else b""]
    if tokenizer.has_chat:
        flags |= Flag.CHAT
        texts[0] = str(tokenizer.settings["chat_template"]).encode()
        calls = tool_format(tokenizer)
        about_chat = (tokenizer.variables, calls and asdict(calls))
        texts[1:3] = (json.dumps(each).encode() for each in about_chat)
        if calls:
            _show(calls, tokens, kinds)
    stop = tokenizer.stop_ids
    blob = b"".join(tokens)
    sizes = (len(tokens), len(merges), len(blob), len(stop), len(first), *map(len, texts))
    numbers = [form.rule, flags, *sizes]
    numbers += _ends(tokens)
    numbers += of_bytes
    numbers += [number for merge in merges for number in merge]
    numbers += [*stop, *first]
    body = struct.pack(f"<{len(numbers)}I", *numbers) + b"".join((bytes(kinds), blob, *texts))
    return MAGIC + struct.pack("<II", VERSION, zlib.crc32(body)) + body


def _show(calls: ToolFormat, tokens: Sequence[bytes], kinds: list[TokenKind]) -> None:
    """Make the markers of tool calls part of an answer's text, by removing the flag SPECIAL."""
    written = (calls.begin + calls.between + calls.end).encode()
    for index, token in enumerate(tokens):
        if kinds[index] & TokenKind.SPECIAL and token and token in written:
            kinds[index] &= ~TokenKind.SPECIAL


def _check(about: Mapping[str, Any]) -> None:
    """Refuse a tokenizer whose ids the runner would compute differently from the library."""
    model = about["model"]
    if model.get("type") == "WordPiece":
        return
    if model.get("type") != "BPE":
        raise UnsupportedTokenizerError(
            f"its model is {model.get('type')}, neither BPE nor WordPiece"
        )
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedTokenizerError(f"its model uses {option}")


def _tokens(
    vocabulary: Mapping[str, int], added: Sequence[Mapping[str, Any]], alphabet: Mapping[str, int]
) -> tuple[list[bytes], list[TokenKind]]:
    """Return bytes and kind of the token of each id; unused ids have no bytes."""
    texts: dict[int, str] = {index: token for token, index in vocabulary.items()}
    texts.update({entry["id"]: entry["content"] for entry in added})
    size = max(texts, default=-1) + 1
    kinds = [TokenKind(0)] * size
    for token, index in vocabulary.items():
        if not alphabet or _in_alphabet(token, alphabet):
            kinds[index] |= TokenKind.WORD
    for entry in added:
        kinds[entry["id"]] |= TokenKind.LATE_MARKER if entry["normalized"] else TokenKind.MARKER
        # The library finds the characters in a text, and shows the bytes that they stand for.
        if _in_alphabet(entry["content"], alphabet) and not entry["content"].isascii():
            kinds[entry["id"]] |= TokenKind.SPELLED
        for option, kind in _OPTIONS.items():
            if entry[option]:
                kinds[entry["id"]] |= kind
    return [_bytes(texts.get(index, ""), alphabet) for index in range(size)], kinds


_OPTIONS = {
    "special": TokenKind.SPECIAL,
    "lstrip": TokenKind.TAKES_LEFT,
    "rstrip": TokenKind.TAKES_RIGHT,
}


def _bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """Convert a token to bytes; a token with characters outside the alphabet is plain text."""
    return bytes(alphabet[c] for c in token) if _in_alphabet(token, alphabet) else token.encode()


def _in_alphabet(token: str, alphabet: Mapping[str, int]) -> bool:
    return bool(alphabet) and all(c in alphabet for c in token)


def _merges(
    merges: Iterable[Sequence[str]], vocabulary: Mapping[str, int]
) -> list[tuple[int, int, int, int]]:
    """Return (left, right, merged, rank) of each merge, sorted by pair of ids."""
    table = {
        (vocabulary[left], vocabulary[right]): (vocabulary[left + right], rank)
        for rank, (left, right) in enumerate(merges)
    }
    return [(*pair, *merged) for pair, merged in sorted(table.items())]


def _ends(tokens: Iterable[bytes]) -> list[int]:
    ends, end = [], 0
    for token in tokens:
        end += len(token)
        ends.append(end)
    return ends


def _outer_ids(tokenizer: ChatTokenizer) -> tuple[list[int], list[int]]:
    try:
        return tokenizer.outer_ids()
    except LabError as error:
        raise UnsupportedTokenizerError("it adds tokens that depend on the text") from error
