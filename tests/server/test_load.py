# SPDX-License-Identifier: Apache-2.0
"""A served model among clients with faults, as ``load.py`` sends them for longer."""

from __future__ import annotations

from load import FAULTS, Held, Load, whole_answer, whole_stream
from served import Served, until


def test_answers_stay_right_among_faults(tiny_server: Served) -> None:
    port, pid = tiny_server.port, tiny_server.process.pid
    load = Load(port, whole_answer(port))
    assert whole_stream(port) == load.expected != ""
    before = Held.of(pid)
    turns = 5 * len(FAULTS) // 4 + 1
    load.run_turns(turns)
    sent = {outcome.partition(":")[0] for outcome in load.outcomes}
    assert sent == {"right", *(fault.__name__ for fault in FAULTS)}
    assert load.outcomes["right: as before"] == turns // 5
    assert not [outcome for outcome in load.outcomes if ": 5" in outcome and ": 503" not in outcome]
    until(lambda: tiny_server.numbers()["mlc_rvv_running"] == 0)
    until(lambda: Held.of(pid).descriptors <= before.descriptors)
    assert whole_answer(port) == load.expected
