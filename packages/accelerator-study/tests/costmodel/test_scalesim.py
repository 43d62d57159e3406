# SPDX-License-Identifier: Apache-2.0
"""A second oracle: figures of scalesim 3.0.0, recorded by data/scalesim_record.py.

Where scalesim is installed (dependency group `scalesim`), the record itself is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scalesim_compare import RANDOM, RECORD, difference, estimate, model_row, ragged, row

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "cost" / "README.md"


def label(case: dict[str, Any]) -> str:
    return f"{case['flow']}-{case['array'][0]}-{'x'.join(map(str, case['gemm']))}"


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


def test_random_cases_are_met_to_the_cycle() -> None:
    """Shapes drawn at random; scalesim_compare.py compares all two hundred, for both drains."""
    cases = RANDOM["cases"][::5]
    assert [c for c in cases if difference(c, whole=True)] == []
    assert sum(map(ragged, cases)) > len(cases) // 2


@pytest.mark.parametrize("whole", [True, False])
def test_the_page_has_the_figures_of_both_drains(whole: bool) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert row("chosen", RECORD["cases"], whole) in text
    drain = "whole" if whole else "used"
    number = f"| at random | {len(RANDOM['cases'])} | {sum(map(ragged, RANDOM['cases']))} |"
    assert f"{number} `{drain}` |" in text


def test_the_page_has_a_models_times_under_both_drains() -> None:
    """Of the array where they are furthest apart."""
    assert model_row("systolic128x128", "decode", 1024) in PAGE.read_text(encoding="utf-8")


def test_the_record_is_what_the_simulator_says() -> None:
    pytest.importorskip("scalesim", reason="scalesim is not installed")
    # A quarter of the cases, of all dataflows.
    command = [sys.executable, str(HERE / "data" / "scalesim_record.py"), "--step", "4"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == {**RECORD, "cases": RECORD["cases"][::4]}
