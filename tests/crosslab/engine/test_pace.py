# SPDX-License-Identifier: Apache-2.0
"""Lengths of the parts of a prompt on machines of every pace."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain

MOST = 512


@pytest.fixture(scope="module")
def probe(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "pace_probe")


def parts(
    probe: Path, call: float, row: float, *, slow: float = 1, decode: float = 0
) -> list[tuple[int, float]]:
    """Rows and seconds of calls that take ``call`` seconds and ``row`` seconds a row."""
    words = [str(probe), *map(str, (MOST, call, row, slow, decode, 20))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return [(int(rows), float(seconds)) for rows, seconds in pairs]


@pytest.mark.parametrize("slow", [1, 20])
@pytest.mark.parametrize("row", [0.0001, 0.004, 0.05, 0.3, 3])
@pytest.mark.parametrize("call", [0, 0.01, 0.2, 0.9, 2])
def test_a_part_takes_a_second_or_two_rows(probe: Path, call: float, row: float, slow: int) -> None:
    single = call + row
    most = max(1, 2 * single)
    first, second, *others = parts(probe, call, row, slow=slow)
    assert first == (1, pytest.approx(single * slow, rel=1e-3))
    assert second == (1, pytest.approx(single, rel=1e-3))
    assert all(seconds <= 1.25 * most for _, seconds in others), others
    # And nearly as many rows as that allows.
    assert others[-1][0] > 0.6 * min(MOST, (most - call) / row), others


@pytest.mark.parametrize(("call", "row"), [(0.05, 0.002), (0.5, 0.02), (0.01, 0.05)])
def test_a_part_beside_a_stream_takes_a_few_of_its_tokens(
    probe: Path, call: float, row: float
) -> None:
    decode = call + row
    told = parts(probe, call, row, decode=decode)
    assert all(seconds <= 7.5 * decode for _, seconds in told), told
    assert told[-1][1] > 4 * decode
