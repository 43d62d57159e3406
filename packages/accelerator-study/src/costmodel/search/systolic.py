# SPDX-License-Identifier: Apache-2.0
"""Closed forms of the three stationary dataflows on a two-dimensional array, for many tiles.

Their figures are those of the counting engine (``tests/costmodel/test_search.py`` compares them);
the search evaluates thousands of tiles of every product. Extents may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.accelerator.scheme import Scheme
from costmodel.estimate.transfer import Count

Counts = tuple[Count, ...]
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
        return self.total_cycles((m, n, k), (1, 1, 1), self.passes(m, n, k), -(-k // self.lanes))

    def total_cycles(self, extents: Counts, tiles: Counts, passes: Counts, depth: Count) -> Count:
        """Return the cycles of all tiles of a product, one after the other.

        Args:
            extents: M, N and K.
            tiles: their number along M, N and K.
            passes: along M, N and K, each a sum over the tiles of that dimension.
            depth: steps of ``lanes`` elements along K, a sum over the tiles of K.
        """
        if self.whole:
            grains = zip(extents, passes, self.grains(), strict=True)
            extents = tuple(e if grain == 1 else p * grain for e, p, grain in grains)
            depth = -(-extents[2] // self.lanes) if self.flow != FLOWS[0] else depth
        (m, n, _), (down, across, deep) = extents, tiles
        along_m, along_n, along_k = passes
        match self.flow:
            case "output-stationary":
                skewed = along_m * along_n * (depth - 2 * deep)
                return skewed + deep * (along_n * m + along_m * n)
            case "weight-stationary":
                skewed = along_n * along_k * (m + down * (self.rows - 2))
                return skewed + down * (along_n * depth + along_k * n)
        skewed = along_m * along_k * (n + across * (self.rows - 2))
        return skewed + across * (along_k * m + along_m * depth)

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
