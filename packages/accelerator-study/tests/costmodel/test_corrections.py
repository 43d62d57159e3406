# SPDX-License-Identifier: Apache-2.0
"""Figures that were wrong once, and figures that others have published, beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from corrections import CORRECTIONS, LONG, Correction
from peers import Peer, peers, row

from costmodel.accelerator.dataflow import Dataflow, SourceLine, count
from costmodel.counting.affine import variable
from costmodel.counting.extrapolation import NoPolynomialError, extrapolate
from costmodel.counting.relations import Position
from costmodel.counting.space import Access, Box, Fabric
from costmodel.errors import CostError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost" / "README.md"
SHORT = [c for c in CORRECTIONS if c.now not in LONG]


@pytest.mark.parametrize("case", SHORT, ids=lambda c: f"{c.number}-{c.title}")
def test_the_figure_is_right_now(case: Correction) -> None:
    assert case.holds(case.now())
    assert case.before is None or not case.holds(case.before)


@pytest.mark.parametrize("peer", peers(), ids=lambda p: p.figure)
def test_a_published_figure_is_met_or_the_difference_explained(peer: Peer) -> None:
    assert peer.ours == pytest.approx(peer.theirs, rel=max(peer.bar, 1e-9))
    assert peer.reason or peer.ours == peer.theirs
    assert row(peer) in PAGE.read_text(encoding="utf-8")


def test_a_clash_says_how_many_lanes_would_do_and_they_do() -> None:
    here = Position("flow")
    space = SourceLine("S[i,j] -> PE[(i+j)%R]", here)
    flow = Dataflow("clash", space, SourceLine("S[i,j] -> T[i/4, j/R]", here), ())
    box, access = Box.of({"i": 16, "j": 16}), Access("X", ((variable("i"), variable("j")),))
    bound = flow.bind(Fabric((4,), ()))
    with pytest.raises(CostError, match="share a PE and a time stamp") as told:
        count(flow, box, bound.mapping, Fabric((4,), ()), (access,))
    needed = int(str(told.value).rsplit("--macs-per-pe ", 1)[1])
    assert needed == 4
    assert count(flow, box, bound.mapping, Fabric((4,), (), needed), (access,)).unique["X"] == 256


def test_extrapolation_is_exact_for_polynomials_and_refuses_others() -> None:
    def area(box: tuple[int, ...]) -> dict[str, int]:
        return {"points": box[0] * box[1] + box[0] // 4}

    assert extrapolate((4003, 77), (4, 1), area) == area((4003, 77))
    with pytest.raises(NoPolynomialError):
        extrapolate((4003, 77), (1, 1), area)
