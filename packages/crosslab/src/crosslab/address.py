# SPDX-License-Identifier: Apache-2.0
"""Network addresses of services that run code: loopback unless the user gives --force.

It uses the standard library only, because a board's agent imports it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from crosslab.errors import UserError

TUNNEL = (
    "make a tunnel to it: ssh -L PORT:127.0.0.1:PORT HOST; "
    "or give --force on a network that you trust"
)


@dataclass(frozen=True)
class Address:
    """Host and port of a service."""

    host: str
    port: int

    @property
    def pair(self) -> tuple[str, int]:
        """Host and port in the form of sockets."""
        return self.host, self.port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``HOST:PORT``.

        Raises:
            UserError: the text does not have this form.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UserError(f"{text!r} is not HOST:PORT", remedy="for example 127.0.0.1:9190")
        return cls(host.strip("[]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """True if no other machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_address(address: Address, *, force: bool) -> str:
    """Refuse an address that other machines can reach, whose programs could run code here.

    Returns:
        a warning for a forced address; else an empty text.

    Raises:
        UserError: the address is not this machine's loopback, and not forced.
    """
    if address.is_loopback:
        return ""
    why = (
        f"{address} is not on this machine's loopback: "
        "every program that can connect to it can run code"
    )
    if not force:
        raise UserError(why, remedy=TUNNEL)
    return f"{why}, here and on every board"
