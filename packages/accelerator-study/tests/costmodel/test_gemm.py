# SPDX-License-Identifier: Apache-2.0
"""Delays, traffic, schemes and tiles of a GEMM."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware, load_hardware
from costmodel.accelerator.scheme import FLOAT16, SCHEMES, int4
from costmodel.errors import CostError
from costmodel.estimate.gemm import cost
from costmodel.estimate.pipeline import steps
from costmodel.estimate.product import Gemm
from costmodel.estimate.tiling import (
    BufferTile,
    Holding,
    Passes,
    choose,
    fits,
    outer_traffics,
    room,
    sizes,
)

GOLDEN = load_hardware("systolic8x8")
SMALL = load_hardware("edge8x8")
FLOWS = ("output-stationary", "weight-stationary", "input-stationary")


@pytest.mark.parametrize(
    ("size", "flow", "delays"),
    [
        (64, "output-stationary", (16399, 1039, 4096, 16399)),
        (64, "weight-stationary", (16399, 8207, 4096, 16399)),
        (256, "output-stationary", (1048591, 16399, 262144, 1048591)),
        (256, "weight-stationary", (1048591, 524303, 262144, 1048591)),
    ],
)
def test_golden_delays(size: int, flow: str, delays: tuple[int, ...]) -> None:
    """TENET's, in which sums are 16 bits wide, with the partial sums that come back."""
    scheme = SCHEMES["float16-sum16"]
    found = cost(Gemm("golden", size, size, size), GOLDEN, load_dataflow(flow), scheme)
    assert (found.in_delay, found.out_delay, found.compute_delay, found.delay) == delays
    assert found.latency == found.delay
    assert found.bound == "array read"


def test_the_memory_that_is_busy_longest_limits() -> None:
    """A token's product: every weight over a bus that is slower than the array."""
    hardware, flow = load_hardware("systolic32x32"), load_dataflow("output-stationary")
    found = cost(Gemm("token", 1, 4096, 4096), hardware, flow)
    bus = (16 * (4096 * 4096 + 2 * 4096)) / 409.6
    assert found.array < bus < found.latency
    assert found.bus == {"dram": pytest.approx(bus, rel=0.01)}
    assert found.bound == "dram"
    square = cost(Gemm("prompt", 512, 512, 512), hardware, flow)
    assert square.bound == "array"
    assert square.array > square.bus["dram"]


def test_volumes_split_into_unique_and_reused() -> None:
    found = cost(Gemm("g", 32, 32, 32), GOLDEN, load_dataflow("output-stationary"))
    assert found.stamps == 736
    assert found.total == {"A": 32768, "B": 32768, "C": 32768}
    assert found.unique == {"A": 4096, "B": 4096, "C": 1024}
    assert found.utilisation == 32768 / (736 * 64)
    assert found.partial_sums == 0


def test_a_batch_is_as_many_products() -> None:
    flow = load_dataflow("weight-stationary")
    one = cost(Gemm("g", 24, 16, 40), GOLDEN, flow)
    five = cost(Gemm("g", 24, 16, 40, batch=5), GOLDEN, flow)
    assert five.macs == 5 * one.macs
    assert five.stamps == 5 * one.stamps
    assert five.unique == {t: 5 * v for t, v in one.unique.items()}


