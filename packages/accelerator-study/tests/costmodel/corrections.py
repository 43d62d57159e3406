# SPDX-License-Identifier: Apache-2.0
"""Figures that were wrong, what is right by an independent count, and what is given now.

``uv run python packages/accelerator-study/tests/costmodel/corrections.py`` prints the table.
``wanted`` is never taken from the cost model: it is arithmetic on sizes, or another tool's figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scalesim_compare import RANDOM, difference

from costmodel.accelerator.dataflow import Dataflow, SourceLine, count, load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import FLOAT16, SCHEMES
from costmodel.counting.affine import floor_div, modulo, variable
from costmodel.counting.closed_form import lower
from costmodel.counting.relations import Position
from costmodel.counting.space import Access, Box, Fabric, SpaceTime
from costmodel.estimate.array import accesses
from costmodel.estimate.gemm import cost
from costmodel.estimate.model import PhaseCost, phase_cost
from costmodel.estimate.product import Gemm, GemmCost
from costmodel.estimate.workload import bind_phase, read_workloads

DATA = Path(__file__).parent / "data"
OS, WS, IS = "output-stationary", "weight-stationary", "input-stationary"


@dataclass(frozen=True)
class Correction:
    """One figure.

    Attributes:
        number: the point of the issue, 15 one that was found later.
        before: the figure that was given, None for a refusal.
        wanted: the figure of ``source``; tolerance: allowed relative difference.
        at_least: ``wanted`` is a lower bound.
        now: computes the figure.
    """

    number: int
    title: str
    before: float | None
    wanted: float
    source: str
    now: Callable[[], float]
    tolerance: float = 0.0
    at_least: bool = False

    def holds(self, figure: float) -> bool:
        """Tell whether a figure is right."""
        if self.at_least:
            return self.wanted <= figure <= self.wanted * (1 + self.tolerance)
        return abs(figure - self.wanted) <= self.tolerance * abs(self.wanted)


def window() -> float:
    """Elements of X[i+j] that 8 PEs of 3 lanes fetch, i over 64 in turns, j side by side."""
    i, j = variable("i"), variable("j")
    mapping = SpaceTime((modulo(i, 8),), (floor_div(i, 8),))
    fabric = Fabric((8,), ((-1,),), 3)
    window_ = Access("X", ((i + j,),))
    return lower(Box.of({"i": 64, "j": 3}), mapping, fabric, (window_,)).unique("X")


def skewed() -> float:
    """Elements of B that a skewed map fetches in a product of 512 x 512 x 512 on 8 x 8 PEs."""
    here = Position("skewed")
    flow = Dataflow(
        "skewed",
        SourceLine("S[i,j,k] -> PE[(i+k)%R, j%C]", here),
        SourceLine("S[i,j,k] -> T[i/R, j/C, k]", here),
        (),
    )
    fabric = Fabric((8, 8), ((-1, 0), (0, -1)))
    box = Box.of({"i": 512, "j": 512, "k": 512})
    listed = accesses("i", "j", "k", (), FLOAT16)
    return count(flow, box, flow.bind(fabric).mapping, fabric, listed).unique["B"]


def gpt2(phase: str, size: int, hardware: str, flow: str, scheme: str) -> PhaseCost:
    """A phase of GPT-2 as compiled; ``batch_decode`` is the decode with 32 sequences."""
    report = read_workloads(DATA / "gpt2-q4f32_1.work.json")
    batched = json.loads(json.dumps(report["entries"]["decode"]))
    for item in batched["products"]:
        item["m"] = "batch_size"
    report["entries"]["batch_decode"] = batched
    bound = bind_phase(report, phase, size, {"vocab_size": 50257, "batch_size": 32})
    return phase_cost(bound, load_hardware(hardware), load_dataflow(flow), SCHEMES[scheme])


def smollm2(size: int) -> float:
    """Milliseconds of a token of SmolLM2 on edge8x8, four-bit weights."""
    bound = bind_phase(read_workloads(DATA / "smollm2.work.json"), "decode", size, {})
    parts = (load_hardware("edge8x8"), load_dataflow(OS), SCHEMES["int4-g64"])
    return phase_cost(bound, *parts).total.latency / 1e6


def milliseconds(result: PhaseCost) -> float:
    """Latency of a phase."""
    return result.total.latency / result.hardware.clock * 1e3


def golden(
    m: int, n: int, k: int, flow: str, scheme: str, hardware: str = "systolic8x8"
) -> GemmCost:
    """One product."""
    chosen = load_hardware(hardware), load_dataflow(flow), SCHEMES[scheme]
    return cost(Gemm("g", m, n, k), *chosen)


def second_level(size: int) -> float:
    """Mbit read from DRAM by 512 x 768 x 768 behind a second memory of so many bits."""
    edge = load_hardware("edge8x8")
    buffer, dram = edge.levels
    levels = (buffer, replace(buffer, name="l2", size=size), dram)
    found = cost(Gemm("g", 512, 768, 768), replace(edge, levels=levels), load_dataflow(OS))
    return found.traffic[-1].read / 1e6


def views() -> float:
    """Mbit of GPT-2's prompt that are neither products nor norms, additions and the embedding."""
    report = read_workloads(DATA / "gpt2-q4f32_1.work.json")
    phase = bind_phase(report, "prefill", 512, {"vocab_size": 50257})
    counted = [o for o in phase.others if not o.view and "reshape" in o.name]
    return sum(o.count * (o.bits_read + o.bits_written) for o in counted) / 1e6


