# SPDX-License-Identifier: Apache-2.0
"""Bits that cross a boundary between neighbouring memories, and the energy of a memory.

Every access counts. A bit that crosses a boundary inwards is a read of the outer memory and a write
of the inner memory; a bit that crosses outwards is the reverse. Data never bypass a memory, since
a hardware file cannot describe a bypass: even stationary operands are read from the first memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.accelerator.hardware import Hardware, Level

Count = Any  # an int, or a numpy array of int64


@dataclass(frozen=True)
class MovedBits:
    """Bits over the inner boundary of a memory, to and from the array or a smaller memory.

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
        """The bits that go inwards: read from the outer memory, written to the inner memory."""
        return self.activation + self.weight + self.partial

    @property
    def write(self) -> Count:
        """The bits that go outwards: read from the inner memory, written to the outer memory."""
        return self.stored

    def __add__(self, other: MovedBits) -> MovedBits:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return MovedBits(*(a + b for a, b in pairs))

    def __mul__(self, times: Count) -> MovedBits:
        return MovedBits(*(times * bits for bits in vars(self).values()))

    def at(self, places: Count) -> MovedBits:
        """Return the bits of the mappings at ``places``, for counts that are arrays."""
        return MovedBits(*(bits[places] for bits in vars(self).values()))


NOTHING = MovedBits()


def memory_energy(level: Level, inside: MovedBits, outside: MovedBits) -> Count:
    """Return the energy in pJ of all accesses to a memory.

    Args:
        level: the memory; each operand of a split memory has the energy of the operand's part.
        inside: bits between the memory and the array or a smaller memory.
        outside: bits between the memory and the memory behind it.
    """
    read, write = level.operand_energy()
    fetched = (
        (inside.activation, outside.activation),
        (inside.weight, outside.weight),
        (inside.partial + outside.stored, inside.stored + outside.partial),
    )
    return sum(
        reads * out + writes * into
        for (reads, writes), out, into in zip(fetched, read, write, strict=True)
    )


def boundary_energy(level: Level, behind: Level) -> MovedBits:
    """Return the pJ of a bit of each operand that crosses the boundary of two memories."""
    (out, into), (out_behind, into_behind) = level.operand_energy(), behind.operand_energy()
    activation, weight, partial = (a + b for a, b in zip(out_behind, into, strict=True))
    return MovedBits(activation, weight, partial, out[2] + into_behind[2])


def with_outside(
    hardware: Hardware, inside: Sequence[MovedBits]
) -> list[tuple[Level, MovedBits, MovedBits]]:
    """Return each memory with the bits over its inner and its outer boundary."""
    return list(zip(hardware.levels, inside, [*inside[1:], NOTHING], strict=True))
