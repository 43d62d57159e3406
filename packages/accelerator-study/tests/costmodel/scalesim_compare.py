# SPDX-License-Identifier: Apache-2.0
"""The recorded cycles of scalesim beside ours, and a model's time, for both ways of draining.

``uv run python packages/accelerator-study/tests/costmodel/scalesim_compare.py`` prints the tables.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import SCHEMES
from costmodel.estimate.gemm import cost
from costmodel.estimate.model import phase_cost
from costmodel.estimate.product import Gemm, GemmCost
from costmodel.estimate.workload import bind_phase, read_workloads

DATA = Path(__file__).parent / "data"
RECORD = json.loads((DATA / "scalesim.json").read_text(encoding="utf-8"))
RANDOM = json.loads((DATA / "scalesim_random.json").read_text(encoding="utf-8"))
FLOWS = {"os": "output-stationary", "ws": "weight-stationary", "is": "input-stationary"}
NEAR = 0.05
ARRAYS = ("edge8x8", "systolic32x32", "systolic128x128")
PHASES = (("prefill", 512), ("decode", 1024))
Case = dict[str, Any]


def ragged(case: Case) -> bool:
    """Tell whether the array is not filled by every pass."""
    (rows, columns), (m, n, k) = case["array"], case["gemm"]
    sides = {"os": (m, n), "ws": (k, n), "is": (k, m)}[case["flow"]]
    return bool(sides[0] % rows or sides[1] % columns)


def estimate(case: Case, whole: bool) -> GemmCost:
    """The same product here, with ports that nothing waits for.

    scalesim puts the reduction of input stationary on the rows, and M on the columns.
    """
    golden = load_hardware("systolic8x8")
    rows, columns = case["array"]
    m, n, k = case["gemm"]
    flow = FLOWS[case["flow"]]
    if case["flow"] == "is":
        m, n, flow = n, m, FLOWS["ws"]
    wide = replace(golden.levels[0], read=1e9, write=1e9, latency=1)
    fabric = replace(golden.fabric, shape=(rows, columns))
    hardware = replace(golden, fabric=fabric, levels=(wide,), drains_whole=whole)
    return cost(Gemm("gemm", m, n, k), hardware, load_dataflow(flow))


def difference(case: Case, whole: bool) -> float:
    """Relative difference of our cycles to scalesim's.

    scalesim gives the number of its last cycle, the first one being 0: a cycle is added to it.
    """
    return estimate(case, whole).latency / (int(case["cycles"]) + 1) - 1


def row(name: str, cases: list[Case], whole: bool) -> str:
    """A line of the table."""
    off = [abs(difference(case, whole)) for case in cases]
    drain = "whole" if whole else "used"
    near = sum(o <= NEAR for o in off) / len(off)
    return (
        f"| {name} | {len(cases)} | {sum(map(ragged, cases))} | `{drain}` | "
        f"{off.count(0.0)} | {near:.1%} | {max(off):.1%} |"
    )


def model_row(array: str, name: str, size: int) -> str:
    """A line of the table of SmolLM2: ms with int8-token, output stationary, for both drains."""
    phase = bind_phase(read_workloads(DATA / "smollm2.work.json"), name, size, {})
    hardware, flow = load_hardware(array), load_dataflow(FLOWS["os"])
    used, whole = (
        phase_cost(phase, replace(hardware, drains_whole=w), flow, SCHEMES["int8-token"]).latency
        for w in (False, True)
    )
    each = 1e3 / hardware.clock
    return (
        f"| {array} | {name}:{size} | {used * each:.4g} | {whole * each:.4g} | "
        f"{whole / used - 1:.1%} |"
    )


def main() -> None:
    """Print the tables."""
    print("| cases | number | ragged | `drain` | equal | within 5 % | furthest off |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for whole in (True, False):
        print(row("chosen", RECORD["cases"], whole))
        print(row("at random", RANDOM["cases"], whole))
    print()
    print("| array | phase | `used`: ms | `whole`: ms | more |")
    print("|---|---|---:|---:|---:|")
    for array in ARRAYS:
        for name, size in PHASES:
            print(model_row(array, name, size))


if __name__ == "__main__":
    main()
