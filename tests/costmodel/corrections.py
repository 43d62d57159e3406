# SPDX-License-Identifier: Apache-2.0
"""Figures that were wrong, what is right by an independent count, and what is given now.

``PYTHONPATH=scripts:tests/costmodel python tests/costmodel/corrections.py`` prints the table.
``wanted`` is never taken from the cost model: it is arithmetic on sizes, or another tool's figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.accelerator.dataflow import Dataflow, SourceLine, count
from costmodel.accelerator.scheme import FLOAT16
from costmodel.counting.affine import floor_div, modulo, variable
from costmodel.counting.closed_form import lower
from costmodel.counting.relations import Position
from costmodel.counting.space import Access, Box, Fabric, SpaceTime
from costmodel.estimate.gemm import accesses


@dataclass(frozen=True)
class Correction:
    """One figure.

    Attributes:
        number: the point of the issue; before: the figure that was given, None for a refusal.
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


CORRECTIONS = (
    Correction(9, "unique elements of a convolution's window", 192, 80, "isl", window),
    # 64 x 64 tiles of 512 steps, each reading 8 elements of B, one for a column.
    Correction(13, "unique B of a skewed map, 512^3", None, 64 * 64 * 512 * 8, "by hand", skewed),
)


def main() -> None:
    """Print the table."""
    print("| point | figure | before | wanted | source | now |")
    print("|---|---|---:|---:|---|---:|")
    for c in CORRECTIONS:
        before = "refused" if c.before is None else f"{c.before:,.6g}"
        wanted = f"{'at least ' if c.at_least else ''}{c.wanted:,.6g}"
        print(f"| {c.number} | {c.title} | {before} | {wanted} | {c.source} | {c.now():,.6g} |")


if __name__ == "__main__":
    main()
