# SPDX-License-Identifier: Apache-2.0
"""Boards and TVM's own tracker: joining, sessions, a tracker that is restarted, addresses."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sleeping_boards import DONE, KEY, boards_in_threads, sleeping_session

pytest.importorskip("tornado")

from boardfarm import processes
from boardfarm.agent import timeout_of
from boardfarm.processes import FarmProcess, free_port, joined_boards, start_tracker
from boardfarm.protocol import (
    MISMATCH,
    SESSION_MAGIC,
    TrackerConnection,
    read_bytes,
    read_number,
    welcome,
)
from crosslab.address import Address, check_address
from crosslab.errors import UserError

REQUEST = 4  # upstream's code of a client's request


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[tuple[Address, FarmProcess, Path]]:
    address, log = Address("127.0.0.1", free_port()), tmp_path / "tracker.log"
    process = start_tracker(address, log)
    yield address, process, log
    process.end()


def _served(address: Address) -> bytes:
    """Return the first bytes that the tracker's board sends in a session of upstream's protocol."""
    tracker = TrackerConnection(address)
    tracker.socket.settimeout(None)
    code, (host, port, match) = tracker.ask(REQUEST, KEY, "", 1)
    tracker.close()
    assert code == 0
    with socket.create_connection((host, port), timeout=30) as client:
        greeting = f"client:{match}".encode()
        client.sendall(struct.pack("<ii", SESSION_MAGIC, len(greeting)) + greeting)
        assert read_number(client) == SESSION_MAGIC
        read_bytes(client, read_number(client))
        return client.recv(len(DONE))


@pytest.mark.slow
def test_boards_serve_every_client_and_outlive_the_tracker(
    tracker: tuple[Address, FarmProcess, Path],
) -> None:
    address, process, log = tracker
    sessions = [sleeping_session(0.01)] * 3
    with boards_in_threads(address, sessions):
        assert [_served(address) for _ in range(7)] == [DONE] * 7
        process.end()
        assert len(joined_boards(address, KEY)) == 0
        again = start_tracker(address, log)
        try:
            deadline = time.monotonic() + 30
            while len(joined_boards(address, KEY)) < len(sessions) and time.monotonic() < deadline:
                time.sleep(0.05)
            # Nobody started the boards again: they found the tracker by themselves.
            assert len(joined_boards(address, KEY)) == len(sessions)
            assert [_served(address) for _ in range(4)] == [DONE] * 4
        finally:
            again.end()


def test_an_interrupted_start_leaves_no_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[FarmProcess](), processes.start_process

    def recorded(module: str, words: list[str], log: Path) -> FarmProcess:
        started.append(start(module, words, log))
        return started[-1]

    def interrupted(_address: Address) -> bool:
        assert started[0].alive
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "start_process", recorded)
    monkeypatch.setattr(processes, "answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_tracker(Address("127.0.0.1", free_port()), tmp_path / "tracker.log")
    assert not started[0].alive


def test_a_client_without_the_match_key_gets_no_session() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<ii", SESSION_MAGIC, 9) + b"client:me")
        assert welcome(theirs, KEY, "asleep:secret") is None
        assert ours.recv(4) == struct.pack("<i", MISMATCH)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_no_force(host: str) -> None:
    assert check_address(Address(host, 9190), force=False) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "board.example", "::"])
def test_other_addresses_are_refused_or_warned_of(host: str) -> None:
    with pytest.raises(UserError, match="can run code") as refused:
        check_address(Address(host, 9190), force=False)
    assert "ssh -L" in refused.value.remedy
    assert "can run code" in check_address(Address(host, 9190), force=True)


@pytest.mark.parametrize("text", ["", "9190", "host:", ":9190", "host:0", "host:65536", "host:x"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(UserError, match="not HOST:PORT"):
        Address.parse(text)


def test_a_client_says_how_long_its_session_may_take() -> None:
    assert timeout_of(["-timeout=2.5"]) == 2.5
    for unusable in ("soon", "nan", "inf", "1e300", "-1", "0"):
        assert timeout_of([f"-timeout={unusable}"]) is None
    assert timeout_of([]) is None
