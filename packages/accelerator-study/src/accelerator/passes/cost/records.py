# SPDX-License-Identifier: Apache-2.0
"""Records of a module's work for the report of EstimateCost."""

from dataclasses import dataclass, field

Extent = int | str  # symbolic extents are text in Python's arithmetic


@dataclass(frozen=True)
class Quantization:
    """The scales of an operand: none, tensor, channel, token or group; widths in bits."""

    grain: str = "none"
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0


@dataclass(frozen=True)
class Operand:
    """A factor of a product: its parameter, its stored width, and its index map."""

    name: str
    dtype: str
    bits: int
    weight: bool
    index: str
    quantization: Quantization = field(default_factory=Quantization)


@dataclass(frozen=True)
class Product:
    """A matrix product: ``batch`` products of M x K by K x N, ``count`` times."""

    function: str
    block: str
    kind: str
    batch: Extent
    m: Extent
    n: Extent
    k: Extent
    a: Operand
    b: Operand
    c_dtype: str
    count: int = 1


@dataclass(frozen=True)
class Other:
    """The work of blocks that are not products: loop iterations, bits read and written.

    ``bits_weights`` are the read bits that are weights, such as a norm's.
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
    """The work of a Relax function."""

    products: list[Product] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    unclassified: list[Unclassified] = field(default_factory=list)
