# SPDX-License-Identifier: Apache-2.0
"""Reading a ``.safetensors`` file with numpy alone.

The format (https://huggingface.co/docs/safetensors): eight bytes give the length of a JSON header,
little-endian; the header gives each tensor's dtype, shape and byte range in the rest of the file.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_LENGTH_BYTES = 8
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def tensor_names(path: Path) -> list[str]:
    """Return the names of a file's tensors, in the order of its header.

    Raises:
        ValueError: the file is not in the safetensors format.
    """
    with path.open("rb") as stream:
        return list(_header(stream.read(_LENGTH_BYTES), stream.read, path))


def read_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor's name and value, as a read-only view of the mapped file.

    bfloat16 and float8 tensors have the dtypes of ml_dtypes.

    Raises:
        ValueError: the file is not in the safetensors format, or cut short.
    """
    with path.open("rb") as stream:
        header = _header(stream.read(_LENGTH_BYTES), stream.read, path)
        start = stream.tell()
        data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))[start:]
    for name, entry in header.items():
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{path}: tensor {name} has the unknown dtype {entry['dtype']}")
        begin, end = entry["data_offsets"]
        wanted = np.dtype(dtype).itemsize * int(np.prod(entry["shape"], dtype=np.int64))
        if not 0 <= begin <= end <= len(data) or end - begin != wanted:
            raise ValueError(f"{path}: tensor {name} is not where the header says: cut short?")
        yield name, np.frombuffer(data[begin:end], dtype=dtype).reshape(entry["shape"])


def _header(length: bytes, read: Any, path: Path) -> dict[str, Any]:
    size = int.from_bytes(length, "little")
    text = read(min(size, path.stat().st_size))
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if len(length) < _LENGTH_BYTES or not isinstance(header, dict):
        raise ValueError(f"{path} is not a safetensors file")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise ValueError(f"{path}: tensor {name} lacks its dtype, shape or place")
    return header
