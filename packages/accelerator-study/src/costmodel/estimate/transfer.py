# SPDX-License-Identifier: Apache-2.0
"""Bits that cross a boundary between two neighbours of the hierarchy, and the energy of a memory.

Every access counts: what crosses a boundary inwards is a read of the outer memory and a write of
the inner one, what crosses it outwards a read of the inner and a write of the outer one. No
description can say that a memory is bypassed, so nothing bypasses one: stationary operands, too,
are read from the first memory into the registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.accelerator.hardware import Hardware, Level

Count = Any  # an int, or a numpy array of int64


@dataclass(frozen=True)
class MovedBits:
    """Bits moved over the inner boundary of a memory: to and from the array, or a smaller memory.

    Attributes:
        activation, weight: of A and B with their scales, inwards.
        partial: of unfinished sums that come back, inwards.
        stored: of sums, finished or not, outwards.
    """

    activation: Count = 0
    weight: Count = 0
    partial: Count = 0
    stored: Count = 0

    @property
    def read(self) -> Count:
        """Bits that go inwards: read from the outer memory, written to the inner one."""
        return self.activation + self.weight + self.partial

    @property
    def write(self) -> Count:
        """Bits that go outwards: read from the inner memory, written to the outer one."""
        return self.stored

    def __add__(self, other: MovedBits) -> MovedBits:
        return MovedBits(*(a + b for a, b in zip(_bits(self), _bits(other), strict=True)))

    def __mul__(self, times: Count) -> MovedBits:
        return MovedBits(*(times * bits for bits in _bits(self)))

    def at(self, places: Count) -> MovedBits:
        """Of some mappings, where the counts are arrays."""
        return MovedBits(*(bits[places] for bits in _bits(self)))


NOTHING = MovedBits()


def _bits(moved: MovedBits) -> tuple[Count, ...]:
    return moved.activation, moved.weight, moved.partial, moved.stored


def memory_energy(level: Level, inside: MovedBits, outside: MovedBits) -> Count:
    """Energy in pJ of all accesses to a memory.

    Args:
        level: the memory; of a split one each operand has the energy of its own part.
        inside: what it gives to the array or a smaller memory, and takes from it.
        outside: what fills it and what it drains, over the boundary to the memory behind it.
    """
    read, write = level.operand_energy()
    fetched = (
        (inside.activation, outside.activation),
        (inside.weight, outside.weight),
        (inside.partial + outside.stored, inside.stored + outside.partial),
    )
    return sum(
        given * out + taken * into
        for (given, taken), out, into in zip(fetched, read, write, strict=True)
    )


def with_outside(
    hardware: Hardware, inside: Sequence[MovedBits]
) -> list[tuple[Level, MovedBits, MovedBits]]:
    """Each memory, what crosses its inner boundary, and what its outer one: nothing of the last."""
    return list(zip(hardware.levels, inside, [*inside[1:], NOTHING], strict=True))
