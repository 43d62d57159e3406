# SPDX-License-Identifier: Apache-2.0
"""Caches and memory of a core on a board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CacheSize:
    """One level: bytes and ways."""

    size: int
    ways: int


@dataclass(frozen=True)
class PublishedSpeed:
    """Published tokens a second on a board with this core.

    Attributes:
        what: program, model and cores at work.
        parameters: of the model, in millions.
        tokens_per_second: generated.
        source: where it is published.
    """

    what: str
    parameters: int
    tokens_per_second: float
    source: str


@dataclass(frozen=True)
class MemorySystem:
    """Caches and memory of a core on a board.

    Attributes:
        board: its name.
        clock: Hz.
        line: bytes of a cache line.
        l1: data cache of the core.
        l2: the next level.
        bytes_per_cycle: that one core reads from memory, measured.
        source: of all these.
        published: speeds of such boards.
    """

    board: str
    clock: float
    line: int
    l1: CacheSize
    l2: CacheSize
    bytes_per_cycle: float
    source: str
    published: tuple[PublishedSpeed, ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> MemorySystem:
        """Read the table ``[memory]`` of a core's file.

        Raises:
            KeyError, TypeError, ValueError: it is not of its form.
        """
        fields = dict(table)
        fields |= {name: CacheSize(**fields[name]) for name in ("l1", "l2")}
        fields["published"] = tuple(PublishedSpeed(**one) for one in fields.get("published", ()))
        return cls(**fields)

    @property
    def counter_option(self) -> str:
        """The caches in the form of the counter's option."""
        levels = (self.l1, self.l2)
        return ":".join([str(self.line), *(f"{level.size}:{level.ways}" for level in levels)])
