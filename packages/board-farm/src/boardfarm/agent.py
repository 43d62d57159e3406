# SPDX-License-Identifier: Apache-2.0
"""The agent of a board: it joins a tracker, and opens a session for each client.

Each session is a process. A candidate that crashes, hangs or fills the memory ends only its own.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from boardfarm.protocol import TrackerCode, TrackerConnection, match_key, welcome
from crosslab.address import Address

PING_SECONDS = 2.0
# Time limit for the client that the tracker sends; then the board offers itself again.
PATIENCE_SECONDS = 6.0
RETRY_SECONDS = 0.5
GREETING_SECONDS = 60.0

# Serves one client on a connection for at most so many seconds; says how it ended.
Session = Callable[[socket.socket, float | None], str]


@dataclass
class Agent:
    """A board that joins a tracker.

    Attributes:
        tracker: its address.
        key: under which clients ask for boards of this kind.
        session: serves one client.
        measure: what its timer counts, for people.
        core: name of the database that takes schedules which were found here.
        host: this board's own address.
        port: where clients come in; 0: any that is free.
        say: gets a line for each event.
        stopped: ends :meth:`serve`.
    """

    tracker: Address
    key: str
    session: Session
    measure: str
    core: str
    host: str = "127.0.0.1"
    port: int = 0
    say: Callable[[str], None] = print
    stopped: threading.Event = field(default_factory=threading.Event)

    def serve(self) -> None:
        """Serve one client after the other until stopped; join again after the tracker restarts.

        Raises:
            OSError: the port is taken.
        """
        with socket.create_server((self.host, self.port), backlog=4) as door:
            while not self.stopped.is_set():
                try:
                    connection = TrackerConnection(self.tracker)
                except OSError:
                    self.stopped.wait(RETRY_SECONDS)
                    continue
                try:
                    self.say(f"joined {self.tracker} as {self.key}")
                    self._serve(connection, door)
                except OSError as error:
                    self.say(f"lost the tracker: {error}")
                finally:
                    connection.close()

    def _serve(self, tracker: TrackerConnection, door: socket.socket) -> None:
        own = [None, door.getsockname()[1]]
        about = {"key": f"server:{self.key}", "addr": own}
        about |= {"measure": self.measure, "core": self.core}
        tracker.ask(TrackerCode.UPDATE_INFO, about)
        while not self.stopped.is_set():
            found = self._client(tracker, door)
            if found is None:
                return
            client, options = found
            with client:
                self.say(f"session: {self.session(client, timeout_of(options))}")

    def _client(
        self, tracker: TrackerConnection, door: socket.socket
    ) -> tuple[socket.socket, list[str]] | None:
        """Wait for the tracker's next client; return None when the board is stopped."""
        expected, missed = self._offer(tracker, door), 0.0
        while not self.stopped.is_set():
            ready, _, _ = select.select([door], [], [], PING_SECONDS)
            if not ready:
                pending = tracker.ask(TrackerCode.GET_PENDING_MATCHKEYS)
                missed = 0.0 if expected in pending else missed + PING_SECONDS
                if missed > PATIENCE_SECONDS:
                    expected, missed = self._offer(tracker, door), 0.0
                continue
            client, _ = door.accept()
            try:
                client.settimeout(GREETING_SECONDS)
                options = welcome(client, self.key, expected)
            except OSError:
                options = None
            if options is None:
                client.close()
                continue
            client.settimeout(None)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return client, options
        return None

    def _offer(self, tracker: TrackerConnection, door: socket.socket) -> str:
        expected = match_key(self.key)
        place = [door.getsockname()[1], expected]
        if tracker.ask(TrackerCode.PUT, self.key, place, None) != 0:
            raise ConnectionError("the tracker refused this board")
        return expected


def timeout_of(options: Sequence[str]) -> float | None:
    """Time limit of a session in seconds, from the client's options."""
    for option in options:
        name, _, value = option.partition("=")
        if name == "-timeout":
            try:
                return float(value) or None
            except ValueError:
                return None
    return None
