# SPDX-License-Identifier: Apache-2.0
"""Model parameters in MLC-LLM's format: ``tensor-cache.json`` and shards of raw bytes.

The format is that of TVM's ``contrib/tvmjs.py`` (``dump_tensor_cache``): float32 values are
stored as bfloat16 ("f32-to-bf16"), everything else as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import UserError
from crosslab.models.formats import Packing

T = TypeVar("T")
Array = NDArray[Any]
F32 = NDArray[np.float32]
INDEX_FILE = "tensor-cache.json"
ENCODING = "f32-to-bf16"
DTYPES = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES |= {"bfloat16", "float16", "float32", "float64"}
SHARD_BYTES = 32 << 20


def to_bfloat16(values: F32) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, ties to even; what would overflow is cut instead."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    limit = np.array(np.finfo(np.float32).max).view(np.uint32) >> 16 << 16
    fits = (bits & 0x7FFFFFFF) < limit
    bias = np.where(fits, ((bits >> 16) & 1) + 0x7FFF, 0).astype(np.uint32)
    return ((bits + bias) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> F32:
    """Widen bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass
class _Shards:
    """Collects records into shard files of bounded size."""

    folder: Path
    cap: int
    done: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)

    def add(self, name: str, values: Array) -> None:
        stored = to_bfloat16(values) if values.dtype == np.float32 else np.ascontiguousarray(values)
        data = stored.tobytes()
        if self.pending and len(self.pending) + len(data) > self.cap:
            self.flush()
        self.records.append(
            {
                "name": name,
                "shape": list(values.shape),
                "dtype": values.dtype.name,
                "format": ENCODING,
                "nbytes": len(data),
                "byteOffset": len(self.pending),
            }
        )
        self.pending += data

    def flush(self) -> None:
        if not self.records:
            return
        path = self.folder / f"params_shard_{len(self.done)}.bin"
        path.write_bytes(self.pending)
        entry = {
            "dataPath": path.name,
            "format": "raw-shard",
            "nbytes": len(self.pending),
            "records": self.records,
            "md5sum": hashlib.md5(self.pending, usedforsecurity=False).hexdigest(),
        }
        self.done.append(entry)
        self.records, self.pending = [], bytearray()


def write_params(
    params: Iterable[tuple[str, Array]], folder: Path, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write parameters, in the order given, into ``folder``."""
    shards = _Shards(folder, shard_bytes)
    count = size = 0
    for name, values in params:
        shards.add(name, values)
        count, size = count + 1, size + values.nbytes
    shards.flush()
    index = {"metadata": {"ParamSize": count, "ParamBytes": size}, "records": shards.done}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_stored(folder: Path) -> dict[str, Array]:
    """Every stored array under its own name; bfloat16 widened to float32, words left packed.

    Raises:
        UserError: the index or a shard is missing or malformed, or they do not belong together.
    """
    path = folder / INDEX_FILE
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"no parameters in {folder}: {error}") from error
    stored: dict[str, Array] = {}
    for shard in _field(index, "records", list, path):
        for name, values in _read_shard(folder, shard):
            if name in stored:
                raise UserError(f"{path}: {name} is listed twice")
            stored[name] = values
    return stored


def _field(table: object, key: str, kind: type[T], path: Path) -> T:
    """A field of the index, when it is of that type."""
    value = table.get(key) if isinstance(table, Mapping) else None
    # True is an int to Python, and no number of bytes.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{path}: the field {key!r} is missing, or not of type {kind.__name__}")
    return value


def _read_shard(folder: Path, shard: object) -> Iterator[tuple[str, Array]]:
    index = folder / INDEX_FILE
    name = _field(shard, "dataPath", str, index)
    # A shard is a file of the folder itself: an index must not reach out of it.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UserError(f"{index}: {name!r} is not the name of a file")
    path = folder / name
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if len(data) != _field(shard, "nbytes", int, index):
        raise UserError(f"{path} holds {len(data)} bytes, the index says otherwise")
    for record in _field(shard, "records", list, index):
        yield _read_record(record, data, index)


def _read_record(record: object, data: bytes, index: Path) -> tuple[str, Array]:
    name = _field(record, "name", str, index)
    start, size = (_field(record, key, int, index) for key in ("byteOffset", "nbytes"))
    shape = _field(record, "shape", list, index)
    if start < 0 or size < 0 or start + size > len(data):
        raise UserError(f"{index}: {name} lies outside of its shard")
    if any(type(length) is not int or length < 0 for length in shape):
        raise UserError(f"{index}: {name} has no shape: {str(shape)[:80]}")
    dtype, format_ = (_field(record, key, str, index) for key in ("dtype", "format"))
    if dtype not in DTYPES:
        raise UserError(f"{index}: {name} is of unknown dtype {dtype[:40]!r}")
    narrowed = dtype == "bfloat16" or (format_ == ENCODING and dtype == "float32")
    stored = np.dtype(np.uint16 if narrowed else dtype)
    if size != math.prod(shape) * stored.itemsize:
        raise UserError(f"{index}: {name} of shape {shape} does not take {size} bytes")
    values: Array = np.frombuffer(data, stored, math.prod(shape), start)
    return name, (from_bfloat16(values) if narrowed else values).reshape(shape)


def unpack(words: NDArray[np.uint32], scale: F32, packing: Packing) -> F32:
    """Unpack a quantized weight.

    Args:
        words: [out, groups * group / per_word], lowest bits first.
        scale: [out, groups].
        packing: layout of the values in the words.

    Returns:
        [out, groups * group] float32, (value - zero_point) * scale.
    """
    shifts = np.arange(packing.per_word, dtype=np.uint32) * packing.bits
    mask = (1 << packing.bits) - 1
    stored = ((words[..., None] >> shifts) & mask).reshape(words.shape[0], -1)
    values = stored.astype(np.float32) - packing.zero_point
    return values * np.repeat(scale, packing.group, axis=1)


def read_params(
    folder: Path, widths: Mapping[str, int] | None = None, packing: Packing | None = None
) -> dict[str, F32]:
    """Parameters as float32 under their plain names (``….weight``).

    Quantized pairs ``….q_weight``/``….q_scale`` are unpacked.

    Args:
        folder: where ``tensor-cache.json`` is.
        widths: number of inputs of quantized weights whose last group is not full.
        packing: layout of quantized weights, see :mod:`crosslab.models.formats`.

    Raises:
        UserError: see :func:`read_stored`; or a quantized weight has no scale, or no packing
            was given for it.
    """
    stored, plain = read_stored(folder), {}
    for name, values in stored.items():
        if name.endswith(".q_scale"):
            continue
        if not name.endswith(".q_weight"):
            plain[name] = values.astype(np.float32, copy=False)
            continue
        stem = name.removesuffix(".q_weight")
        if f"{stem}.q_scale" not in stored:
            raise UserError(f"{folder}: {name} has no scale")
        if packing is None:
            raise UserError(f"{folder}: {name} is quantized, and its packing is not known")
        scale = stored[f"{stem}.q_scale"]
        fits = values.ndim == scale.ndim == 2 and values.dtype == np.uint32
        if not fits or values.shape != (
            scale.shape[0],
            scale.shape[1] * (packing.group // packing.per_word),
        ):
            raise UserError(f"{folder}: {name} and its scale do not fit")
        whole = unpack(values, scale, packing)
        plain[f"{stem}.weight"] = whole[:, : (widths or {}).get(f"{stem}.weight")]
    return plain
