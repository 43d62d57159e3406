# SPDX-License-Identifier: Apache-2.0
"""Unicode's code points, and sets of them as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LAST = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)


def header(lines: Iterable[str]) -> str:
    """A C++ header of the runner, with what it declares; written when the runner is built."""
    return "\n".join(
        [
            "// SPDX-License-Identifier: Apache-2.0",
            "// Generated; see scripts/crosslab/tokenizer/unicode_tables.py.",
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
    """Rows of numbers, or of lists of them, as C++ initializers."""
    for i in range(0, len(table), per_line):
        yield "    " + " ".join(f"{_braced(row)}," for row in table[i : i + per_line])


def _braced(row: Sequence[Any]) -> str:
    return "{" + ", ".join(_braced(n) if isinstance(n, list) else f"0x{n:X}" for n in row) + "}"


def ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Code points as the fewest ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found
