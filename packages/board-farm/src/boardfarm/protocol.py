# SPDX-License-Identifier: Apache-2.0
"""The board's part of the protocol between TVM's RPC tracker, a board and a client.

Source: upstream's ``tvm/rpc/tracker.py`` and ``server.py``. This module needs Python, but not TVM.
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
# The protocol has no longer messages.
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
    """Return the key of boards after a check.

    Raises:
        UserError: the tracker cannot use this key.
    """
    if not key.isprintable() or not key or any(c in key for c in ": \t"):
        raise UserError(f"--key {key!r}", remedy="use letters, digits, dots and dashes")
    return key


class TrackerConnection:
    """A connection to the tracker."""

    def __init__(self, address: Address, timeout: float = ANSWER_SECONDS) -> None:
        """Connect.

        Raises:
            OSError: nothing answers at the address, or another kind of server does.
        """
        self.socket = socket.create_connection(address.pair, timeout)
        try:
            self.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
            if read_number(self.socket) != TRACKER_MAGIC:
                raise ConnectionError(f"{address} is not an RPC tracker")
        except BaseException:
            self.socket.close()
            raise

    def ask(self, *request: Any) -> Any:
        """Send one request and return the answer.

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
    """Return the tracker's tables of boards and queues: ``queue_info`` and ``server_info``.

    Raises:
        OSError: the tracker does not answer.
    """
    connection = TrackerConnection(address, timeout)
    try:
        code, table = connection.ask(TrackerCode.SUMMARY)
    finally:
        connection.close()
    if code != 0 or not isinstance(table, dict):
        raise ConnectionError(f"{address} is not an RPC tracker")
    return table


def match_key(key: str) -> str:
    """A new key by which the board recognises the client that the tracker sends."""
    return f"{key}:{secrets.token_hex(16)}"


def welcome(connection: socket.socket, key: str, expected: str) -> list[str] | None:
    """Greet a client, or refuse it.

    Args:
        connection: to the client.
        key: of the board.
        expected: the match key that the tracker has given to the client.

    Returns:
        the client's options, or None for a client that the board refuses.

    Raises:
        OSError: the connection broke, or the client speaks another protocol.
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
    """Ask the tracker for a board, wait for it, and open a session as a client.

    Raises:
        OSError: the tracker or the board does not answer, or the board expects another client.
    """
    tracker = TrackerConnection(address)
    try:
        tracker.socket.settimeout(None)
        code, place = tracker.ask(TrackerCode.REQUEST, key, "", 1)
    finally:
        tracker.close()
    if code != 0:
        raise ConnectionError(f"no board has joined the tracker as {key}")
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
    """Read a 32-bit number.

    Raises:
        OSError: the connection broke.
    """
    (number,) = struct.unpack("<i", read_bytes(connection, 4))
    return int(number)


def read_bytes(connection: socket.socket, size: int) -> bytes:
    """Read this number of bytes.

    Raises:
        OSError: the connection broke, or the number exceeds MOST_BYTES.
    """
    if not 0 <= size <= MOST_BYTES:
        raise ConnectionError(f"a message claims {size} bytes; at most {MOST_BYTES} are allowed")
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return data
