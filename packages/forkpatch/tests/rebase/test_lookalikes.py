# SPDX-License-Identifier: Apache-2.0
"""Written cases of lookalikes, and the tool that judges them and changes of real histories."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from forklab import CORE, Repo, git
from real_changes import WRITTEN, Verdict, main, written


@pytest.mark.parametrize("name", WRITTEN)
def test_no_written_case_is_misplaced_in_silence_or_stopped_in_vain(name: str) -> None:
    counts = Counter(verdict for _, verdict in written(WRITTEN[name]()))
    assert sum(counts.values()) in (22, 28, 110)
    assert not counts[Verdict.MISSED] and not counts[Verdict.STOPPED]


def test_changes_of_a_history_are_judged_by_its_later_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    repo = Repo.create(tmp_path / "repo", {"core.py": CORE})
    steps = ("sub(", "minus("), ("a - b", "b - a"), ("a + b", "b + a"), ("mul(", "times(")
    data = CORE
    for number, (old, new) in enumerate((*steps, ("a * b", "b * a"), ("is None", "== None")), 1):
        data = data.replace(old.encode(), new.encode())
        (repo.path / "core.py").write_bytes(data)
        date = (datetime(2026, 1, 2) + timedelta(days=20 * number)).isoformat() + "Z"
        git(repo.path, "commit", "-qam", "Go on", GIT_COMMITTER_DATE=date)
    monkeypatch.setattr("real_changes.WRITTEN", {})
    assert main([f"small={repo.path}", "--count", "1", "--list"]) == 0
    out = capsys.readouterr().out
    assert "| small | 1 | 1 | 0 | 0 | 0 |" in out
    assert "Recall: 0 of 0 wrong merges stopped." in out