def scores_traffic() -> float:
    """Mbit beyond the buffer of attention over 512 tokens of one sequence and head."""
    found = gpt2("prefill", 512, "edge8x8", OS, "float16").by_kind()
    bits = found["attention QK"].bits + found["attention PV"].bits
    return bits / (12 * 12) / 1e6


def bus_share() -> float:
    """Bits a cycle that the outer memory moves in a product bound by it, by its bandwidth."""
    found = golden(64, 4096, 16, OS, "float16", "edge8x8")
    dram = found.traffic[-1]
    return (dram.read + dram.write) / found.latency / load_hardware("edge8x8").levels[-1].read


def least_outer_bits() -> float:
    """Mbit of 512 x 768 x 768 on edge8x8 beyond the buffer under int8, by those of float16."""
    wide, narrow = (
        golden(512, 768, 768, IS, s, "edge8x8").traffic[-1] for s in ("float16", "int8-channel")
    )
    return (narrow.read + narrow.write) / (wide.read + wide.write)


def written_to_the_buffer() -> float:
    """Mbit written to the buffer by a token's logits with int8-token on systolic128x128."""
    found = golden(1, 49152, 576, OS, "int8-token", "systolic128x128")
    return found.traffic[0].write / 1e6


def random_cases() -> float:
    """Percent of scalesim's random cases that are met to the cycle, draining as it does."""
    return 100 * sum(difference(c, whole=True) == 0 for c in RANDOM["cases"]) / len(RANDOM["cases"])


LONG = (random_cases,)  # left to the command

