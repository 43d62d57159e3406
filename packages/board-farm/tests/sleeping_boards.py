# SPDX-License-Identifier: Apache-2.0
"""Boards in threads of this process, and a session that only sleeps."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from boardfarm.agent import Agent, Session
from boardfarm.processes import joined_boards
from crosslab.address import Address

KEY = "asleep"
DONE = b"done"
JOIN_SECONDS = 120.0


def sleeping_session(seconds: float) -> Session:
    """Make a session that sleeps and answers that it is done."""

    def serve(client: socket.socket, _timeout: float | None) -> str:
        time.sleep(seconds)
        client.sendall(DONE)
        return "slept"

    return serve


@contextmanager
def boards_in_threads(tracker: Address, sessions: Sequence[Session]) -> Iterator[None]:
    """Let a board for each session join a tracker; stop them all at the end."""
    agents = [
        Agent(tracker, KEY, session, "nothing", "none", say=lambda _: None) for session in sessions
    ]
    threads = [threading.Thread(target=agent.serve, daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + JOIN_SECONDS
        while len(joined_boards(tracker, KEY)) < len(agents):
            assert time.monotonic() < end, f"fewer than {len(agents)} boards joined {tracker}"
            time.sleep(0.5)
        yield
    finally:
        for agent in agents:
            agent.stopped.set()
        for thread in threads:
            thread.join(timeout=5.0)
