# SPDX-License-Identifier: Apache-2.0
"""Parameters of a model whose linear layers a device computes: int8 weights and their scales.

The pass CallAccelerator declares such parameters: a row has ``inputs`` int8 values, then the four
bytes of its float32 scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from accelerator.layer import Int8
from accelerator.model import quantise
from costmodel.accuracy.rounding import F32
from crosslab.cached_build import cached_build
from crosslab.models.params import Array, read_index, write_params
from groundwork.hashing import digest

EMBEDDING = "embed_tokens"


def in_int8(name: str, shape: tuple[int, ...]) -> bool:
    """Return True if only linear layers read a matrix: the CPU reads rows of the embedding."""
    return len(shape) == 2 and EMBEDDING not in name


def int8_rows(weights: F32) -> Int8:
    """Round weights [outputs, inputs] to int8 rows with their scales [outputs, inputs + 4]."""
    rounded, scales = quantise(weights)
    return np.concatenate([rounded, scales[:, None].view(np.int8)], axis=1)


def int8_params(folder: Path, cache: Path) -> Path:
    """Write the parameters with matrices in int8 to a cached folder, and return the folder.

    Args:
        folder: parameters in float32.
        cache: folder of finished builds.

    Raises:
        UserError: the parameters cannot be read.
    """

    def converted() -> Iterator[tuple[str, Array]]:
        for name, stored in read_index(folder).items():
            values = stored.read()
            yield name, int8_rows(values) if in_int8(name, stored.shape) else values

    key = digest(folder.name, folder / "tensor-cache.json", Path(__file__))
    return cached_build(cache, "params-int8", key, lambda out: write_params(converted(), out))
