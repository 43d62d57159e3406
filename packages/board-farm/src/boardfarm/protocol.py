# SPDX-License-Identifier: Apache-2.0
"""A board's part of the protocol between TVM's RPC tracker, a board and a client.

Source: upstream's ``tvm/rpc/tracker.py`` and ``server.py``. This module needs Python, but not TVM.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import struct
from contextlib import closing
from enum import IntEnum
from typing import Any

from crosslab.address import Address
from crosslab.errors import UserError

SESSION_MAGIC = 0xFF271
TRACKER_MAGIC = 0x2F271
MISMATCH = SESSION_MAGIC + 2
# The most bytes of a message of the protocol.
MOST_BYTES = 1 << 24
# Long enough for a busy machine.
ANSWER_SECONDS = 60.0


class TrackerCode(IntEnum):
    """The code of a request to the tracker."""

    PUT = 3
    UPDATE_INFO = 5
    SUMMARY = 6
    GET_PENDING_MATCHKEYS = 7


# Keys are parts of the tracker's messages, and names of folders of databases.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_name(text: str) -> bool:
    """Return True if a text can be a key of boards and the name of a database."""
    return NAME.fullmatch(text) is not None


def check_name(name: str, option: str = "--key") -> str:
    """Return a key of boards, or the name of a database, after a check.

    Args:
        name: value of the option.
        option: named by the error.

    Raises:
        UserError: the tracker cannot use this key, or no folder may have this name.
    """
    if not is_name(name):
        raise UserError(
            f"{option} {name!r}",
            remedy="begin with a letter or digit; use these, dots, dashes and underscores",
        )
    return name


class TrackerConnection:
    """A connection to a tracker."""

    def __init__(self, address: Address, timeout: float = ANSWER_SECONDS) -> None:
        """Connect to the tracker at an address.

        Raises:
            OSError: no tracker answers at the address.
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
        """Send a request, a TrackerCode and its values, and return the decoded answer.

        Raises:
            OSError: the connection broke, or the answer is not JSON.
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
    with closing(TrackerConnection(address, timeout)) as connection:
        code, table = connection.ask(TrackerCode.SUMMARY)
    if code != 0 or not isinstance(table, dict):
        raise ConnectionError(f"{address} is not an RPC tracker")
    return table


def match_key(key: str) -> str:
    """Return a new key by which a board recognises the client that the tracker sends."""
    return f"{key}:{secrets.token_hex(16)}"


def welcome(connection: socket.socket, key: str, expected: str) -> list[str] | None:
    """Greet a client and return its options, or refuse the client.

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
    words = read_bytes(connection, read_number(connection)).decode(errors="replace").split()
    if not words or not secrets.compare_digest(words[0].encode(), f"client:{expected}".encode()):
        connection.sendall(struct.pack("<i", MISMATCH))
        return None
    greeting = f"server:{key}".encode()
    connection.sendall(struct.pack("<ii", SESSION_MAGIC, len(greeting)) + greeting)
    return words[1:]


def read_number(connection: socket.socket) -> int:
    """Read a 32-bit integer from a connection.

    Raises:
        OSError: the connection broke.
    """
    (number,) = struct.unpack("<i", read_bytes(connection, 4))
    return int(number)


def read_bytes(connection: socket.socket, size: int) -> bytes:
    """Read ``size`` bytes from a connection.

    Raises:
        OSError: the connection broke, or ``size`` is negative or exceeds MOST_BYTES.
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
