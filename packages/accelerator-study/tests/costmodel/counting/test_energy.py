# SPDX-License-Identifier: Apache-2.0
"""Accesses to every memory, fills and drains among them, and the energy that follows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware, load_hardware
from costmodel.accelerator.scheme import FLOAT16, SCHEMES
from costmodel.accelerator.technology import technology
from costmodel.counting.affine import variable
from costmodel.counting.space import Access, Box
from costmodel.estimate.gemm import cost
from costmodel.estimate.model import other_work
from costmodel.estimate.product import Gemm, GemmCost, Role
from costmodel.estimate.tiling import DIMENSIONS, BufferTile, Holding
from costmodel.estimate.workload import OtherWork, Phase
from costmodel.search.levels import solve
from costmodel.search.products import Problem, search_together
from costmodel.search.systolic import FLOWS, Systolic

EDGE = load_hardware("edge8x8")
FLOW = load_dataflow("output-stationary")
NAMES = ("read", "write", "filled", "drained")
READ, WRITE = (1.0, 100.0), (10.0, 1000.0)  # pJ a bit of the buffer and what is behind it


def machine(*sizes: int) -> Hardware:
    """4 x 4 PEs behind memories of these bits; reads and writes have energies of their own."""
    buffer, dram = EDGE.levels
    held = [
        replace(buffer, name=f"l{n}", size=size, read_energy=READ[n], write_energy=WRITE[n])
        for n, size in enumerate(sizes)
    ]
    fabric = replace(EDGE.fabric, shape=(4, 4))
    return replace(EDGE, fabric=fabric, levels=(*held, dram))


@lru_cache
def elements(flow: str, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Elements of A, B and C that cross the boundary of 4 x 4 PEs, by TENET's definition."""
    fabric = machine(1).fabric
    bound = load_dataflow(flow).bind(fabric)
    rows, columns, depth = bound.gemm_names()[:3]
    box = Box.of(dict(zip((rows, columns, depth), (m, n, k), strict=True)))
    pairs = {"A": (rows, depth), "B": (depth, columns), "C": (rows, columns)}
    found = [
        oracle.unique(box, bound.mapping, fabric, Access(name, (tuple(variable(v) for v in pair),)))
        for name, pair in pairs.items()
    ]
    return found[0], found[1], found[2]


def of_levels(found: GemmCost) -> list[dict[str, int]]:
    return [{name: getattr(level, name) for name in NAMES} for level in found.traffic]


SIDES = st.tuples(*[st.integers(1, 9)] * 3)
PLANS = st.lists(st.tuples(SIDES, st.permutations(DIMENSIONS).map(tuple)), min_size=1, max_size=2)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(FLOWS), SIDES, PLANS, st.sampled_from(Role))
def test_every_access_is_counted(
    flow: str,
    extents: tuple[int, int, int],
    plan: list[tuple[tuple[int, int, int], tuple[str, ...]]],
    role: Role,
) -> None:
    """Against a walk over the tiles that moves element by element; scores and such stay on chip."""
    hardware = machine(*(1 << 20 << place for place in range(len(plan))))
    held = tuple(Holding(BufferTile(*tile), order) for tile, order in plan)
    found = cost(Gemm("g", *extents, role=role), hardware, load_dataflow(flow), plan=held)
    walk = oracle.Walk(
        extents,
        plan,
        (16, 16, FLOAT16.accumulator, 16),
        lambda m, n, k: elements(flow, m, n, k),
        role.on_chip,
    )
    wanted = walk.run()
    assert of_levels(found) == [{name: bits[name] for name in NAMES} for bits in wanted]
    for level, bits in zip(hardware.levels, wanted, strict=True):
        energy = bits["read"] * level.read_energy + bits["write"] * level.write_energy
        assert found.energy[level.name] == pytest.approx(energy)


def test_what_dram_delivers_is_written_to_the_buffer() -> None:
    """A token's logits: 576 x 49152 weights of 8 bits, scales of 16 for columns and the row."""
    hardware = load_hardware("systolic128x128")
    found = cost(Gemm("g", 1, 49152, 576), hardware, FLOW, SCHEMES["int8-token"])
    buffer, dram = found.traffic
    filled = 8 * 576 * (49152 + 1) + 16 * (49152 + 1)
    results = 16 * 49152
    assert (dram.read, dram.write, dram.filled, dram.drained) == (filled, results, 0, 0)
    # 128 columns of the array: the row and its scale are read 384 times.
    entering = 8 * 576 * (49152 + 384) + 16 * (49152 + 384)
    assert (buffer.read, buffer.write) == (entering + results, results + filled)
    assert (buffer.filled, buffer.drained) == (filled, results)
    accesses = 229_840_896 + 228_069_904
    assert buffer.read + buffer.write == accesses
    pj = technology().memories["sram-45nm"].energy_of(16 << 20)
    assert found.energy["buffer"] == pytest.approx(accesses * pj)
    # The port to the array has the buffer's bandwidth: fills have that of the memory behind.
    assert buffer.achieved == (entering + results) / found.latency


