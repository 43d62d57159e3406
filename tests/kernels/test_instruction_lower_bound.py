# SPDX-License-Identifier: Apache-2.0
"""Every kernel stays near the fewest instructions that its tile allows, whatever surrounds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosslab.assemble.kernels import read_kernels
from crosslab.bench import instruction_lower_bound
from crosslab.bench.kernel_bench import MOST, Case, Figures, attention_case, build, main, measure
from crosslab.compile.driver import MAX_BATCH
from crosslab.cores.core import CORES, read_core
from crosslab.cores.pipeline import pipeline_cycles
from crosslab.errors import UserError
from crosslab.host.toolchain import find_cross, require_qemu
from crosslab.models.formats import packings
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine

VLENS = (128, 256, 512, 1024)
# Cycles of two rows and more in one call, of those of as many calls.
MOST_TOGETHER = {"gemm_q4_tiles": 0.96, "gemm_q4_int8": 0.95}
# Rows of whole tiles, with a remainder, and few; a width that no tile divides.
GEMM = [(128, 768, 256), (100, 900, 320), (7, 960, 576), (4, 768, 256)]
GEMV = [(1, 768, 256), (1, 256, 688), (1, 900, 320), (1, 576, 1536)]
LINEAR = [
    Case(f"{kind}_{weights}", sizes)
    for kind, shapes in (("gemm", GEMM), ("gemv", GEMV))
    for weights in packings()
    for sizes in shapes
]


@pytest.fixture(scope="module")
def program(emulator: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and a folder for its other build results."""
    try:
        find_cross()
        require_qemu()
    except UserError as error:
        pytest.skip(error.what)
    folder, cache = tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("cache")
    return build(folder, cache), cache


@pytest.fixture(scope="module", params=VLENS)
def figures(
    request: pytest.FixtureRequest, program: tuple[Path, Path]
) -> list[tuple[Case, Figures]]:
    """Instructions of every case at a vector length."""
    every = [*LINEAR, *map(attention_case, read_kernels())]
    return measure(program[0], every, request.param, program[1])


def test_no_kernel_is_far_above_its_floor(figures: list[tuple[Case, Figures]]) -> None:
    assert {case: got.ratio for case, got in figures if got.ratio > MOST} == {}


def test_no_kernel_is_below_its_floor(figures: list[tuple[Case, Figures]]) -> None:
    """If a kernel beats a floor, the floor is wrong."""
    assert {case: got.ratio for case, got in figures if got.ratio < 1} == {}


def test_the_floor_of_whole_tiles_is_that_of_the_inner_loop() -> None:
    """Three rows at LMUL=8: 8 instructions for 192 multiply-adds, but for storing the result."""
    rows, columns, depth = 3 * 50, 64 * 4, 4096
    floor = instruction_lower_bound.gemm_f32(rows, columns, depth, 256) / (rows * columns * depth)
    assert floor == pytest.approx(8 / 192, rel=2e-2)
    assert instruction_lower_bound.gemv_f32(1024, 64 * 64, 256) / (1024 * 64 * 64) == pytest.approx(
        8 / 128, rel=2e-2
    )


def test_a_kernel_above_the_bar_is_marked_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: tuple[Path, Path]
) -> None:
    case = Case("gemv_f32", (1, 64, 64))
    monkeypatch.setattr("crosslab.bench.kernel_bench.cases", lambda: iter([case]))
    monkeypatch.setattr("crosslab.bench.kernel_bench.MOST", 1000.0)
    assert main(["--cache", str(program[1])]) == 0
    monkeypatch.setattr("crosslab.bench.kernel_bench.MOST", 0.5)
    assert main(["--cache", str(program[1])]) == 1
    assert " !" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("together", "alone"), [("gemm_q4_tiles", "gemv_q4_tiles"), ("gemm_q4_int8", "gemm_q4_int8")]
)
def test_rows_together_share_weights(program: tuple[Path, Path], together: str, alone: str) -> None:
    """As when answers of up to eight clients are decoded: cycles on a core that runs in order."""
    layer, core = ("768", "256"), read_core(CORES, "spacemit-x60")
    words = [str(core.vlen // 4), alone, "1", *layer]
    for rows in range(2, MAX_BATCH + 1):
        words += [together, str(rows), *layer]
    _, measured = count_guest(program[0], words, GuestMachine(core.vlen), program[1])
    counts = [sum(pipeline_cycles(core, measured, [i]).values()) for i in range(MAX_BATCH)]
    ratios = {rows: count / (rows * counts[0]) for rows, count in enumerate(counts, start=1)}
    assert {rows: r for rows, r in ratios.items() if r > MOST_TOGETHER[together] and rows > 1} == {}
