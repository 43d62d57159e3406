# SPDX-License-Identifier: Apache-2.0
"""A second oracle: figures of scalesim 3.0.0, recorded by scalesim_record.py.

Where scalesim is installed (dependency group `scalesim`), the record itself is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.estimate.gemm import cost
from costmodel.estimate.product import Gemm, GemmCost

HERE = Path(__file__).parent
RECORD = json.loads((HERE / "data" / "scalesim.json").read_text(encoding="utf-8"))
RANDOM = json.loads((HERE / "data" / "scalesim_random.json").read_text(encoding="utf-8"))
FLOWS = {"os": "output-stationary", "ws": "weight-stationary", "is": "input-stationary"}


def label(case: dict[str, Any]) -> str:
    return f"{case['flow']}-{case['array'][0]}-{'x'.join(map(str, case['gemm']))}"


def ragged(case: dict[str, Any]) -> bool:
    """Tell whether the array is not filled by every pass."""
    (rows, columns), (m, n, k) = case["array"], case["gemm"]
    sides = {"os": (m, n), "ws": (k, n), "is": (k, m)}[case["flow"]]
    return bool(sides[0] % rows or sides[1] % columns)


def estimate(case: dict[str, Any], whole: bool) -> GemmCost:
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


@pytest.mark.parametrize("case", RECORD["cases"], ids=label)
def test_cycles_and_reads_equal_the_simulator(case: dict[str, Any]) -> None:
    """To the cycle, the last one being the first of what comes next; ragged ones as it drains."""
    found = estimate(case, whole=True)
    assert case["cycles"] == found.latency - 1
    reads = [found.unique["A"], found.unique["B"]]
    if case["flow"] == "is":
        reads.reverse()
    if not ragged(case):
        assert [case["reads_a"], case["reads_b"]] == reads
        if case["flow"] != "os":  # its output-stationary trace writes some elements twice
            assert case["writes_c"] == found.unique["C"]


@pytest.mark.parametrize("case", [c for c in RECORD["cases"] if ragged(c)], ids=label)
def test_ragged_passes_are_shorter_by_the_skew_of_idle_rows(case: dict[str, Any]) -> None:
    """The simulator drains rows and columns that hold nothing; the default does not."""
    used = estimate(case, whole=False)
    assert used.latency < estimate(case, whole=True).latency
    assert used.latency >= used.busiest


def test_random_cases_are_within_five_per_cent() -> None:
    """Shapes drawn at random, most of them ragged; corrections.py prints all two hundred."""
    cases = RANDOM["cases"][::5]
    off = [abs(estimate(c, whole=True).latency / c["cycles"] - 1) for c in cases]
    assert sum(error <= 0.05 for error in off) >= 0.9 * len(cases)
    assert sum(map(ragged, cases)) > len(cases) // 2


def test_the_record_is_what_the_simulator_says() -> None:
    pytest.importorskip("scalesim", reason="scalesim is not installed")
    command = [sys.executable, str(HERE / "scalesim_record.py")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == RECORD
