# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a process of the farm starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from boardfarm import processes
from boardfarm.processes import FarmProcess, free_port, start_tracker
from crosslab.address import Address


def test_an_interrupted_start_leaves_no_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[FarmProcess]()

    def interrupted(_address: Address) -> bool:
        raise KeyboardInterrupt

    def recorded(module: str, words: list[str], log: Path) -> FarmProcess:
        started.append(start(module, words, log))
        return started[-1]

    start = processes.start_process
    monkeypatch.setattr(processes, "start_process", recorded)
    monkeypatch.setattr(processes, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_tracker(Address("127.0.0.1", free_port()), tmp_path / "tracker.log")
    assert [process.alive for process in started] == [False]
