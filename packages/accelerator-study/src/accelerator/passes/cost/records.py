# SPDX-License-Identifier: Apache-2.0
"""Records of a module's work, for a report."""

from dataclasses import dataclass, field

Extent = int | str  # symbolic extents are text in Python's arithmetic


@dataclass(frozen=True)
class Quantization:
    """Scales of an operand: none, tensor, channel, token or group; widths in bits."""

    grain: str = "none"
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0


@dataclass(frozen=True)
class Operand:
    """One factor: the parameter it comes from, its width as stored, and its index map."""

    name: str
    dtype: str
    bits: int
    weight: bool
    index: str
    quantization: Quantization = field(default_factory=Quantization)


@dataclass(frozen=True)
class Product:
    """``batch`` products of M x K by K x N, done ``count`` times."""

    function: str
    block: str
    kind: str
    batch: Extent
    m: Extent
    n: Extent
    k: Extent
    layout: str
    a: Operand
    b: Operand
    c_dtype: str
    c_index: str
    count: int = 1


@dataclass(frozen=True)
class Other:
    """Work of blocks that are not products: instances of their loops, bits read and written.

    ``bits_weights`` are those of the bits read that are weights, as a norm's.
    """

    function: str
    block: str
    elements: Extent
    bits_read: Extent
    bits_written: Extent
    bits_weights: Extent = 0
    count: int = 1


@dataclass(frozen=True)
class Unclassified:
    """A call of unknown work, and the reason."""

    callee: str
    reason: str
    count: int = 1


@dataclass
class EntryWork:
    """One Relax function."""

    products: list[Product] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    unclassified: list[Unclassified] = field(default_factory=list)
