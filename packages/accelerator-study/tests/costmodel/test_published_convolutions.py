# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose figures others publish in their repositories, by this cost model.

* SCALE-Sim, github.com/scalesim-project/SCALE-Sim at 1d62b68a, test/general/golden_trace_calc:
  AlexNet's first layer, weight stationary on 32 x 32 PEs.
* Timeloop, github.com/Accelergy-Project/timeloop-accelergy-exercises at 2d551080,
  workspace/example_designs/example_designs/*/ref_outputs/default_problem: a convolution of 3 by 3
  positions with a stride of 2, from 3 to 32 channels and 112 x 112 results, on three designs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.accelerator.dataflow import load_dataflow
from costmodel.accelerator.hardware import load_hardware
from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.gemm import cost
from costmodel.estimate.pipeline import many_steps
from costmodel.estimate.product import Gemm
from costmodel.estimate.window import Axis

WORDS = Scheme("words", 16, 16, 16, 16)


def test_scalesims_first_layer_of_alexnet() -> None:
    """224 x 224 x 3 under 96 kernels of 11 x 11 with a stride of 4: 55 x 55 results by its rule."""
    base = load_hardware("systolic32x32")
    wide = replace(base.levels[0], size=None, read=1e9, write=1e9, latency=1)
    array = replace(base, levels=(wide,), drains_whole=True)
    found = cost(Gemm("Conv1", 55 * 55, 96, 11 * 11 * 3), array, load_dataflow("weight-stationary"))
    cycles, mapped = 112283, 94.53125
    # SCALE-Sim reports the number of the last cycle, from 0.
    assert found.array == cycles + 1
    reads, weights, writes = 3294225, 34848, 3484800
    assert found.unique == {"A": reads, "B": weights, "C": writes}
    passes = -(-363 // 32) * 3
    assert 100 * 363 * 96 / (passes * 32 * 32) == pytest.approx(mapped)


@pytest.mark.parametrize(
    ("rows", "columns", "outputs"),
    [
        pytest.param(14, 56, 8, id="eyeriss_like"),
        pytest.param(56, 14, 16, id="simple_output_stationary"),
    ],
)
def test_timeloops_words_of_dram(rows: int, columns: int, outputs: int) -> None:
    """Tiles as in the mapping of the reference output; neighbouring windows overlap."""
    assert _moved(rows, columns, outputs) == (157296, 13824, 401408)


def test_timeloop_keeps_the_overlap_of_windows_and_we_fetch_it_again() -> None:
    """simple_weight_stationary has 14 tiles of 8 columns, whose windows share 13 columns of 225."""
    inputs, weights, results = _moved(112, 8, 32)
    assert (weights, results) == (864, 401408)
    assert (inputs, inputs - 151875) == (160650, 13 * 225 * 3)


def _moved(rows: int, columns: int, outputs: int) -> tuple[int, int, int]:
    """Return the words of inputs, weights and results between the buffer and DRAM."""
    axis = Axis(225, 3, 2)
    assert axis.outputs == 112

    def window(*tile: np.ndarray) -> np.ndarray:
        row, column, high, wide, channels = tile
        return axis.span(row, high).count * axis.span(column, wide).count * channels * 16

    scheme = replace(WORDS, weight=9 * WORDS.weight)
    tiles = [np.array([side]) for side in (rows, outputs, 3)]
    orders, region = np.array([[0], [1], [2]]), (112, 32, 3, True, True)
    picture = (112, np.array([columns]), window)
    moved = many_steps(region, tiles, orders, scheme, frozenset(), picture).moved()
    return moved.activation // 16, moved.weight // 16, moved.stored // 16
