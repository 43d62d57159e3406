# SPDX-License-Identifier: Apache-2.0
"""Caches of a core on a board."""

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
class MemorySystem:
    """Caches of a core on a board.

    Attributes:
        board: key of the board's file in cores/boards.
        line: bytes of a cache line.
        l1: data cache of the core.
        l2: second-level cache.
        source: source of these figures.
    """

    board: str
    line: int
    l1: CacheSize
    l2: CacheSize
    source: str

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> MemorySystem:
        """Read the table ``[memory]`` of a core's file.

        Raises:
            KeyError, TypeError, ValueError: the table is malformed.
        """
        fields = dict(table)
        fields |= {name: CacheSize(**fields[name]) for name in ("l1", "l2")}
        return cls(**fields)

    @property
    def counter_option(self) -> str:
        """The counter's option ``caches``: bytes of a line, then bytes and ways of L1 and L2."""
        levels = (self.l1, self.l2)
        return ":".join([str(self.line), *(f"{level.size}:{level.ways}" for level in levels)])
