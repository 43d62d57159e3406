# SPDX-License-Identifier: Apache-2.0
"""A farm whose boards only sleep: what tracker and agents themselves bear."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from boardfarm.agent import Agent, Session
from boardfarm.processes import free_port, joined_boards, start_tracker
from boardfarm.protocol import Address, request
from crosslab.errors import LabError, UserError

KEY = "asleep"
DONE = b"done"
JOIN_SECONDS = 120.0


@dataclass(frozen=True)
class Simulation:
    """Result of a simulation.

    Attributes:
        boards: how many.
        trials: sessions that were served.
        seconds: that one takes on a board.
        elapsed: seconds that all took.
    """

    boards: int
    trials: int
    seconds: float
    elapsed: float

    @property
    def per_minute(self) -> float:
        """Trials a minute."""
        return 60 * self.trials / self.elapsed

    @property
    def share(self) -> float:
        """Of what the boards could do if nothing else took time."""
        return self.trials * self.seconds / self.boards / self.elapsed

    def __str__(self) -> str:
        return (
            f"{self.boards} boards, {self.trials} trials of {self.seconds:g} s: "
            f"{self.per_minute:.0f} trials a minute, {self.share:.0%} of what the boards could do"
        )


def sleeping_session(seconds: float) -> Session:
    """A session that sleeps, and says that it is done."""

    def serve(client: socket.socket, _timeout: float | None) -> str:
        time.sleep(seconds)
        client.sendall(DONE)
        return "slept"

    return serve


@contextmanager
def simulated_boards(tracker: Address, sessions: Sequence[Session]) -> Iterator[list[Agent]]:
    """Boards in threads of this process that have joined a tracker.

    Raises:
        LabError: they do not join.
    """
    agents = [
        Agent(tracker, KEY, session, "nothing", "none", say=lambda _: None) for session in sessions
    ]
    threads = [threading.Thread(target=agent.serve, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + JOIN_SECONDS
        while len(joined_boards(tracker, KEY)) < len(agents):
            if time.monotonic() > end:
                raise LabError(f"fewer than {len(agents)} boards joined {tracker}")
            time.sleep(0.5)
        yield agents
    finally:
        for agent in agents:
            agent.stopped.set()
        for thread in threads:
            thread.join(timeout=5.0)


def simulate(boards: int, trials: int, seconds: float) -> Simulation:
    """Let as many clients as there are boards ask for trials until all are done.

    Raises:
        UserError: no trials, or none that take time.
        LabError: the tracker does not start, or a trial is lost.
    """
    if trials < 1 or seconds <= 0:
        raise UserError("--trials and --seconds have to be more than 0")
    address = Address("127.0.0.1", free_port())
    with tempfile.TemporaryDirectory(prefix="farm-") as folder:
        tracker = start_tracker(address, Path(folder) / "tracker.log")
        try:
            with simulated_boards(address, [sleeping_session(seconds)] * boards):
                start = time.monotonic()
                with ThreadPoolExecutor(boards) as clients:
                    done = list(clients.map(lambda _: _trial(address), range(trials)))
                elapsed = time.monotonic() - start
        finally:
            tracker.end()
    if lost := done.count(False):
        raise LabError(f"{lost} of {trials} trials were lost")
    return Simulation(boards, trials, seconds, elapsed)


def _trial(tracker: Address) -> bool:
    with request(tracker, KEY) as client:
        client.settimeout(None)
        return client.recv(len(DONE)) == DONE
