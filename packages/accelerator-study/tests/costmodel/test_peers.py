# SPDX-License-Identifier: Apache-2.0
"""Figures that other estimators have published, beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers import Peer, peers, row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost" / "README.md"


@pytest.mark.parametrize("peer", peers(), ids=lambda p: p.figure)
def test_a_published_figure_is_met_or_the_difference_explained(peer: Peer) -> None:
    assert peer.ours == pytest.approx(peer.theirs, rel=max(peer.bar, 1e-9))
    assert peer.reason or peer.ours == peer.theirs
    assert row(peer) in PAGE.read_text(encoding="utf-8")