def test_sums_that_spill_count_both_ways() -> None:
    """8 x 4 x 8 in four tiles of 4 x 4 x 4, K outermost: two tiles of C leave and come back."""
    plan = (Holding(BufferTile(4, 4, 4), ("k", "m", "n")),)
    found = cost(Gemm("g", 8, 4, 8), machine(1 << 20), FLOW, plan=plan)
    buffer, dram = found.traffic
    sums, results = 2 * 16 * 32, 2 * 16 * 16
    filled = 16 * (8 * 8 + 8 * 4) + sums
    array_read = 16 * 4 * (16 + 16) + sums
    assert (dram.read, dram.write) == (filled, sums + results)
    assert (buffer.read, buffer.write) == (array_read + sums + results, sums + results + filled)
    assert (buffer.read, buffer.write) == (4608, 4096)
    assert found.energy["l0"] == 4608 * READ[0] + 4096 * WRITE[0]


def test_parts_of_a_split_buffer_are_filled_at_their_own_energy() -> None:
    """The same product; quarters for A and C, half for B."""
    sizes = (1 << 18, 1 << 19, 1 << 18)
    base = machine(1 << 23)
    split = replace(base.levels[0], split=tuple(8 * s for s in sizes))
    plan = (Holding(BufferTile(4, 4, 4), ("k", "m", "n")),)
    hardware = replace(base, levels=(split, base.levels[1]))
    found = cost(Gemm("g", 8, 4, 8), hardware, FLOW, plan=plan)
    sram = technology().memories["sram-45nm"]
    quarter, half = sram.energy_of(sizes[0]), sram.energy_of(sizes[1])
    activations, weights = 16 * (4 * 16 + 8 * 8), 16 * (4 * 16 + 8 * 4)
    sums = 2 * (2 * 16 * 32 + 2 * 16 * 16) + 2 * 2 * 16 * 32
    assert found.energy["l0"] == pytest.approx(quarter * (activations + sums) + half * weights)


def test_a_memory_that_holds_no_tile_of_its_own_is_passed_through() -> None:
    """One behind the buffer that is no larger: written and read once by every bit on its way."""
    hardware = machine(1 << 12, 1 << 10)
    buffer, passed, dram = cost(Gemm("g", 24, 24, 24), hardware, FLOW).traffic
    assert passed.filled == buffer.filled == dram.read
    assert passed.drained == buffer.drained == dram.write
    assert passed.read == passed.write == dram.read + dram.write


def test_work_that_is_no_product_passes_through_the_buffer() -> None:
    """Three norms of 576 elements, alone and between products that stay on chip."""
    row = 576 * 16
    norm = OtherWork("norm", 576, 2 * row, row, 3, bits_weights=row)
    hardware = machine(1 << 20)
    dram = hardware.levels[-1].read_energy
    phase = Phase("decode", "decode", (), (), (norm,), ())
    plain = other_work(phase, hardware, FLOAT16)
    assert plain.bits == 3 * 3 * row
    assert plain.energy == pytest.approx(3 * 3 * row * (dram + READ[0] + WRITE[0]))
    kept = other_work(replace(phase, others=(replace(norm, on_chip=True),)), hardware, FLOAT16)
    assert kept.bits == 3 * row
    # The norm reads its operands and its weights there, which fill it, and writes the result.
    wanted = 3 * row * (dram + 2 * READ[0] + (1 + 1) * WRITE[0])
    assert kept.energy == pytest.approx(wanted)


@pytest.mark.parametrize("flow", FLOWS)
def test_the_search_counts_fills_and_drains_as_the_engine_does(flow: str) -> None:
    """To the bit: reads of the buffer cost nothing here, as its closed form of these is a bound."""
    base = machine(1 << 13)
    buffer = replace(base.levels[0], read_energy=0.0)
    gemm = Gemm("g", 20, 24, 30, 2)
    hardware = replace(base, levels=(buffer, base.levels[1]))
    for found in search_together((Problem(gemm, FLOAT16, hardware, Systolic(flow, 4, 4)),)):
        exact = cost(gemm, hardware, load_dataflow(flow), plan=found.holdings)
        assert found.energy == pytest.approx(sum(exact.energy.values()), rel=1e-12)


@pytest.mark.parametrize("flow", FLOWS)
def test_the_search_counts_the_accesses_to_an_l2(flow: str) -> None:
    base = machine(1 << 12, 1 << 14)
    buffer = replace(base.levels[0], read_energy=0.0)
    hardware = replace(base, levels=(buffer, *base.levels[1:]))
    problem = Problem(Gemm("g", 16, 40, 50), FLOAT16, hardware, Systolic(flow, 4, 4))
    for found in solve((problem,)):
        exact = cost(problem.gemm, hardware, load_dataflow(flow), plan=found.holdings)
        assert found.energy == pytest.approx(sum(exact.energy.values()), rel=1e-12)
