# SPDX-License-Identifier: Apache-2.0
"""GPT-2's alphabet of bytes, and RWKV's tokenizer, which takes the longest piece of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from crosslab.errors import UserError


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character in GPT-2's alphabet of bytes, in the order of the bytes.

    Printable bytes of Latin-1 keep their character; the other bytes are U+0100 and on, in order.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return {chr(b if b in printed else next(others)): b for b in range(256)}


def longest_pieces(pieces: Mapping[int, str], special: Mapping[str, int]) -> Tokenizer:
    r"""Build RWKV's tokenizer: the longest piece that the text begins with, and so on.

    Args:
        pieces: bytes of a token by id; others than printable ASCII are written as \xff, \n, \\.
        special: ids of other tokens by their text.

    Raises:
        UserError: a token is written otherwise, or a byte is not a token.
    """
    spelled = {byte: char for char, byte in byte_alphabet().items()}
    vocabulary = dict(special)
    for index, token in pieces.items():
        try:
            raw = token.encode("ascii").decode("unicode_escape").encode("latin-1")
        except UnicodeError as error:
            raise UserError(
                f"the model's tokenizer has {token[:40]!r}, which does not spell bytes"
            ) from error
        vocabulary.setdefault("".join(spelled[byte] for byte in raw), index)
    if missing := [byte for byte, char in spelled.items() if char not in vocabulary]:
        raise UserError(f"the model's tokenizer has no token for the byte {missing[0]}")
    # WordPiece takes the longest piece, too. As every byte is a token, no text is unknown.
    model = models.WordPiece(
        vocabulary,
        unk_token=spelled[0],
        continuing_subword_prefix="",
        max_input_chars_per_word=1 << 24,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
