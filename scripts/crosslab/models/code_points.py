# SPDX-License-Identifier: Apache-2.0
"""Unicode's code points, and sets of them as ranges."""

from __future__ import annotations

from collections.abc import Iterable

LAST = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)


def ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Code points as the fewest ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found
