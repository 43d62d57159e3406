# SPDX-License-Identifier: Apache-2.0
"""Closed forms of the three stationary dataflows on a two-dimensional array, for many tiles.

Their figures are those of the counting engine (``tests/costmodel/test_search.py`` compares them);
the search evaluates thousands of tiles of every product. Extents may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.transfer import Count

FLOWS = ("output-stationary", "weight-stationary", "input-stationary")


@dataclass(frozen=True)
class Systolic:
    """A dataflow on an array of ``rows x columns`` PEs of ``lanes`` multiply-accumulates.

    Attributes:
        whole: every pass has the skew of all rows and columns, else of the used part.
    """

    flow: str
    rows: int
    columns: int
    lanes: int = 1
    whole: bool = False

    def passes(self, m: Count, n: Count, k: Count) -> tuple[Count, Count, Count]:
        """Return the passes along M, N and K: 1 along the dimension that streams."""
        deep = self.lanes * (self.rows if self.flow == FLOWS[1] else self.columns)
        match self.flow:
            case "output-stationary":
                return -(-m // self.rows), -(-n // self.columns), 1
            case "weight-stationary":
                return 1, -(-n // self.columns), -(-k // deep)
        return -(-m // self.rows), 1, -(-k // deep)

    def cycles(self, m: Count, n: Count, k: Count) -> Count:
        """Return the cycles of a tile: every pass with its skew and its loads."""
        if self.whole:
            sides = zip((m, n, k), self.grains(), strict=True)
            m, n, k = (-(-side // grain) * grain for side, grain in sides)
        along_m, along_n, along_k = self.passes(m, n, k)
        depth = -(-k // self.lanes)
        folds = along_m * along_n * along_k
        match self.flow:
            case "output-stationary":
                return folds * (depth - 2) + along_n * m + along_m * n
            case "weight-stationary":
                return folds * (m - 2 + self.rows) + along_n * depth + along_k * n
        return folds * (n - 2 + self.rows) + along_k * m + along_m * depth

    def port(self, m: Count, n: Count, k: Count, scheme: Scheme) -> tuple[Count, Count, Count]:
        """Return the bits of A and of B that enter for a tile, and visits of an element of C."""
        along_m, along_n, along_k = self.passes(m, n, k)
        return (
            scheme.activation_bits(m, k) * along_n,
            scheme.weight_bits(k, n) * along_m,
            along_k,
        )

    def grains(self) -> tuple[int, int, int]:
        """Return the extents of M, N and K of a pass; 1 for the dimension that streams."""
        match self.flow:
            case "output-stationary":
                return self.rows, self.columns, 1
            case "weight-stationary":
                return 1, self.columns, self.rows * self.lanes
        return self.rows, 1, self.columns * self.lanes


def in_tiles(extent: int, size: Count) -> tuple[tuple[Count, Count], tuple[Count, Count]]:
    """Return the size and number of full tiles along a dimension, then of the ragged tile."""
    rest = extent % size
    return (size, extent // size), (np.maximum(rest, 1), np.minimum(rest, 1))
