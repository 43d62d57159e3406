# SPDX-License-Identifier: Apache-2.0
"""Weights in the formats of GGUF files, and their conversion to the layout on a board.

A file's blocks are split into whole numbers and half-precision factors, and stored in the layout of
kernels/include/mlc_rvv_gguf.h. The conversion rounds nothing, except factors of IQ4_XS.

Source of the files' layouts: ggml's definitions of its block types (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import IQ4_NL, MXFP4
from numpy.typing import NDArray

TABLE = Path(__file__).with_name("gguf_formats.toml")

U8 = NDArray[np.uint8]
F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
I16 = NDArray[np.int16]
Part = NDArray[Any]
"""A matrix in the layout on a board: uint8, or uint16 for half-precision numbers."""


@dataclass(frozen=True)
class GgufFormat:
    """A weight format of GGUF files; ``gguf_formats.toml`` explains the fields.

    Attributes:
        name: ggml's name of the tensor type.
    """

    name: str
    low: int
    high: int
    block: int
    group: int
    zero: int
    minimums: bool

    @property
    def scaled(self) -> bool:
        """True if each group of inputs has a whole-number scale."""
        return self.group < self.block

    @property
    def parts(self) -> dict[str, tuple[float, type[np.generic]]]:
        """(elements per input, element type) of each matrix stored on a board, by part name."""
        each = 2 if self.minimums else 1
        table: dict[str, tuple[float, type[np.generic]]] = {"quants": (self.low / 8, np.uint8)}
        if self.high:
            table["high"] = self.high / 8, np.uint8
        if self.scaled:
            table["scales"] = each / self.group, np.uint8
        table["factors"] = each / self.block, np.uint16
        return table

    @property
    def bits(self) -> float:
        """Bits of a weight on a board, factors and scales included."""
        return sum(count * np.dtype(dtype).itemsize * 8 for count, dtype in self.parts.values())


@cache
def gguf_formats(table: Path = TABLE) -> Mapping[str, GgufFormat]:
    """Return every GGUF format by name, in the table's order."""
    tables = tomllib.loads(table.read_text(encoding="utf-8"))
    return {name: GgufFormat(name, **fields) for name, fields in tables.items()}