@pytest.mark.parametrize("flow", FLOWS)
def test_scales_of_groups_are_counted(flow: str) -> None:
    found = cost(Gemm("g", 64, 64, 128), GOLDEN, load_dataflow(flow), SCHEMES["int4-g32"])
    assert found.widths["B"] == 4
    assert found.unique["scale_B"] > 0
    assert found.unique["scale_B"] % (64 * 128 // 32) == 0
    assert found.rescales == found.unique["B"]
    inward = sum(v * found.widths[t] for t, v in found.unique.items() if t != "C")
    inward += found.partial_sums * 32
    assert found.in_delay == inward // 64 + 15


def test_scales_of_channels_and_tokens_are_read_when_the_sum_is_done() -> None:
    flow = load_dataflow("output-stationary")
    channel = cost(Gemm("g", 64, 48, 32), GOLDEN, flow, SCHEMES["int8-channel"])
    token = cost(Gemm("g", 64, 48, 32), GOLDEN, flow, SCHEMES["int8-token"])
    assert channel.unique["scale_B"] == 48 * (64 // 8)
    assert token.unique["scale_A"] == 64 * (48 // 8)
    assert channel.rescales == 64 * 48
    assert token.rescales == 2 * 64 * 48


def test_zero_points_travel_with_the_scales() -> None:
    flow = load_dataflow("weight-stationary")
    plain = cost(Gemm("g", 8, 64, 128), GOLDEN, flow, int4(64))
    zeros = cost(Gemm("g", 8, 64, 128), GOLDEN, flow, replace(int4(64), zero_point=4))
    assert zeros.unique["zero_B"] == plain.unique["scale_B"]
    assert zeros.in_delay > plain.in_delay


def test_attention_keeps_its_width_under_weight_schemes() -> None:
    flow = load_dataflow("output-stationary")
    gemm = Gemm("qk", 32, 32, 16, batch=2, weight=False)
    plain, quantized = (cost(gemm, GOLDEN, flow, SCHEMES[s]) for s in ("float16", "int4-g32"))
    assert plain.unique == quantized.unique
    assert plain.in_delay == quantized.in_delay


def test_eight_bits_are_never_slower_than_sixteen() -> None:
    for flow in FLOWS:
        gemm = Gemm("g", 64, 64, 64)
        wide, narrow = (
            cost(gemm, GOLDEN, load_dataflow(flow), SCHEMES[s]) for s in ("float16", "int8-tensor")
        )
        assert narrow.latency < wide.latency


@pytest.mark.parametrize("flow", FLOWS)
def test_lanes_divide_the_cycles(flow: str) -> None:
    wide = replace(GOLDEN, fabric=replace(GOLDEN.fabric, lanes=4))
    one = cost(Gemm("g", 64, 64, 64), GOLDEN, load_dataflow(flow))
    four = cost(Gemm("g", 64, 64, 64), wide, load_dataflow(flow))
    assert four.compute_delay * 4 == one.compute_delay
    assert four.macs == one.macs
    assert four.stamps < one.stamps


def test_a_third_axis_shares_the_reduction() -> None:
    feeds = ((-1, 0, 0), (0, -1, 0), (0, 0, -1))
    cube = replace(GOLDEN, fabric=replace(GOLDEN.fabric, shape=(4, 4, 4), feeds=feeds))
    found = cost(Gemm("g", 16, 16, 64), cube, load_dataflow("output-stationary-3d"))
    assert found.compute_delay == 16 * 16 * 64 // 64
    assert found.unique["C"] == 16 * 16


def test_a_row_of_pes() -> None:
    row = replace(GOLDEN, fabric=replace(GOLDEN.fabric, shape=(16,), feeds=((-1,),)))
    found = cost(Gemm("g", 8, 32, 8), row, load_dataflow("output-stationary-1d"))
    assert found.unique["C"] == 8 * 32
    assert found.unique["A"] == 8 * 8 * 2
    assert found.active_pes == 16


def test_outer_traffic_is_what_a_walk_over_the_tiles_fetches() -> None:
    """Against a walk that keeps one tile of each tensor."""
    for order in (("m", "n", "k"), ("n", "k", "m"), ("m", "k", "n"), ("k", "n", "m")):
        for tile in (
            BufferTile(4, 6, 5),
            BufferTile(10, 6, 5),
            BufferTile(4, 9, 8),
            BufferTile(10, 9, 8),
            BufferTile(4, 9, 5),
        ):
            (found,) = outer_traffics((10, 9, 8), tile, [order], FLOAT16)
            assert (found.activation // 16, found.weight // 16) == walked(10, 9, 8, tile, order)


def walked(m: int, n: int, k: int, tile: BufferTile, order: tuple[str, ...]) -> tuple[int, int]:
    extents, sizes = {"m": m, "n": n, "k": k}, tile._asdict()
    starts = {d: range(0, extents[d], sizes[d]) for d in extents}
    held: dict[str, tuple[int, int]] = {}
    fetched = {"A": 0, "B": 0}
    for first in starts[order[0]]:
        for second in starts[order[1]]:
            for third in starts[order[2]]:
                at = dict(zip(order, (first, second, third), strict=True))
                side = {d: min(sizes[d], extents[d] - at[d]) for d in at}
                for name, (p, q) in (("A", ("m", "k")), ("B", ("k", "n"))):
                    if held.get(name) != (at[p], at[q]):
                        held[name] = (at[p], at[q])
                        fetched[name] += side[p] * side[q]
    return fetched["A"], fetched["B"]


def test_the_chosen_tile_fits_and_none_is_chosen_in_no_room() -> None:
    buffer, dram = SMALL.levels
    passes = Passes((8, 8, 1), (1, 1, 1), 14)
    order = ("m", "n", "k")
    for size in (1 << 20, 1 << 16, 1 << 13):
        level = replace(buffer, size=size)
        found = choose((512, 768, 768), order, FLOAT16, (level, dram), passes)
        assert found is not None
        tile = found.tile
        assert fits(room(*tile, FLOAT16, level), level)
    level = replace(buffer, size=1 << 6)
    assert choose((512, 768, 768), order, FLOAT16, (level, dram), passes) is None


@pytest.mark.parametrize("size", [1 << 11, 1 << 13])
def test_sizes_leave_out_no_better_tile(size: int) -> None:
    """Against every tile there is."""
    level = replace(SMALL.levels[0], size=size)
    extents, order = (12, 18, 11), ("m", "n", "k")

    def least(sides: list[list[int]]) -> int:
        return min(
            traffic.read + traffic.write
            for tile in product(*sides)
            if fits(room(*tile, FLOAT16, level), level)
            for traffic in outer_traffics(extents, tile, [order], FLOAT16)
        )

    every = least([list(range(1, e + 1)) for e in extents])
    assert least([sizes(e, 1) for e in extents]) == every


def test_the_walk_over_tiles_moves_what_the_formula_says() -> None:
    for order in permutations(("m", "n", "k")):
        for scheme in (FLOAT16, SCHEMES["int4-g32"], SCHEMES["int8-token"]):
            holding = Holding(BufferTile(33, 20, 48), order)
            listed = steps((100, 50, 130, True, True), holding, scheme, frozenset())
            (found,) = outer_traffics((100, 50, 130), (33, 20, 48), [order], scheme)
            moved = listed.moved()
            assert (moved.read, moved.write) == (found.read, found.write)


def test_a_given_tile_must_fit_the_buffer() -> None:
    flow = load_dataflow("output-stationary")
    gemm = Gemm("g", 1024, 1024, 1024)
    with pytest.raises(CostError, match=r"takes .* bits under float16, level buffer has 1048576"):
        cost(gemm, SMALL, flow, FLOAT16, BufferTile(512, 512, 512))
    found = cost(gemm, SMALL, flow, FLOAT16, BufferTile(64, 64, 64))
    assert found.tile == BufferTile(64, 64, 64)
    assert found.macs == 1024**3
    assert found.unique["C"] == 1024 * 1024 * 16  # a sum leaves the array after each of 16 tiles


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("hardware", [GOLDEN, SMALL], ids=lambda h: h.name)
def test_nothing_is_faster_than_its_bounds(flow: str, hardware: Hardware) -> None:
    for gemm in (Gemm("a", 100, 70, 90), Gemm("b", 1, 200, 60), Gemm("c", 9, 9, 9, 3, False)):
        found = cost(gemm, hardware, load_dataflow(flow))
        assert found.stamps >= found.busiest >= found.compute_delay
        # TENET's delays are whole cycles, rounded down.
        assert (found.latency + 1) * hardware.peak >= gemm.macs
        assert found.latency >= found.busiest
        assert found.macs / (found.latency + 1) <= found.attainable
        assert all(found.unique[t] <= found.total[t] for t in found.total)
        assert found.unique["A"] >= gemm.batch * gemm.m * gemm.k
        assert found.unique["B"] >= gemm.batch * gemm.k * gemm.n
        assert found.partial_sums >= 0
