# SPDX-License-Identifier: Apache-2.0
"""GGUF files with other types of tensors, or with other fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from crosslab.models.gguf_formats import U8
from crosslab.models.weights_file import F32

ARCHITECTURE = "general.architecture"
Encoded = tuple[str, U8]
"""Name of a tensor's type, and its blocks [..., bytes of a row]."""


def in_q8_0(name: str, values: F32) -> Encoded | None:
    """Round a matrix to Q8_0; None for other tensors, which stay as they are."""
    if values.ndim < 2 or values.shape[-1] % 32:
        return None
    return "Q8_0", gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)


# Whole numbers of the values of MXFP4, twice the format's.
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12)


def exactly(name: str, values: F32, experts: str) -> Encoded | None:
    """Encode matrices whose blocks are whole numbers times a power of two.

    The largest whole number is that of MXFP4 in experts of this type, else 7. Experts are in Q4_0
    or MXFP4, other matrices in Q8_0; tensors of routers stay, as in published files.
    """
    if values.ndim < 2 or "_inp" in name or name.endswith("bias") or values.shape[-1] % 32:
        return None
    kind = experts if "_exps" in name else "Q8_0"
    blocks, most = values.reshape(-1, 32), MXFP4[-1] if kind == "MXFP4" else 7
    power = np.log2(np.abs(blocks).max(axis=1, keepdims=True) / most)
    whole = np.round(blocks / np.exp2(power)).astype(np.int8)
    factor = np.exp2(power).astype(np.float16).view(np.uint8)
    if kind == "Q8_0":
        parts = [factor, whole.view(np.uint8)]
    elif kind == "Q4_0":
        parts = [factor, _nibbles((whole + 8).astype(np.uint8))]
    else:
        codes = np.searchsorted(MXFP4, np.abs(whole)).astype(np.uint8)
        codes |= (whole < 0).astype(np.uint8) << 3
        parts = [np.round(power + 128).astype(np.uint8), _nibbles(codes)]
    rows = np.concatenate(parts, axis=1).reshape(*values.shape[:-1], -1)
    read = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(read, values, err_msg=name)
    return kind, rows


def _nibbles(codes: U8) -> U8:
    packed: U8 = codes[:, :16] | codes[:, 16:] << 4
    return packed


def rewrite(
    source: Path,
    target: Path,
    changed: Mapping[str, Any] | None = None,
    encode: Callable[[str, F32], Encoded | None] = in_q8_0,
    only: Sequence[str] | None = None,
    architecture: str | None = None,
) -> None:
    """Copy a file of float32 with other types of tensors and other fields.

    Args:
        source: the file.
        target: the copy.
        changed: fields by name; a field of None is left out.
        encode: type and blocks of a tensor; None: it stays.
        only: names of the tensors to copy, as they are; None: all.
        architecture: another architecture.
    """
    reader, changed = gguf.GGUFReader(source), changed or {}
    writer = gguf.GGUFWriter(target, architecture or str(reader.fields[ARCHITECTURE].contents()))
    for name, field in reader.fields.items():
        if name not in changed and name != ARCHITECTURE and not name.startswith("GGUF."):
            items = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], items)
    for name, value in changed.items():
        if value is not None:
            items = gguf.GGUFValueType.INT32 if isinstance(value, list) else None
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value), items)
    for tensor in reader.tensors:
        if only is not None:
            if tensor.name in only:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        encoded = encode(tensor.name, tensor.data)
        if encoded:
            kind, rows = encoded
            writer.add_tensor(tensor.name, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