@dataclass(frozen=True)
class Blocks:
    """A matrix of weights, split into values, factors and scales.

    Attributes:
        format: format of the weights.
        values: [n, k], as stored: the format's zero is not subtracted.
        factors: [n, k / block], or with minimums [n, k / block, 2].
        scales: [n, k / block, groups], or with minimums [n, k / block, 2, groups]; None for formats
            without scales.
    """

    format: GgufFormat
    values: I16
    factors: F16
    scales: I16 | None = None

    def dequantized(self) -> F32:
        """Return the weights [n, k] as float32, computed in ggml's order."""
        f, (n, k) = self.format, self.values.shape
        value = (self.values - f.zero).astype(np.float32).reshape(n, k // f.block, -1, f.group)
        factors = self.factors.astype(np.float32).reshape(n, k // f.block, -1)
        d, least = factors[..., 0, None], factors[..., -1, None]
        if self.scales is None:
            scaled = value * d[..., None]
            return (scaled + least[..., None] if f.minimums else scaled).reshape(n, k)
        scales = self.scales.astype(np.float32).reshape(n, k // f.block, -1, f.block // f.group)
        scaled = (d * scales[..., 0, :])[..., None] * value
        if f.minimums:
            scaled = scaled - (least * scales[..., 1, :])[..., None]
        return scaled.reshape(n, k)

    @staticmethod
    def of_parts(f: GgufFormat, parts: Mapping[str, Part]) -> Blocks:
        """Build a matrix from the parts stored on a board: the inverse of :meth:`packed`."""
        quants, factors = parts["quants"], parts["factors"].view(np.float16)
        if f.low == 8:
            values = quants.view(np.int8).astype(np.int16)
        else:
            pairs = np.stack([quants & 15, quants >> 4], axis=-1)
            values = pairs.reshape(len(quants), -1).astype(np.int16)
        n, k = values.shape
        if f.high:
            shifts = np.arange(8 // f.high, dtype=np.uint8) * f.high
            bits = parts["high"][..., None] >> shifts & ((1 << f.high) - 1)
            values |= bits.reshape(n, k).astype(np.int16) << 4
        shape = (n, k // f.block, 2) if f.minimums else (n, k // f.block)
        scales: I16 | None = None
        if f.scaled:
            stored = parts["scales"] if f.minimums else parts["scales"].view(np.int8)
            scales = stored.astype(np.int16).reshape(*shape, f.block // f.group)
        return Blocks(f, values, factors.reshape(shape), scales)

    def packed(self) -> dict[str, Part]:
        """Return the parts stored on a board, by name; each part is a matrix [n, columns]."""
        f, (n, k) = self.format, self.values.shape
        values = self.values.astype(np.uint8)
        quants = values if f.low == 8 else values[:, 0::2] & 15 | values[:, 1::2] << 4
        parts: dict[str, Part] = {"quants": quants}
        if f.high:
            inputs = 8 // f.high
            bits = (values >> 4).reshape(n, k // inputs, inputs)
            shifted = bits << (np.arange(inputs, dtype=np.uint8) * f.high)
            parts["high"] = np.bitwise_or.reduce(shifted, axis=-1, dtype=np.uint8)
        if self.scales is not None:
            parts["scales"] = self.scales.astype(np.uint8).reshape(n, -1)
        parts["factors"] = np.ascontiguousarray(self.factors).view(np.uint16).reshape(n, -1)
        return {name: np.ascontiguousarray(part) for name, part in parts.items()}


def read_blocks(name: str, raw: U8) -> Blocks:
    """Split a matrix of a file's blocks into values, factors and scales.

    Args:
        name: ggml's name of the tensor type, a key of :data:`FILE_TYPES`.
        raw: [n, bytes per row].

    Raises:
        ValueError: a factor is infinite or NaN, or a row does not consist of whole blocks.
    """
    kind = FILE_TYPES[name]
    f = kind.stored_as
    n, width = raw.shape
    if width % kind.bytes:
        what = f"no whole blocks of {kind.bytes} ({name})"
        raise ValueError(f"a row has {width} bytes, which are {what}")
    k = kind.inputs_of(width)
    values, factors, scales = kind.read(raw.reshape(-1, kind.bytes))
    if not np.isfinite(factors).all():
        raise ValueError(f"a factor of a block ({name}) is not finite")
    each = (n, k // f.block, 2) if f.minimums else (n, k // f.block)
    shaped = None if scales is None else scales.reshape(*each, f.block // f.group)
    return Blocks(f, values.astype(np.int16).reshape(n, k), factors.reshape(each), shaped)


# Result of a reader for blocks [blocks, bytes]: values [blocks, inputs], factors, scales.
Taken = tuple[NDArray[np.integer], F16, I16 | None]


def _halves(raw: U8) -> F16:
    return np.ascontiguousarray(raw).view(np.float16)


def _nibbles(raw: U8) -> U8:
    """Return the low nibbles of all bytes, followed by the high nibbles."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _simple(factors: int, *, fifth: bool) -> Callable[[U8], Taken]:
    """Return a reader of blocks of 32 values with 1 or 2 factors; ``fifth``: values have 5 bits."""

    def read(raw: U8) -> Taken:
        head = 2 * factors
        halves = _halves(raw[:, :head])
        values: NDArray[np.integer] = _nibbles(raw[:, -16:])
        if fifth:
            bits = np.unpackbits(raw[:, head : head + 4], axis=-1, bitorder="little")
            values = values | bits << 4
        return values, halves if factors == 2 else halves[:, 0], None

    return read


def _q8_0(raw: U8) -> Taken:
    return raw[:, 2:].view(np.int8), _halves(raw[:, :2])[:, 0], None


def _six_bits(raw: U8) -> I16:
    """Unpack scales and minimums [blocks, 2, 8], of six bits each, from twelve bytes a block."""
    first, second, rest = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=-1)
    least = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=-1)
    return np.stack([scales, least], axis=1).astype(np.int16)


def _k_nibbles(raw: U8) -> U8:
    """Unpack values [blocks, 8, 32]: 32 bytes hold a group in low, the next in high nibbles."""
    return _nibbles(raw.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(raw: U8) -> Taken:
    values = _k_nibbles(raw[:, 16:]).reshape(len(raw), 256)
    return values, _halves(raw[:, :4]), _six_bits(raw[:, 4:16])


def _q5_k(raw: U8) -> Taken:
    bits = np.unpackbits(raw[:, 16:48, None], axis=-1, bitorder="little")  # [blocks, 32, group]
    values = _k_nibbles(raw[:, 48:]) | bits.swapaxes(1, 2) << 4
    return values.reshape(len(raw), 256), _halves(raw[:, :4]), _six_bits(raw[:, 4:16])


def _q6_k(raw: U8) -> Taken:
    # A half of a block is four runs of 32: low nibbles of two runs of bytes, then high nibbles.
    low = _nibbles(raw[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    values = (low | _runs(raw[:, 128:192]) << 4).reshape(len(raw), 256)
    scales = raw[:, 192:208].view(np.int8).astype(np.int16)
    return values, _halves(raw[:, 208:])[:, 0], scales


def _runs(raw: U8) -> U8:
    """Unpack values of two bits: in each 32 bytes four runs of 32, the first in the lowest bits."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    values: U8 = raw.reshape(len(raw), -1, 1, 32) >> shifts & np.uint8(3)
    return values


def _q2_k(raw: U8) -> Taken:
    scales = np.stack([raw[:, :16] & 15, raw[:, :16] >> 4], axis=1).astype(np.int16)
    return _runs(raw[:, 16:80]).reshape(len(raw), 256), _halves(raw[:, 80:]), scales


def _q3_k(raw: U8) -> Taken:
    bits = np.unpackbits(raw[:, :32, None], axis=-1, bitorder="little")  # [blocks, 32, run]
    values = _runs(raw[:, 32:96]) | bits.swapaxes(1, 2).reshape(-1, 2, 4, 32) << 2
    pairs = raw[:, None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    six = _nibbles(raw[:, 96:104]) | (pairs & 3).reshape(-1, 16) << 4
    return values.reshape(len(raw), 256), _halves(raw[:, 108:])[:, 0], six.astype(np.int16) - 32


def _tq2_0(raw: U8) -> Taken:
    # -1, 0 and 1 as 0, 1 and 2.
    values = _runs(raw[:, :64]).reshape(len(raw), 256) + 3
    return values, _halves(raw[:, 64:])[:, 0], np.ones((len(raw), 16), np.int16)


_IQ4_VALUES = np.array(IQ4_NL.kvalues, np.int16)


def _iq4_nl(raw: U8) -> Taken:
    return _IQ4_VALUES[_nibbles(raw[:, 2:])], _halves(raw[:, :2])[:, 0], None


def _iq4_xs(raw: U8) -> Taken:
    low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    word = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16)
    high = word >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.float32) - 32
    factors = _halves(raw[:, :2]).astype(np.float32) * scales
    values = _IQ4_VALUES[_nibbles(raw[:, 8:].reshape(-1, 8, 16))]
    with np.errstate(over="ignore"):
        return values.reshape(len(raw), 256), factors.astype(np.float16), None


_MXFP4_VALUES = np.array(MXFP4.kvalues, np.int16)


def _mxfp4(raw: U8) -> Taken:
    # Values are twice those of the format, so that factors are half of its powers of two.
    with np.errstate(over="ignore"):
        factors = np.exp2(raw[:, 0].astype(np.float32) - 128).astype(np.float16)
    return _MXFP4_VALUES[_nibbles(raw[:, 1:])] + 16, factors, None


@dataclass(frozen=True)
class FileType:
    """A type of tensors in GGUF files.

    Attributes:
        bytes: bytes of a block in a file.
        inputs: weights of a block in a file.
        board: name of the format on a board, a key of :func:`gguf_formats`.
        read: reader of blocks [blocks, bytes].
    """

    bytes: int
    inputs: int
    board: str
    read: Callable[[U8], Taken]

    @property
    def stored_as(self) -> GgufFormat:
        """Format on a board."""
        return gguf_formats()[self.board]

    def inputs_of(self, row: int) -> int:
        """Return the number of weights in a row of bytes."""
        return row // self.bytes * self.inputs


FILE_TYPES: Mapping[str, FileType] = {
    "Q4_0": FileType(18, 32, "Q4_0", _simple(1, fifth=False)),
    "Q4_1": FileType(20, 32, "Q4_1", _simple(2, fifth=False)),
    "Q5_0": FileType(22, 32, "Q5_0", _simple(1, fifth=True)),
    "Q5_1": FileType(24, 32, "Q5_1", _simple(2, fifth=True)),
    "Q8_0": FileType(34, 32, "Q8_0", _q8_0),
    "Q2_K": FileType(84, 256, "Q2_K", _q2_k),
    "Q3_K": FileType(110, 256, "Q3_K", _q3_k),
    "Q4_K": FileType(144, 256, "Q4_K", _q4_k),
    "Q5_K": FileType(176, 256, "Q5_K", _q5_k),
    "Q6_K": FileType(210, 256, "Q6_K", _q6_k),
    "TQ2_0": FileType(66, 256, "Q3_K", _tq2_0),
    "IQ4_NL": FileType(18, 32, "Q8_0", _iq4_nl),
    "IQ4_XS": FileType(136, 256, "Q8_0", _iq4_xs),
    "MXFP4": FileType(17, 32, "Q5_0", _mxfp4),
}
"""Types of tensors in GGUF files that stay in blocks, by ggml's names."""


def stays_in_blocks(name: str, raw: U8) -> bool:
    """Return True if a matrix of a file's blocks [n, bytes per row] can stay in blocks.

    A power of two of MXFP4 may be out of a half's range.
    """
    if name != "MXFP4":
        return name in FILE_TYPES
    exponents = raw.reshape(-1, FILE_TYPES[name].bytes)[:, 0].astype(int) - 128
    return bool(((exponents >= -24) & (exponents < 16)).all())
