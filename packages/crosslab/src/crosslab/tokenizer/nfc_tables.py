# SPDX-License-Identifier: Apache-2.0
"""Tables for Unicode's form NFC in the runner, derived from the tokenizers library.

The runner needs the Unicode version that normalized the model's text. The library does not expose
its tables, so these functions derive them from the library's results.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import normalizers

from crosslab.tokenizer import code_points
from crosslab.tokenizer.code_points import LAST, SURROGATES, ranges, rows

FILE = "nfc_tables.h"
_AT_ONCE = 256
LONGEST = 4  # most code points of a decomposition (limit of NFD in UAX 15)
# Marks of the lowest and of the highest canonical combining class.
LOWEST, HIGHEST = 0x0334, 0x0345

Normalize = Callable[[str], str]


def _library() -> tuple[Normalize, Normalize]:
    decomposing: Any = normalizers.NFD()
    composing: Any = normalizers.NFC()
    return decomposing.normalize_str, composing.normalize_str


def _changed(text_of: Callable[[int], str]) -> Iterator[int]:
    """Yield the code points for which NFD changes ``text_of(code)``, in ascending order.

    Code points are tested in blocks, because nearly all of Unicode is unassigned or unchanged.
    Letters separate the texts of a block: no mark moves over a letter.
    """
    nfd, _ = _library()
    for start in range(0, LAST + 1, _AT_ONCE):
        block = [code for code in range(start, start + _AT_ONCE) if code not in SURROGATES]
        whole = "a".join(map(text_of, block))
        if nfd(whole) != whole:
            yield from (code for code in block if nfd(text_of(code)) != text_of(code))


def decompositions() -> dict[int, tuple[int, ...]]:
    """Return the full decomposition of each code point that has one.

    Hangul syllables are left out: they can be computed.
    """
    nfd, _ = _library()
    table = {}
    for code in _changed(chr):
        if not 0xAC00 <= code < 0xD7A4:
            table[code] = tuple(map(ord, nfd(chr(code))))
    return table


def compositions(decomposed: dict[int, tuple[int, ...]]) -> dict[tuple[int, int], int]:
    """Return the composed code point of each pair of code points."""
    _, nfc = _library()
    table = {}
    for code, parts in decomposed.items():
        if nfc(chr(code)) == chr(code):  # others are excluded from composition
            first = nfc("".join(map(chr, parts[:-1])))
            if len(first) == 1:
                table[ord(first), parts[-1]] = code
    return table


def classes() -> dict[int, int]:
    """Return the nonzero canonical combining class of code points, derived from NFD's order."""
    nfd, _ = _library()

    def swaps(first: int, second: int) -> bool:
        """True if NFD swaps the two: the second's class is the smaller, and neither class is 0."""
        text, swapped = f"{chr(first)}{chr(second)}", f"{chr(second)}{chr(first)}"
        return text != swapped and nfd(text) == swapped

    moved = {*_changed(lambda c: f"{chr(HIGHEST)}{chr(c)}")}
    moved |= {LOWEST, HIGHEST, *_changed(lambda c: f"{chr(c)}{chr(LOWEST)}")}
    alone = (c for c in sorted(moved) if nfd(chr(c)) == chr(c))
    marks = [c for c in alone if swaps(c, LOWEST) or swaps(HIGHEST, c) or c in (LOWEST, HIGHEST)]
    # A mark of each class. Python has other marks than the library, but the same classes.
    of_class = {unicodedata.combining(chr(mark)): mark for mark in marks}
    known = [(number, mark) for number, mark in of_class.items() if number]
    return {
        code: next(n for n, mark in known if not swaps(code, mark) and not swaps(mark, code))
        for code in marks
    }


def header() -> str:
    """Return the C++ header with the tables of decompositions, compositions and classes."""
    decomposed = decompositions()
    if max(map(len, decomposed.values())) > LONGEST:
        raise AssertionError(f"a code point decomposes into more than {LONGEST}")
    composed = compositions(decomposed)
    by_class: dict[int, list[int]] = {}
    for code, number in classes().items():
        by_class.setdefault(number, []).append(code)
    of_class = sorted(
        (first, last, number) for number, codes in by_class.items() for first, last in ranges(codes)
    )
    longer = [(c, *parts, *[0] * (LONGEST - len(parts))) for c, parts in sorted(decomposed.items())]
    pairs = [(*pair, code) for pair, code in sorted(composed.items())]
    return code_points.header(
        [
            "// What a code point decomposes into, wholly; zeros behind it.",
            "struct Decomposition {",
            "  uint32_t code;",
            f"  uint32_t parts[{LONGEST}];",
            "};",
            "",
            "struct Composition {",
            "  uint32_t first;",
            "  uint32_t second;",
            "  uint32_t composed;",
            "};",
            "",
            "// Code points of one canonical combining class other than 0.",
            "struct ClassRange {",
            "  uint32_t first;",
            "  uint32_t last;",
            "  uint8_t combining;",
            "};",
            "",
            "constexpr Decomposition kDecompositions[] = {",
            *rows([(code, parts) for code, *parts in longer], 2),
            "};",
            "",
            "constexpr Composition kCompositions[] = {",
            *rows(pairs, 3),
            "};",
            "",
            "constexpr ClassRange kClasses[] = {",
            *rows(of_class, 3),
            "};",
            "",
        ]
    )
