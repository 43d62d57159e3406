# SPDX-License-Identifier: Apache-2.0
"""Classes of code points that the runner cuts text by, as a generated C++ header.

They are read off the tokenizers library itself, and not off Python's unicodedata: what counts is
the Unicode version that a model's words were cut with, and the library carries two of them (one
in its regular expressions, one in the step that puts digits apart), both newer than Python 3.11's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers
from tokenizers import Regex, pre_tokenizers

from common.hashing import digest
from crosslab.cached_build import cached_build
from crosslab.tokenizer import code_points, nfc_tables
from crosslab.tokenizer.code_points import LAST, SURROGATES, ranges, rows

TABLES_FILE = "unicode_tables.h"
_AT_ONCE = 4096
_PER_LINE = 4


def matching(expression: str) -> set[int]:
    """Code points that an expression of one character matches."""
    left = pre_tokenizers.Split(Regex(expression), "removed")
    return {
        code
        for codes in _batches()
        for code in set(codes).difference(
            ord(c) for piece, _ in left.pre_tokenize_str(_text(codes)) for c in piece
        )
    }


def digits() -> set[int]:
    """Code points that are put apart as digits."""
    apart = pre_tokenizers.Digits(individual_digits=True)
    # Letters between them, so that a digit is a piece of one character and nothing else is.
    texts = ("aa" + "aa".join(map(chr, codes)) + "aa" for codes in _batches())
    pieces = (piece for text in texts for piece, _ in apart.pre_tokenize_str(text))
    return {ord(piece) for piece in pieces if len(piece) == 1}


def _batches() -> Iterator[list[int]]:
    codes = [c for c in range(LAST + 1) if c not in SURROGATES]
    return (codes[i : i + _AT_ONCE] for i in range(0, len(codes), _AT_ONCE))


def _text(codes: Iterable[int]) -> str:
    return "".join(map(chr, codes))


def header() -> str:
    """The C++ header with the tables."""
    tables = {
        "kLetters": matching(r"\p{L}"),
        "kCapitals": matching(r"[\p{Lu}\p{Lt}]"),
        "kSmalls": matching(r"\p{Ll}"),
        "kMarks": matching(r"\p{M}"),
        "kPunctuation": matching(r"\p{P}"),
        "kSymbols": matching(r"\p{S}"),
        "kNumbers": matching(r"\p{N}"),
        "kDigits": digits(),
        "kSpaces": matching(r"\s"),
    }
    lines = [
        "struct CodeRange {",
        "  uint32_t first;",
        "  uint32_t last;",
        "};",
        "",
    ]
    for name, codes in tables.items():
        lines += [f"constexpr CodeRange {name}[] = {{", *rows(ranges(codes), _PER_LINE), "};", ""]
    return code_points.header(lines)


def runner_tables(cache: Path) -> Path:
    """Make the runner's two generated headers; once for a version of the library.

    Returns:
        a folder for the compiler's ``-I``, with ``text/unicode_tables.h`` and
        ``text/nfc_tables.h``.
    """
    own = [Path(str(module.__file__)) for module in (code_points, nfc_tables)]
    key = digest(tokenizers.__version__, Path(__file__), *own)

    def make(out: Path) -> None:
        (out / "text").mkdir()
        for name, text in ((TABLES_FILE, header()), (nfc_tables.FILE, nfc_tables.header())):
            (out / "text" / name).write_text(text, encoding="utf-8")

    return cached_build(cache, "unicode-tables", key, make)
