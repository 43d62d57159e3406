# SPDX-License-Identifier: Apache-2.0
"""Entries of a record of roundings, as runner/model/roundings.h describes them."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<4IQ")


def rows_entry(
    values: NDArray[np.int8], scales: NDArray[np.float32], order: int = 0, block: int = 0
) -> bytes:
    """Rows [rows, columns] with scales [rows, blocks]; `block` 0: each row has one."""
    sizes = (*values.shape, block or values.shape[1])
    return HEADER.pack(0, *sizes, order) + scales.astype("<f4").tobytes() + values.tobytes()


CALL = HEADER.pack(2, 0, 0, 0, 0)


def tokens_entry(keys: NDArray[np.float32], values: NDArray[np.float32]) -> bytes:
    """Keys and values [layers, tokens, heads, width] of a cache."""
    return HEADER.pack(1, *keys.shape) + keys.tobytes() + values.tobytes()
