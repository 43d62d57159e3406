# SPDX-License-Identifier: Apache-2.0
"""Cycles of every kernel by unit of a core: none below the fewest, and none far above."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.shared_builds import CACHE, PROJECT

from crosslab.bench.kernel_bench import Case, build
from crosslab.bench.kernel_cycles import KernelCycles, bound_of, measure_cycles, tiled_cases
from crosslab.cores.core import core_names, read_core
from crosslab.cores.lower_bound import linear
from crosslab.errors import UserError
from crosslab.host.toolchain import find_cross
from crosslab.run.decode import Unit

CORES = PROJECT / "cores"
# Vec-serial cycles over the fewest; a few rows of packed weights are unpacked for each pair.
MOST = {
    "gemm_f32_tiles": 1.37,
    "gemm_q4_tiles": 2.35,
    "gemv_q4_tiles": 2.1,
    "gemm_q4_int8": 1.75,
    # Seven rows are computed as eight, and a prompt's panel is unpacked for them.
    **{"gemm_gguf_q4_0": 2.6, "gemm_gguf_q8_0": 3.6, "gemm_gguf_q4_k": 2.7, "gemm_gguf_q6_k": 3.1},
    "qk": 1.6,
    "pv": 1.25,
}


@pytest.fixture(
    scope="module",
    params=[
        "spacemit-x60",
        pytest.param("spacemit-x100", marks=pytest.mark.thorough),
        pytest.param("tenstorrent-ascalon-x", marks=pytest.mark.thorough),
    ],
)
def figures(
    request: pytest.FixtureRequest,
    counting_emulator: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[Case, KernelCycles]]:
    """Cycles of every case on a core."""
    try:
        find_cross()
    except UserError as error:
        pytest.skip(error.what)
    program = build(tmp_path_factory.mktemp("kernel-cycles"), CACHE)
    return measure_cycles(program, list(tiled_cases()), read_core(CORES, request.param), CACHE)


def test_no_unit_takes_less_than_its_bound(figures: list[tuple[Case, KernelCycles]]) -> None:
    below = {
        (case, unit): got.cycles.units[unit.value]
        for case, got in figures
        for unit in Unit
        if got.cycles.units[unit.value] < got.bound.of(unit)
    }
    assert below == {}


def test_no_kernel_is_far_above_its_bound(figures: list[tuple[Case, KernelCycles]]) -> None:
    ratios = {case: got.ratio for case, got in figures}
    assert {c: r for c, r in ratios.items() if r > MOST[c.product or c.kernel]} == {}
    assert {c.product or c.kernel for c in ratios} == set(MOST)


def test_bound_is_that_of_the_cheapest_instructions() -> None:
    """On an X60 64 multiply-adds take 8 cycles, 64 loads 16.52 and 64 stores 17.02 at the least."""
    core = read_core(CORES, "spacemit-x60")
    bound = linear(core, "gemm_f32_tiles", 3, 128, 10)
    assert bound.arithmetic == pytest.approx(3 * 128 * 10 * 8 / 64)
    assert bound.memory == pytest.approx(128 * 10 * 16.52 / 64 + 3 * 128 * 8.51 / 32)
    assert bound.scalar == pytest.approx(3 * 10 * 2 * core.assumptions.scalar.get("fload", 1))
    assert bound.vec_serial == bound.arithmetic + bound.memory


@pytest.mark.parametrize("name", core_names(CORES))
def test_cores_have_bounds_of_every_kernel_or_say_what_they_lack(name: str) -> None:
    core = read_core(CORES, name)
    lacks = next((one for one in ("vse32.v", "vfmacc.vf") if one not in core.cycles), None)
    if lacks:
        with pytest.raises(UserError, match=f"{name}: its table has no figure for {lacks}"):
            bound_of(next(tiled_cases()), core)
        return
    for case in tiled_cases():
        bound = bound_of(case, core)
        more = bound_of(replace(case, sizes=(2 * case.sizes[0], *case.sizes[1:])), core)
        assert all(0 < bound.of(unit) <= more.of(unit) for unit in Unit)
