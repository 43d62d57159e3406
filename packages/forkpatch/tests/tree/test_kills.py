# SPDX-License-Identifier: Apache-2.0
"""Every verb that writes, killed once at a random moment, alone or beside another verb."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import killed


@pytest.mark.slow
@pytest.mark.thorough
def test_no_killed_verb_traps_its_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))  # the turns set their own
    problems: list[str] = []
    table = killed(22, seed=20261122, say=problems.append)
    assert problems == []
    assert sum(row["alone"] + row["beside another"] for row in table.values()) == 22
    assert len(table) == 22
