# SPDX-License-Identifier: Apache-2.0
"""Model parameters in MLC-LLM's format: ``tensor-cache.json`` and shards of raw bytes.

The format is that of TVM's ``contrib/tvmjs.py`` (``dump_tensor_cache``): float32 values are
stored as bfloat16 ("f32-to-bf16"), all other types unchanged.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from crosslab.errors import UserError
from crosslab.models.formats import Packing
from crosslab.models.gguf_params import Layout, part_names, whole_param
from crosslab.models.weights_file import F32
from groundwork.files import atomic_write

T = TypeVar("T")
Array = NDArray[Any]
INDEX_FILE = "tensor-cache.json"
JOURNAL = "finished-shards.jsonl"
ENCODING = "f32-to-bf16"
DTYPES = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES |= {"bfloat16", "float16", "float32", "float64"}
SHARD_BYTES = 32 << 20
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LARGEST = ml_dtypes.finfo(BFLOAT16).max  # type: ignore[no-untyped-call]
_console = Console(stderr=True, highlight=False)


def to_bfloat16(values: F32) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, ties to even; truncate a value whose rounding would overflow."""
    with np.errstate(invalid="ignore"):  # NaN
        rounded = values.astype(BFLOAT16)
    beyond = np.isinf(rounded) & np.isfinite(values)
    rounded[beyond] = np.sign(values[beyond]) * LARGEST
    return rounded.view(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> F32:
    """Widen bfloat16 bits to float32."""
    wide: F32 = bits.view(BFLOAT16).astype(np.float32)
    return wide


@dataclass
class _Shards:
    """Writer of parameters to shard files of at most ``cap`` bytes."""

    folder: Path
    cap: int
    exact: bool = False
    journal: Path | None = None
    done: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    pending: bytearray = field(default_factory=bytearray)

    def add(self, name: str, values: Array) -> None:
        rounded = values.dtype == np.float32 and not self.exact
        stored = to_bfloat16(values) if rounded else np.ascontiguousarray(values)
        data = stored.tobytes()
        if self.pending and len(self.pending) + len(data) > self.cap:
            self.flush()
        self.records.append(
            {
                "name": name,
                "shape": list(values.shape),
                "dtype": values.dtype.name,
                "format": "raw" if self.exact else ENCODING,
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
        if self.journal:
            with self.journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry) + "\n")
        self.records, self.pending = [], bytearray()


def _tensors(shards: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [tensor for shard in shards for tensor in shard["records"]]


def memory_of(shards: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes of all parameters in memory, from the shards' entries in the index.

    Float32 stored as bfloat16 counts as float32.
    """
    tensors = _tensors(shards)
    return sum(math.prod(t["shape"]) * np.dtype(t["dtype"]).itemsize for t in tensors)


def write_params(
    params: Iterable[tuple[str, Array]],
    folder: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    exact: bool = False,
    finished: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Write parameters and their index into a folder, in the given order.

    Args:
        params: name and values of each parameter.
        folder: target folder of shards and index.
        shard_bytes: most bytes of a shard; a larger parameter has a shard to itself.
        exact: keep float32; otherwise round float32 to bfloat16, as MLC-LLM's q0f32 does.
        finished: result of :func:`resumed_shards`; ``params`` are then the remaining parameters.
            Even an empty list lets a killed run be resumed.
    """
    journal = None if finished is None else folder / JOURNAL
    shards = _Shards(folder, shard_bytes, exact, journal, list(finished or ()))
    for name, values in params:
        shards.add(name, values)
    shards.flush()
    count, size = len(_tensors(shards.done)), memory_of(shards.done)
    index = {"metadata": {"ParamSize": count, "ParamBytes": size}, "records": shards.done}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    if journal:
        journal.unlink()


def resumed_shards(folder: Path) -> list[dict[str, Any]]:
    """Return the index entries of the first complete shards of a killed run, checked by hash.

    Prints their number. Also truncates the journal in ``folder`` to these shards.
    """
    done: list[dict[str, Any]] = []
    try:
        for line in (folder / JOURNAL).read_text(encoding="utf-8").splitlines():
            shard = json.loads(line)
            with (folder / shard["dataPath"]).open("rb") as file:
                md5 = hashlib.file_digest(
                    file, lambda: hashlib.md5(usedforsecurity=False)
                ).hexdigest()
            if md5 != shard["md5sum"]:
                break
            done.append(shard)
    except (OSError, ValueError):
        pass  # The journal ends here or is missing: write the following shards again.
    if done:
        _console.print(f"{len(done)} finished shards of an interrupted run are reused")
    # Remove an incomplete last line: the next entry must not be appended to it.
    atomic_write(folder / JOURNAL, "".join(json.dumps(shard) + "\n" for shard in done))
    return done


@dataclass(frozen=True)
class StoredArray:
    """An array in a folder of parameters, not read yet.

    Attributes:
        path: file of the shard.
        offset: bytes before the array in the shard.
        shape: shape of the array.
        dtype: dtype in the file.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Array:
        """Read the array; widen bfloat16 to float32, and leave packed words unchanged."""
        count = math.prod(self.shape)
        stored: Array = np.fromfile(self.path, self.dtype, count, offset=self.offset)
        values = stored.astype(np.float32) if self.dtype == BFLOAT16 else stored
        return values.reshape(self.shape)


def read_index(folder: Path) -> dict[str, StoredArray]:
    """Return every stored array by name, without reading values.

    Raises:
        UserError: the index or a shard is missing or malformed, or the shard does not fit the
            index.
    """
    path = folder / INDEX_FILE
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"no parameters in {folder}: {error}") from error
    stored: dict[str, StoredArray] = {}
    for shard in _field(index, "records", list, path):
        for name, values in _read_shard(folder, shard):
            if name in stored:
                raise UserError(f"{path}: {name} is listed twice")
            stored[name] = values
    return stored


def read_stored(folder: Path) -> dict[str, Array]:
    """Read every stored array by name; widen bfloat16 to float32, leave packed words packed.

    Raises:
        UserError: see :func:`read_index`.
    """
    return {name: stored.read() for name, stored in read_index(folder).items()}


def _field(table: object, key: str, kind: type[T], path: Path) -> T:
    """Return a field of a table in the index; raise UserError if the field has the wrong type."""
    value = table.get(key) if isinstance(table, Mapping) else None
    # True is an int to Python, but not a number of bytes.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{path}: the field {key!r} is missing, or not of type {kind.__name__}")
    return value


def _read_shard(folder: Path, shard: object) -> Iterator[tuple[str, StoredArray]]:
    index = folder / INDEX_FILE
    name = _field(shard, "dataPath", str, index)
    # A shard must be a file in the folder itself: an index must not name files elsewhere.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UserError(f"{index}: {name!r} is not the name of a file")
    path = folder / name
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if size != _field(shard, "nbytes", int, index):
        raise UserError(f"{path} holds {size} bytes; its size in the index differs")
    for record in _field(shard, "records", list, index):
        yield _read_record(record, path, size, index)


def _read_record(record: object, path: Path, whole: int, index: Path) -> tuple[str, StoredArray]:
    name = _field(record, "name", str, index)
    start, size = (_field(record, key, int, index) for key in ("byteOffset", "nbytes"))
    shape = _field(record, "shape", list, index)
    if start < 0 or size < 0 or start + size > whole:
        raise UserError(f"{index}: {name} lies outside of its shard")
    if any(type(length) is not int or length < 0 for length in shape):
        raise UserError(f"{index}: {name} has no shape: {str(shape)[:80]}")
    dtype, format_ = (_field(record, key, str, index) for key in ("dtype", "format"))
    if dtype not in DTYPES:
        raise UserError(f"{index}: {name} is of unknown dtype {dtype[:40]!r}")
    narrowed = format_ == ENCODING and dtype == "float32"
    array = StoredArray(path, start, tuple(shape), BFLOAT16 if narrowed else np.dtype(dtype))
    if size != array.nbytes:
        raise UserError(f"{index}: {name} of shape {shape} does not have {size} bytes")
    return name, array


def unpack(words: NDArray[np.uint32], scale: F32, packing: Packing) -> F32:
    """Unpack a quantized weight to float32.

    Args:
        words: [..., out, groups * group / per_word], lowest bits first.
        scale: [..., out, groups].
        packing: layout of the values in the words.

    Returns:
        [..., out, groups * group] float32, (value - zero_point) * scale.
    """
    shifts = np.arange(packing.per_word, dtype=np.uint32) * packing.bits
    mask = (1 << packing.bits) - 1
    stored = ((words[..., None] >> shifts) & mask).reshape(*words.shape[:-1], -1)
    values = stored.astype(np.float32) - packing.zero_point
    return values * np.repeat(scale, packing.group, axis=-1)


KEPT_BYTES = 2 << 30


class ReadParams(Mapping[str, F32]):
    """The parameters of a folder as float32 by plain name (``….weight``), read on access.

    Quantized pairs ``….q_weight``/``….q_scale`` are unpacked. Values stay in memory up to a bound.

    Args:
        folder: folder with ``tensor-cache.json``.
        widths: number of inputs of quantized weights whose last group is not full.
        packing: layout of quantized weights, see :mod:`crosslab.models.formats`.
        layout: segments of the parameters in blocks of a GGUF file.
        kept_bytes: most bytes of values that stay in memory.

    Raises:
        UserError: see :func:`read_index`; or a quantized weight has no scale or no known packing.
    """

    def __init__(
        self,
        folder: Path,
        widths: Mapping[str, int] | None = None,
        packing: Packing | None = None,
        kept_bytes: int = KEPT_BYTES,
        layout: Layout | None = None,
    ) -> None:
        self._stored, self._layout = read_index(folder), layout or {}
        self._folder, self._widths, self._packing = folder, widths or {}, packing
        self._left, self._kept = kept_bytes, dict[str, F32]()
        self._names = {
            f"{n.removesuffix('.q_weight')}.weight" if n.endswith(".q_weight") else n: n
            for n in self._stored
            if not n.endswith(".q_scale")
        }
        for part in part_names(self._layout):
            del self._names[part]
        self._names |= {name: name for name in self._layout}
        for name in self._names.values():
            if name.endswith(".q_weight"):
                self._check(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> F32:
        if name in self._kept:
            return self._kept[name]
        values = self._read(self._names[name], name)
        if values.nbytes <= self._left:
            self._left -= values.nbytes
            self._kept[name] = values
        return values

    def _check(self, name: str) -> Packing:
        stem = name.removesuffix(".q_weight")
        if f"{stem}.q_scale" not in self._stored:
            raise UserError(f"{self._folder}: {name} has no scale")
        if self._packing is None:
            raise UserError(f"{self._folder}: {name} is quantized, and its packing is not known")
        words, scale = self._stored[name], self._stored[f"{stem}.q_scale"]
        fits = len(words.shape) > 1 < len(scale.shape) and words.dtype == np.uint32
        per_group = self._packing.group // self._packing.per_word
        if not fits or words.shape != (*scale.shape[:-1], scale.shape[-1] * per_group):
            raise UserError(f"{self._folder}: {name} and its scale do not fit")
        return self._packing

    def _read(self, stored: str, name: str) -> F32:
        if name in self._layout:
            return whole_param(name, self._layout[name], lambda part: self._stored[part].read())
        values = self._stored[stored].read()
        if not stored.endswith(".q_weight"):
            plain: F32 = values.astype(np.float32, copy=False)
            return plain
        scale = self._stored[f"{stored.removesuffix('.q_weight')}.q_scale"].read()
        whole = unpack(values, scale, self._check(stored))
        return whole[..., : self._widths.get(name)]


def read_params(
    folder: Path, widths: Mapping[str, int] | None = None, packing: Packing | None = None
) -> dict[str, F32]:
    """Read all parameters of a folder as float32; see :class:`ReadParams`."""
    return dict(ReadParams(folder, widths, packing, kept_bytes=0))
