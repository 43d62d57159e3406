# SPDX-License-Identifier: Apache-2.0
"""Products with many rows stay near the arithmetic floor of their tile, packing included."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosslab.counter import count_guest
from crosslab.emulator import GuestMachine
from crosslab.kernel_bench import build, floor

from .conftest import require

MOST = 1.15


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and a folder for what is built beside it."""
    require("clang-19", "ld.lld-19", "qemu-riscv64")
    if not Path("/usr/riscv64-linux-gnu/lib/libc.a").exists():
        pytest.skip("not installed: libc6-dev-riscv64-cross")
    folder, cache = tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("cache")
    return build(folder, cache), cache


@pytest.mark.parametrize("vlen", [128, 256, 512])
@pytest.mark.parametrize("kind", ["gemm_f32", "gemm_q4"])
def test_a_prompt_of_128_tokens(program: tuple[Path, Path], kind: str, vlen: int) -> None:
    binary, cache = program
    words = [kind, "128", "768", "256", str(vlen // 4)]
    _, measured = count_guest(binary, words, GuestMachine(vlen), cache)
    assert measured.region.insns / (128 * 768 * 256) < MOST * floor(kind, vlen)
