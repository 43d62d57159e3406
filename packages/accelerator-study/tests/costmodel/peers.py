# SPDX-License-Identifier: Apache-2.0
"""Published examples of other estimators, theirs and ours.

``uv run python packages/accelerator-study/tests/costmodel/peers.py`` prints docs/cost's table.
The figures of others are in their own repositories: GenZ (notebook/LLM_operator_breakdown.ipynb),
ZigZag (tests/main/test_origin/test_gemm_l1.py, test_gemm_l1_l3.py), Timeloop (reference output of
exercise 02 of timeloop-accelergy-exercises). TENET's golden table and scalesim's cycles have tests
of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import Hardware, load_hardware
from costmodel.accelerator.scheme import FLOAT16, Scheme
from costmodel.estimate.gemm import cost
from costmodel.estimate.product import Gemm, GemmCost, Role
from costmodel.estimate.tiling import BufferTile, Holding

MIB, GIB = 2**20, 2**30
INT8 = Scheme("int8", 8, 8, 32, 8)
FLOW = load_dataflow("output-stationary")
UNBOUNDED = 1 << 50


@dataclass(frozen=True)
class Peer:
    """A figure of another estimator beside ours; bar: share by which they may differ."""

    tool: str
    figure: str
    theirs: float
    ours: float
    bar: float
    reason: str


def machine(rows: int, columns: int, lanes: int, buffer: int, bandwidth: float) -> Hardware:
    """An array behind a buffer of so many bits and a memory of so many bits a cycle."""
    base = load_hardware("systolic32x32")
    first, last = base.levels
    wide = replace(first, size=buffer, read=1e9, write=1e9, latency=1)
    outer = replace(last, read=bandwidth, write=bandwidth, latency=1)
    fabric = replace(base.fabric, shape=(rows, columns), lanes=lanes)
    return replace(base, fabric=fabric, levels=(wide, outer))


def layer(rows: int, context: int) -> list[Gemm]:
    """Products of a layer of Llama 2 7B: hidden size 4096, 32 heads, 11008 between."""
    attention = [
        Gemm("qk", rows, context, 128, 32, role=Role.SCORES),
        Gemm("pv", rows, 128, context, 32, role=Role.VALUES),
    ]
    sides = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008))
    return [*attention, *(Gemm("w", rows, n, k) for n, k in sides)]


def total(costs: list[GemmCost]) -> tuple[float, float]:
    """MiB moved beyond the buffer, and cycles."""
    bits = sum(c.traffic[-1].read + c.traffic[-1].write for c in costs)
    return bits / 8 / MIB, sum(c.latency for c in costs)


def genz() -> Iterator[Peer]:
    """A layer of Llama 2 7B at 1200 GiB/s and 300 teraflops, both used at 80 %."""
    side, lanes = 128, 1
    clock = 240e12 / 2 / side**2 / lanes
    wide = machine(side, side, lanes, 128 * MIB * 8, 0.8 * 1200 * GIB * 8 / clock)
    phases = (("decode at 1056", 1, 1056, 402.785645, 0.409464),)
    phases += (("prompt of 1024", 1024, 1024, 674.5, 1.798518),)
    for name, rows, context, size, time in phases:
        moved, cycles = total([cost(g, wide, FLOW, FLOAT16) for g in layer(rows, context)])
        scores = 2 * 32 * rows * context * 2 / MIB
        kept = f"the scores, {scores:.4g} MiB out and in there, stay on chip here"
        if rows == 1:
            kept += "; queries and results of two parts of the cache are counted twice there"
            waits, bars = "the first fetch of a product is not hidden here", (0.001, 0.02)
        else:
            waits = "each pass has its skew here, of 128 rows and columns; peak cycles alone there"
            bars = (0.2, 0.15)
        yield Peer("GenZ", f"Llama 2 7B, {name}, a layer: MiB", size, moved, bars[0], kept)
        yield Peer("GenZ", "the same: ms", time, cycles / clock * 1e3, bars[1], waits)


def zigzag() -> Iterator[Peer]:
    """128x128x128 of 8 bits on 8x8x8 multipliers, the last 8 along K; the results 8 bits wide."""
    gemm = Gemm("gemm", 128, 128, 128)
    two = machine(8, 8, 8, 943718, 512)
    one = replace(two, levels=(replace(two.levels[0], size=None),))
    reason = (
        "both have 4,096 cycles of work; there, as we read its loops, sums return to L1 after each "
        "part of K through one port, here they stay and each of 256 passes has its skew"
    )
    for name, hardware, cycles in (("L1", one, 8191), ("L1 and L3", two, 8194)):
        found = cost(gemm, hardware, FLOW, INT8)
        yield Peer("ZigZag", f"128^3 on 8x8x8, {name}: cycles", cycles, found.latency, 0.1, reason)


def timeloop() -> Iterator[Peer]:
    """A one-dimensional convolution, 32 channels of 16 from 3 taps, on one multiplier."""
    gemm = Gemm("conv", 16, 32, 3)
    hardware = machine(1, 1, 1, 1 << 20, 512)
    plan = (Holding(BufferTile(16, 2, 3), ("n", "m", "k")),)
    found = cost(gemm, hardware, FLOW, Scheme("words", 16, 16, 16, 16), plan=plan)
    memory = found.traffic[-1]
    name = "exercise 02, conv1d+oc: "
    yield Peer("Timeloop", f"{name}cycles", 1536, found.stamps, 0, "")
    yield Peer("Timeloop", f"{name}outputs written", 512, memory.write / 16, 0, "")
    words = memory.read / 16
    reason = (
        "96 weights in both; 288 or 576 inputs there, which a window shares and a buffer of two "
        "channels fetches again, here the 48 of the unrolled product once"
    )
    yield Peer("Timeloop", f"{name}words read, tiled", 96 + 288, words, 0.7, reason)


def row(peer: Peer) -> str:
    """A line of the table."""
    figures = f"{peer.theirs:,.6g} | {peer.ours:,.6g}"
    return f"| {peer.tool} | {peer.figure} | {figures} | {peer.reason} |"


def peers() -> list[Peer]:
    """All figures."""
    return [*genz(), *zigzag(), *timeloop()]


def main() -> None:
    """Print the table."""
    print("| tool | figure | theirs | ours | reason |")
    print("|---|---|---:|---:|---|")
    print("\n".join(row(p) for p in peers()))


if __name__ == "__main__":
    main()
