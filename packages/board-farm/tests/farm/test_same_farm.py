# SPDX-License-Identifier: Apache-2.0
"""Farms of the state file that fit a request, and those that are refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from boardfarm.cli import free_number, main, same_farm
from boardfarm.processes import FarmProcess, FarmState, start_of
from crosslab.address import Address
from crosslab.errors import UserError

HERE, THERE = Address("127.0.0.1", 9190), Address("192.0.2.7", 9190)
ENDED = FarmProcess(os.getpid(), "of an earlier process", "tracker.log")
RUNNING = replace(ENDED, started=start_of(os.getpid()))


@pytest.mark.parametrize(
    ("tracker", "service", "joined", "key", "fits"),
    [
        (HERE, ENDED, None, "rvv256", True),
        (HERE, ENDED, None, "rvv512", False),
        (HERE, ENDED, THERE, "rvv256", False),
        # It had joined another machine's tracker, whose address is not ours.
        (THERE, None, None, "rvv256", False),
    ],
)
def test_a_farm_that_ended(
    tracker: Address, service: FarmProcess | None, joined: Address | None, key: str, fits: bool
) -> None:
    known = FarmState(tracker, "rvv256", "cycles", 256, service, (ENDED,))
    for port in (0, 9555):
        assert same_farm(known, joined, port, (key, "cycles", 256)) == (known if fits else None)


@pytest.mark.parametrize(
    ("joined", "port", "boards"),
    [
        (THERE, 0, ("rvv256", "cycles", 256)),
        (None, 9191, ("rvv256", "cycles", 256)),
        (None, 0, ("rvv512", "cycles", 256)),
        (None, 0, ("rvv256", "instructions", 256)),
        (None, 0, ("rvv256", "cycles", 512)),
    ],
)
def test_a_running_farm_fits_only_the_same_request(
    joined: Address | None, port: int, boards: tuple[str, str, int]
) -> None:
    known = FarmState(HERE, "rvv256", "cycles", 256, RUNNING, ())
    for same in (0, HERE.port):
        assert same_farm(known, None, same, ("rvv256", "cycles", 256)) == known
    with pytest.raises(UserError, match="another farm is up"):
        same_farm(known, joined, port, boards)


def test_a_state_of_an_older_version_is_read(tmp_path: Path) -> None:
    known, file = (
        FarmState(HERE, "rvv256", "cycles", 256, RUNNING, (ENDED,)),
        tmp_path / "farm.json",
    )
    known.write(file)
    assert FarmState.read(file) == known
    table = json.loads(file.read_text())
    del table["vlen"]
    file.write_text(json.dumps(table))
    assert FarmState.read(file) == known


def test_a_port_is_for_a_new_tracker() -> None:
    with pytest.raises(UserError, match="--port 9 is for a new tracker"):
        main(["up", "--join", "127.0.0.1:1", "--port", "9"])


def test_a_board_that_ended_is_replaced_on_its_own_port_and_log() -> None:
    zero, one, two = (replace(RUNNING, log=f"/farm/board-{n}.log") for n in range(3))
    assert [free_number(boards) for boards in ([], [zero], [one], [two, zero])] == [0, 1, 0, 1]
