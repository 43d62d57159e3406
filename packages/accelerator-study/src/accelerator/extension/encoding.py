# SPDX-License-Identifier: Apache-2.0
"""Encodings of a matrix unit's instructions as words of 32 bits.

``vmadot`` is in SpacemiT's integrated matrix extension: a register of values (``vs1``), a register
of weights (``vs2``), and two registers of sums, the first of which is even (``vd``). The other
instructions are in the RISC-V ISA and its vector extension 1.0.
"""

from __future__ import annotations

from enum import IntEnum

_LOAD_VECTOR, _STORE_VECTOR, _VECTOR, _MATRIX = 0x07, 0x27, 0x57, 0x2B
_UNIT_STRIDE = 1 << 25  # not masked
_SIGNED_BY_SIGNED = 0b011
_PRODUCT = 0b111000


class VectorType(IntEnum):
    """The immediate of ``vsetvli`` for a vector type with agnostic tail and mask."""

    E8_M1 = 0b11_000_000
    E32_M2 = 0b11_010_001


def lui(rd: int, upper: int) -> int:
    """Return the instruction ``rd = upper << 12``."""
    return (upper & 0xFFFFF) << 12 | rd << 7 | 0x37


def addi(rd: int, rs1: int, immediate: int) -> int:
    """Return the instruction ``rd = rs1 + immediate``; the immediate has 12 bits."""
    return (immediate & 0xFFF) << 20 | rs1 << 15 | rd << 7 | 0x13


def load_immediate(rd: int, value: int) -> list[int]:
    """Return the instructions for ``rd = value``, from 0 to 2^31 - 2^11 - 1."""
    upper = (value + 0x800) >> 12
    low = value - (upper << 12)
    return [lui(rd, upper), addi(rd, rd, low)] if upper else [addi(rd, 0, low)]


def branch_unless_zero(rs1: int, offset: int) -> int:
    """Return a branch by ``offset`` bytes, forwards or backwards, unless ``rs1`` is 0."""
    bits = offset & 0x1FFF
    high = (bits >> 12 & 1) << 6 | (bits >> 5 & 0x3F)
    low = (bits >> 1 & 0xF) << 1 | (bits >> 11 & 1)
    return high << 25 | rs1 << 15 | 0b001 << 12 | low << 7 | 0x63


def ret() -> int:
    """Return the instruction ``ret``, the end of a program."""
    return 1 << 15 | 0x67


def set_vector_type(rd: int, kind: VectorType) -> int:
    """Return ``vsetvli`` for a type and the largest length, which ``rd`` receives."""
    return kind << 20 | 0b111 << 12 | rd << 7 | _VECTOR


def clear(vd: int) -> int:
    """Return ``vmv.v.i vd, 0``."""
    return 0b010111 << 26 | _UNIT_STRIDE | 0b011 << 12 | vd << 7 | _VECTOR


def load_bytes(vd: int, rs1: int) -> int:
    """Return ``vle8.v vd, (rs1)``."""
    return _UNIT_STRIDE | rs1 << 15 | vd << 7 | _LOAD_VECTOR


def store_words(vs3: int, rs1: int) -> int:
    """Return ``vse32.v vs3, (rs1)``."""
    return _UNIT_STRIDE | rs1 << 15 | 0b110 << 12 | vs3 << 7 | _STORE_VECTOR


def multiply(vd: int, vs1: int, vs2: int) -> int:
    """Return ``vmadot vd, vs1, vs2``: add signed values by signed weights to the sums."""
    fields = vs2 << 20 | vs1 << 15 | _SIGNED_BY_SIGNED << 12 | vd << 7
    return _PRODUCT << 26 | 1 << 25 | fields | _MATRIX
