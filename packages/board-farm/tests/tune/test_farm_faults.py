# SPDX-License-Identifier: Apache-2.0
"""A search while a board is killed and the tracker restarted: no trial is lost or rejected."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import shared_builds

pytest.importorskip("psutil")
pytest.importorskip("tornado")
pytest.importorskip("tvm")

import psutil
from tvm import te

from boardfarm.board_program import build_board
from boardfarm.processes import (
    FarmState,
    await_boards,
    free_port,
    start_process,
    start_tracker,
)
from boardfarm.tune.search import Tuned, tune_function
from crosslab.address import Address
from crosslab.cached_build import default_cache
from crosslab.compile.driver import tree_environment
from crosslab.compile.targets import LabTarget
from crosslab.run.counter_plugin import build_counter

pytestmark = [pytest.mark.usefixtures("counting_emulator"), pytest.mark.slow, pytest.mark.thorough]

KEY, TRIALS, PATIENCE = "faults", 4, 600.0


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarmState]:
    """A tracker and two boards, each a process of its own as ``farm up`` starts them."""
    tree, address = shared_builds.tvm_tree(), Address("127.0.0.1", free_port())
    # Boards, and the processes that build candidates and measure them.
    for name in ("PYTHONPATH", "TVM_LIBRARY_PATH"):
        monkeypatch.setenv(name, tree_environment(tree)[name])
    build_board(tree, default_cache())
    build_counter(default_cache())
    service = start_tracker(address, tmp_path / "tracker.log")
    words = ["farm", "board", "--join", str(address), "--key", KEY, "--tvm-tree", str(tree)]
    logs = [tmp_path / f"board-{number}.log" for number in range(2)]
    boards = tuple(start_process("crosslab", words, log) for log in logs)
    state = FarmState(address, KEY, "instructions", 256, service, boards)
    try:
        await_boards(state, len(boards))
        yield state
    finally:
        for process in (*boards, service):
            process.end()


def _sessions(log: str) -> int:
    return Path(log).read_text(encoding="utf-8").count("session: ")


def _serves(pid: int) -> bool:
    """The board has a session of a client."""
    return bool(psutil.Process(pid).children())


def test_a_killed_board_and_a_restarted_tracker_lose_no_trial(
    farm: FarmState, tmp_path: Path
) -> None:
    x = te.placeholder((32, 16), name="x")
    axis = te.reduce_axis((0, 32), name="r")
    y = te.compute((16,), lambda j: te.sum(x[axis, j], axis=axis), name="y")
    found = list[Tuned]()

    def tune() -> None:
        target = LabTarget("riscv64", 256).table()
        boards = (farm.tracker, KEY, len(farm.boards))
        function = te.create_prim_func([x, y])
        kept = tmp_path / "kept"
        found.append(tune_function("sum", function, target, boards, kept, trials=TRIALS))

    search = threading.Thread(target=tune, daemon=True)
    search.start()
    killed, left = farm.boards
    # The first session of all is the untuned function's.
    while not (_sessions(killed.log) + _sessions(left.log) and _serves(killed.pid)):
        assert search.is_alive()
        time.sleep(0.02)
    killed.end()
    before = _sessions(left.log)
    assert farm.service is not None
    farm.service.end()
    time.sleep(1.0)
    again = start_tracker(farm.tracker, tmp_path / "tracker.log")
    try:
        search.join(PATIENCE)
    finally:
        again.end()
    assert len(found) == 1
    assert _sessions(left.log) > before
    # A winner's check is one more; so few trials do not always find one.
    assert found[0].trials == TRIALS + (found[0].after < found[0].before)
    assert found[0].rejected == ()
