# SPDX-License-Identifier: Apache-2.0
"""Tables for Unicode's form NFC in the runner, derived from the tokenizers library.

The runner needs the Unicode version that normalized the model's text. The library does not expose
its tables, so these functions derive them from the library's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import normalizers

from crosslab.tokenizer import code_points
from crosslab.tokenizer.code_points import LAST, SURROGATES, ranges, rows

FILE = "nfc_tables.h"
_AT_ONCE = 256
LONGEST = 4  # most code points of a decomposition (limit of NFD in UAX 15)
# A mark of each canonical combining class in Unicode, in ascending order.
MARKS: tuple[tuple[int, int], ...] = (
    (1, 0x0334), (6, 0x16FF0), (7, 0x093C), (8, 0x3099), (9, 0x094D), (10, 0x05B0), (11, 0x05B1),
    (12, 0x05B2), (13, 0x05B3), (14, 0x05B4), (15, 0x05B5), (16, 0x05B6), (17, 0x05B7),
    (18, 0x05B8), (19, 0x05B9), (20, 0x05BB), (21, 0x05BC), (22, 0x05BD), (23, 0x05BF),
    (24, 0x05C1), (25, 0x05C2), (26, 0xFB1E), (27, 0x064B), (28, 0x064C), (29, 0x064D),
    (30, 0x064E), (31, 0x064F), (32, 0x0650), (33, 0x0651), (34, 0x0652), (35, 0x0670),
    (36, 0x0711), (84, 0x0C55), (91, 0x0C56), (103, 0x0E38), (107, 0x0E48), (118, 0x0EB8),
    (122, 0x0EC8), (129, 0x0F71), (130, 0x0F72), (132, 0x0F74), (202, 0x0321), (214, 0x1DCE),
    (216, 0x031B), (218, 0x302A), (220, 0x0316), (222, 0x059A), (224, 0x302E), (226, 0x1D16D),
    (228, 0x05AE), (230, 0x0301), (232, 0x0315), (233, 0x035C), (234, 0x035D), (240, 0x0345),
)  # fmt: skip

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

    lowest, highest = MARKS[0][1], MARKS[-1][1]
    moved = {*_changed(lambda c: f"{chr(highest)}{chr(c)}")}
    moved |= {lowest, highest, *_changed(lambda c: f"{chr(c)}{chr(lowest)}")}
    alone = (c for c in sorted(moved) if nfd(chr(c)) == chr(c))
    marks = [c for c in alone if swaps(c, lowest) or swaps(highest, c) or c in (lowest, highest)]
    # A mark of a newer Unicode than the library's has no class in the library.
    known = [(number, mark) for number, mark in MARKS if mark == lowest or swaps(mark, lowest)]
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
