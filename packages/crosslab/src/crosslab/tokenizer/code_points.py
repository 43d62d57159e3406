# SPDX-License-Identifier: Apache-2.0
"""Ranges of Unicode code points, and C++ tables of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LAST = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)


def header(lines: Iterable[str]) -> str:
    """Return a C++ header of the runner with the given lines; the runner's build writes it."""
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            "// Generated; see packages/crosslab/src/crosslab/tokenizer/unicode_tables.py.",
            "#pragma once",
            "",
            "#include <cstdint>",
            "",
            "namespace rvv_runner {",
            "",
            *lines,
            "}  // namespace rvv_runner",
            "",
        ]
    )


def rows(table: Sequence[Sequence[Any]], per_line: int) -> Iterator[str]:
    """Yield lines of C++ initializers, ``per_line`` rows of numbers, or lists of numbers, each."""
    for i in range(0, len(table), per_line):
        yield "    " + " ".join(f"{_braced(row)}," for row in table[i : i + per_line])


def _braced(row: Sequence[Any]) -> str:
    return "{" + ", ".join(_braced(n) if isinstance(n, list) else f"0x{n:X}" for n in row) + "}"


def ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Convert code points to the fewest ranges, both ends included."""
    merged: list[tuple[int, int]] = []
    for code in sorted(codes):
        if merged and merged[-1][1] == code - 1:
            merged[-1] = (merged[-1][0], code)
        else:
            merged.append((code, code))
    return merged
