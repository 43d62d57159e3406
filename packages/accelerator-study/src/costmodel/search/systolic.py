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
# The dimension on the array's rows, on its columns, and the dimension that streams: M, N or K.
_AXES = {
    "output-stationary": (0, 1, 2),
    "weight-stationary": (2, 1, 0),
    "input-stationary": (0, 2, 1),
}
FLOWS = tuple(_AXES)
_DEPTH = 2  # the place of K, along which a PE has its lanes


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

    def grains(self) -> tuple[int, ...]:
        """Return the extents of M, N and K of a pass; 1 for the dimension that streams."""
        grains = [1, 1, 1]
        for axis, size in zip(_AXES[self.flow], (self.rows, self.columns), strict=False):
            grains[axis] = size * self.lanes if axis == _DEPTH else size
        return tuple(grains)

    def passes(self, *extents: Count) -> Counts:
        """Return the passes along M, N and K: 1 along the dimension that streams."""
        *_, streaming = _AXES[self.flow]
        pairs = enumerate(zip(extents, self.grains(), strict=True))
        return tuple(1 if axis == streaming else -(-e // g) for axis, (e, g) in pairs)

    def cycles(self, *extents: Count) -> Count:
        """Return the cycles of a tile of M, N and K: every pass with its skew and its loads."""
        depth = -(-extents[_DEPTH] // self.lanes)
        return self.total_cycles(extents, (1, 1, 1), self.passes(*extents), depth)

    def total_cycles(self, extents: Counts, tiles: Counts, passes: Counts, depth: Count) -> Count:
        """Return the cycles of all tiles of a product, one after the other.

        Args:
            extents: M, N and K.
            tiles: their number along M, N and K.
            passes: along M, N and K, each a sum over the tiles of that dimension.
            depth: steps of ``lanes`` elements along K, a sum over the tiles of K.
        """
        rows, columns, streaming = _AXES[self.flow]
        if self.whole:
            grains = zip(extents, passes, self.grains(), strict=True)
            extents = tuple(e if grain == 1 else p * grain for e, p, grain in grains)
            depth = depth if streaming == _DEPTH else -(-extents[_DEPTH] // self.lanes)
        steps = (*extents[:_DEPTH], depth)
        # The sums stay in place where K streams; weights or values are loaded row by row.
        beside = -2 if streaming == _DEPTH else self.rows - 2
        skewed = passes[rows] * passes[columns] * (steps[streaming] + tiles[streaming] * beside)
        skew = passes[columns] * steps[rows] + passes[rows] * steps[columns]
        return skewed + tiles[streaming] * skew

    def port(self, m: Count, n: Count, k: Count, scheme: Scheme) -> tuple[Count, Count, Count]:
        """Return the bits of A and of B that enter for a tile, and visits of an element of C."""
        along_m, along_n, along_k = self.passes(m, n, k)
        return (
            scheme.activation_bits(m, k) * along_n,
            scheme.weight_bits(k, n) * along_m,
            along_k,
        )
