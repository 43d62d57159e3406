# SPDX-License-Identifier: Apache-2.0
"""Which request an earlier farm fits."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from boardfarm.cli import same_farm
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
    known = FarmState(tracker, "rvv256", "cycles", service, (ENDED,))
    assert same_farm(known, joined, key, "cycles") == (known if fits else None)


@pytest.mark.parametrize(
    ("joined", "key", "unit"),
    [(THERE, "rvv256", "cycles"), (None, "rvv512", "cycles"), (None, "rvv256", "instructions")],
)
def test_a_running_farm_fits_only_the_same_request(
    joined: Address | None, key: str, unit: str
) -> None:
    known = FarmState(HERE, "rvv256", "cycles", RUNNING, ())
    assert same_farm(known, None, "rvv256", "cycles") == known
    with pytest.raises(UserError, match="another farm is up"):
        same_farm(known, joined, key, unit)