CORRECTIONS = (
    Correction(
        1,
        "GPT-2, 32 sequences at 1024, systolic32x32: GB",
        0.331,
        # weights, and keys and values of 768 in 12 layers
        2 * (12 * 12 * 768**2 + 50257 * 768 + 32 * 2 * 1024 * 768 * 12) / 1e9,
        "by hand",
        lambda: gpt2("batch_decode", 1024, "systolic32x32", OS, "float16").total.bits / 8e9,
        0.02,
        at_least=True,
    ),
    Correction(
        1,
        "the same: ms",
        5.99,
        1.458e9 / 51.2e9 * 1e3,
        "by hand",
        lambda: milliseconds(gpt2("batch_decode", 1024, "systolic32x32", OS, "float16")),
        0.15,
        at_least=True,
    ),
    Correction(
        2,
        "SmolLM2, edge8x8, int4-g64 at 1024: ms",
        28.0,
        21.3,
        "by hand",
        lambda: smollm2(1024),
        0.1,
    ),
    Correction(2, "the same at 8192: ms", 106, 52, "by hand", lambda: smollm2(8192), 0.1),
    Correction(
        2,
        "the same: cache over the bus, weights on one row of PEs: ms",
        106,
        # keys and values of 3 heads of 64 in 30 layers; eight columns of PEs
        2 * 8192 * 3 * 64 * 30 * 16 / 51.2 / 1e6
        + (30 * 576 * (960 + 576 + 3072 + 1536) + 576 * 49152) / 8 / 1e6,
        "by hand",
        lambda: smollm2(8192),
        0.02,
        at_least=True,
    ),
    Correction(
        3,
        "512x768x768 behind 16 MiB of L2: Mbit read",
        352,
        16 * (512 + 768) * 768 / 1e6,
        "by hand",
        lambda: second_level(16 << 23),
        0.01,
    ),
    Correction(
        4,
        "reshapes in GPT-2's prompt: Mbit",
        12 * 512 * 4 * (73728 + 24576) / 1e6,
        0,
        "by hand",
        views,
    ),
    Correction(
        5,
        "1x576x576 weight stationary: cycles",
        77760,
        119231,
        "scalesim",
        lambda: golden(1, 576, 576, WS, "float16").array - 1,
    ),
    Correction(
        5,
        "GPT-2's token on edge8x8, int4-g64, weight stationary: ms",
        35.0,
        51.2,
        "by hand",
        lambda: milliseconds(gpt2("decode", 1024, "edge8x8", WS, "int4-g64")),
        0.1,
    ),
    Correction(
        6,
        "64x64x64 weight stationary, sums of 16 bits: cycles",
        9231,
        16399,
        "by hand",
        lambda: golden(64, 64, 64, WS, "float16-sum16").latency,
    ),
    Correction(
        7,
        "33x1024x1024 on 32x32: cycles",
        33792,
        65536,
        "by hand",
        lambda: golden(33, 1024, 1024, OS, "float16", "systolic32x32").latency,
        0.2,
        at_least=True,
    ),
    Correction(8, "width of float16's sums", 16, 32, "int8's", lambda: FLOAT16.accumulator),
    Correction(9, "unique elements of a convolution's window", 192, 80, "isl", window),
    # The queries, keys, values and results, and nothing of 512 x 512 scores.
    Correction(
        10,
        "attention beyond the buffer, a head of 512 tokens: Mbit",
        18.874368,
        16 * 4 * 512 * 64 / 1e6,
        "by hand",
        scores_traffic,
        1.1,
        at_least=True,
    ),
    Correction(11, "share of the bus in use, 64x4096x16", 1.2524, 1, "by hand", bus_share, 0.22),
    Correction(
        12,
        "int8 by float16, input stationary: bits of 512x768x768",
        1.0714,
        0.5,
        "by hand",
        least_outer_bits,
        0.2,
    ),
    # 64 x 64 tiles of 512 steps, each reading 8 elements of B, one for a column.
    Correction(13, "unique B of a skewed map, 512^3", None, 64 * 64 * 512 * 8, "by hand", skewed),
    Correction(
        14, '% of 200 random cases equal, drain = "whole"', None, 100, "scalesim", random_cases
    ),
    # The results, and all that DRAM delivers: the row, the weights, and the scales of both.
    Correction(
        15,
        "1x49152x576, int8-token on systolic128x128: Mbit written to the buffer",
        0.786432,
        (16 * 49152 + 8 * 576 * (1 + 49152) + 16 * (1 + 49152)) / 1e6,
        "by hand",
        written_to_the_buffer,
    ),
)


def main() -> None:
    """Print the table."""
    print("| point | figure | before | wanted | source | now |")
    print("|---|---|---:|---:|---|---:|")
    for c in CORRECTIONS:
        before = "-" if c.before is None else f"{c.before:,.6g}"
        wanted = f"{'at least ' if c.at_least else ''}{c.wanted:,.6g}"
        print(f"| {c.number} | {c.title} | {before} | {wanted} | {c.source} | {c.now():,.6g} |")


if __name__ == "__main__":
    main()
