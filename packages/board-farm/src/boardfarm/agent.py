# SPDX-License-Identifier: Apache-2.0
"""The agent of a board: joins a tracker, and opens a session for each client.

Each session is a process. A candidate that crashes, hangs or fills memory ends only its process.
"""

from __future__ import annotations

import select
import signal
import socket
import sys
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

# Serves a client on a connection for at most the given seconds; returns how the session ended.
Session = Callable[[socket.socket, float | None], str]


def say_line(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


@dataclass
class Agent:
    """A board that joins a tracker and serves its clients.

    Attributes:
        tracker: the tracker's address.
        key: name by which clients request boards of this kind.
        session: serves a client.
        measure: unit of the board's timer, for people.
        core: name of the database for schedules that this board measured.
        host: this board's address.
        port: port for clients; 0: any free port.
        say: called with a line for each event.
        stopped: ends :meth:`serve`.
    """

    tracker: Address
    key: str
    session: Session
    measure: str
    core: str
    host: str = "127.0.0.1"
    port: int = 0
    say: Callable[[str], None] = say_line
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Serve until Ctrl-C, or until SIGTERM, which also ends the running session.

        Raises:
            OSError: see :meth:`serve`.
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self.serve()
        except KeyboardInterrupt:
            self.say("stopped")

    def serve(self) -> None:
        """Serve client after client until stopped; join again after the tracker restarts.

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
        address = [None, door.getsockname()[1]]
        about = {"key": f"server:{self.key}", "addr": address}
        about |= {"measure": self.measure, "core": self.core}
        tracker.ask(TrackerCode.UPDATE_INFO, about)
        while not self.stopped.is_set():
            request = self._client(tracker, door)
            if request is None:
                return
            client, options = request
            with client:
                self.say(f"session: {self.session(client, timeout_of(options))}")

    def _client(
        self, tracker: TrackerConnection, door: socket.socket
    ) -> tuple[socket.socket, list[str]] | None:
        """Return the tracker's next client and its options; None if the board is stopped."""
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
        offer = [door.getsockname()[1], expected]
        if tracker.ask(TrackerCode.PUT, self.key, offer, None) != 0:
            raise ConnectionError("the tracker refused this board")
        return expected


def timeout_of(options: Sequence[str]) -> float | None:
    """Return the seconds of the option ``-timeout=SECONDS``; None if missing or not usable."""
    for option in options:
        name, _, value = option.partition("=")
        if name == "-timeout":
            try:
                seconds = float(value)
            except ValueError:
                return None
            return seconds if 0 < seconds <= threading.TIMEOUT_MAX else None
    return None
