# SPDX-License-Identifier: Apache-2.0
"""Classes of code points that the runner cuts text by, and widths, as a generated C++ header.

The tables are derived from the tokenizers library, not from Python's unicodedata. The runner needs
the Unicode version that cut the model's words. The library has two (in its regular expressions, and
in the step that separates digits), both newer than Python 3.11's. Columns in a terminal are
those of the package wcwidth. ``python -m crosslab.tokenizer.unicode_tables FOLDER`` writes both
headers to ``FOLDER/text``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import wcwidth
from tokenizers import Regex, pre_tokenizers
from wcwidth.table_wide import WIDE_EASTASIAN
from wcwidth.table_zero import ZERO_WIDTH

from crosslab.tokenizer import code_points, nfc_tables
from crosslab.tokenizer.code_points import LAST, SURROGATES, ranges, rows
from crosslab.tokenizer.word_rules import word_rules

TABLES_FILE = "unicode_tables.h"
_AT_ONCE = 4096
_PER_LINE = 4

_CASED = next(rule for rule in word_rules() if rule.name == "deepseekllm").pre_tokenizer

# Code points of a class match an expression of one character.
_EXPRESSIONS = {
    "kLetters": r"\p{L}",
    "kCapitals": r"[\p{Lu}\p{Lt}]",
    "kSmalls": r"\p{Ll}",
    "kCased": _CASED["pretokenizers"][1]["pattern"]["Regex"].removeprefix(r"\s?").removesuffix("+"),
    "kMarks": r"\p{M}",
    "kPunctuation": r"\p{P}",
    "kSymbols": r"\p{S}",
    "kNumbers": r"\p{N}",
}
_SPACE = r"\s"


def _matching(expression: str, blocks: Iterable[str]) -> Iterator[str]:
    """Yield the characters in blocks of text that match an expression of one character, by runs."""
    left = pre_tokenizers.Split(Regex(expression), "removed")
    for block in blocks:
        at = 0
        for _, (begin, end) in left.pre_tokenize_str(block):
            yield block[at:begin]
            at = end
        yield block[at:]


def _digits(blocks: Iterable[str]) -> set[str]:
    """Return the characters that the library separates as digits."""
    apart = pre_tokenizers.Digits(individual_digits=True)
    # Letters between them, so that a digit is a piece of one character and nothing else is.
    texts = ("aa" + "aa".join(block) + "aa" for block in blocks)
    pieces = (piece for text in texts for piece, _ in apart.pre_tokenize_str(text))
    return {piece for piece in pieces if len(piece) == 1}


def _blocks() -> list[str]:
    """Return all characters except surrogates, in texts of ``_AT_ONCE`` characters."""
    text = "".join(chr(code) for code in range(LAST + 1) if code not in SURROGATES)
    return [text[i : i + _AT_ONCE] for i in range(0, len(text), _AT_ONCE)]


def header() -> str:
    """Return the C++ header with the ranges of each class of characters."""
    blocks = _blocks()
    # Most planes are unassigned: they are asked for once, and not for each class.
    any_class = "|".join([*_EXPRESSIONS.values(), _SPACE])
    some = [block for block in blocks if any(_matching(any_class, [block]))]
    tables = {name: _matching(text, some) for name, text in _EXPRESSIONS.items()}
    tables |= {"kDigits": iter(_digits(blocks)), "kSpaces": _matching(_SPACE, some)}
    lines = [
        "struct CodeRange {",
        "  uint32_t first;",
        "  uint32_t last;",
        "};",
        "",
    ]
    found = {name: ranges(map(ord, "".join(runs))) for name, runs in tables.items()}
    newest = wcwidth.list_versions()[-1]
    found |= {"kWide": [*WIDE_EASTASIAN[newest]], "kZeroWidth": [*ZERO_WIDTH[newest]]}
    for name, table in found.items():
        lines += [f"constexpr CodeRange {name}[] = {{", *rows(table, _PER_LINE), "};", ""]
    return code_points.header(lines)


def write_tables(folder: Path) -> None:
    """Write the runner's two generated headers to ``folder/text``."""
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for name, text in ((TABLES_FILE, header()), (nfc_tables.FILE, nfc_tables.header())):
        (folder / "text" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
