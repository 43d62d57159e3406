# SPDX-License-Identifier: Apache-2.0
"""Caches and memory of a core on a board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CacheSize:
    """A cache level: bytes and ways."""

    size: int
    ways: int


@dataclass(frozen=True)
class PublishedSpeed:
    """Published tokens a second on a board with this core.

    Attributes:
        what: program, model and number of cores.
        parameters: parameters of the model, in millions.
        tokens_per_second: generated tokens per second.
        source: place of the publication.
    """

    what: str
    parameters: int
    tokens_per_second: float
    source: str


@dataclass(frozen=True)
class MemorySystem:
    """Caches and memory of a core on a board.

    Attributes:
        board: name of the board.
        clock: clock in Hz.
        line: bytes of a cache line.
        l1: data cache of the core.
        l2: second-level cache.
        bytes_per_cycle: measured memory bandwidth of one core, in bytes per cycle.
        source: source of these figures.
        published: published speeds of boards with this core.
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
            KeyError, TypeError, ValueError: the table is malformed.
        """
        fields = dict(table)
        fields |= {name: CacheSize(**fields[name]) for name in ("l1", "l2")}
        fields["published"] = tuple(PublishedSpeed(**row) for row in fields.get("published", ()))
        return cls(**fields)

    @property
    def counter_option(self) -> str:
        """The cache sizes as the counter's option ``caches``."""
        levels = (self.l1, self.l2)
        return ":".join([str(self.line), *(f"{level.size}:{level.ways}" for level in levels)])
