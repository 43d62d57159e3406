# SPDX-License-Identifier: Apache-2.0
"""The protocol between TVM's RPC tracker, a board and a client, as far as a board speaks it.

As in upstream's ``tvm/rpc/tracker.py`` and ``server.py``. It needs Python alone, not TVM.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
from enum import IntEnum
from typing import Any

from crosslab.address import Address
from crosslab.errors import UserError

SESSION_MAGIC = 0xFF271
TRACKER_MAGIC = 0x2F271
MISMATCH = SESSION_MAGIC + 2
# Longer messages are none of this protocol.
MOST_BYTES = 1 << 24
# A busy machine may take its time.
ANSWER_SECONDS = 60.0


class TrackerCode(IntEnum):
    """Requests to the tracker."""

    PUT = 3
    REQUEST = 4
    UPDATE_INFO = 5
    SUMMARY = 6
    GET_PENDING_MATCHKEYS = 7


def check_key(key: str) -> str:
    """The key of boards, if it is one.

    Raises:
        UserError: it is not.
    """
    if not key.isprintable() or not key or any(c in key for c in ": \t"):
        raise UserError(f"--key {key!r}", remedy="letters, digits, dots and dashes")
    return key


class TrackerConnection:
    """A connection to the tracker."""

    def __init__(self, address: Address, timeout: float = ANSWER_SECONDS) -> None:
        """Connect.

        Raises:
            OSError: nobody answers there, or not as a tracker does.
        """
        self.socket = socket.create_connection(address.pair, timeout)
        try:
            self.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
            if read_number(self.socket) != TRACKER_MAGIC:
                raise ConnectionError(f"{address} is no RPC tracker")
        except BaseException:
            self.socket.close()
            raise

    def ask(self, *request: Any) -> Any:
        """Send one request; its answer.

        Raises:
            OSError: the connection broke.
        """
        data = json.dumps(request).encode()
        self.socket.sendall(struct.pack("<i", len(data)) + data)
        try:
            return json.loads(read_bytes(self.socket, read_number(self.socket)))
        except ValueError as error:
            raise ConnectionError(f"the tracker's answer is not JSON: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def summary(address: Address, timeout: float = 10.0) -> dict[str, Any]:
    """Boards and queues as the tracker knows them: ``queue_info`` and ``server_info``.

    Raises:
        OSError: the tracker does not answer.
    """
    connection = TrackerConnection(address, timeout)
    try:
        code, table = connection.ask(TrackerCode.SUMMARY)
    finally:
        connection.close()
    if code != 0 or not isinstance(table, dict):
        raise ConnectionError(f"{address} is no RPC tracker")
    return table


def match_key(key: str) -> str:
    """A word by which a client that the tracker has sent is known."""
    return f"{key}:{secrets.token_hex(16)}"


def welcome(connection: socket.socket, key: str, expected: str) -> list[str] | None:
    """Greet a client.

    Args:
        connection: to it.
        key: of the board.
        expected: the match key that the tracker has given to it.

    Returns:
        its options, or None for one that is sent away.

    Raises:
        OSError: the connection broke, or it speaks another protocol.
    """
    if read_number(connection) != SESSION_MAGIC:
        return None
    said = read_bytes(connection, read_number(connection)).decode(errors="replace").split()
    if not said or not secrets.compare_digest(said[0].encode(), f"client:{expected}".encode()):
        connection.sendall(struct.pack("<i", MISMATCH))
        return None
    own = f"server:{key}".encode()
    connection.sendall(struct.pack("<ii", SESSION_MAGIC, len(own)) + own)
    return said[1:]


def request(address: Address, key: str) -> socket.socket:
    """A session on a board, as a client gets it: asks the tracker, waits, and goes there.

    Raises:
        OSError: the tracker or the board does not answer, or the board expects somebody else.
    """
    tracker = TrackerConnection(address)
    try:
        tracker.socket.settimeout(None)
        code, place = tracker.ask(TrackerCode.REQUEST, key, "", 1)
    finally:
        tracker.close()
    if code != 0:
        raise ConnectionError(f"the tracker has no {key}")
    host, port, expected = place
    client = socket.create_connection((host, port), ANSWER_SECONDS)
    try:
        own = f"client:{expected}".encode()
        client.sendall(struct.pack("<ii", SESSION_MAGIC, len(own)) + own)
        if read_number(client) != SESSION_MAGIC:
            raise ConnectionError(f"the board at {host}:{port} expects another client")
        read_bytes(client, read_number(client))
    except BaseException:
        client.close()
        raise
    return client


def read_number(connection: socket.socket) -> int:
    """A 32-bit number.

    Raises:
        OSError: the connection broke.
    """
    (number,) = struct.unpack("<i", read_bytes(connection, 4))
    return int(number)


def read_bytes(connection: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        OSError: the connection broke, or no message is as long.
    """
    if not 0 <= size <= MOST_BYTES:
        raise ConnectionError(f"a message of {size} bytes")
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return data
