# SPDX-License-Identifier: Apache-2.0
"""Random weights as GGUF files store them."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType, quant_shape_to_byte_shape

from crosslab.models.gguf_formats import U8, gguf_formats


def random_rows(name: str, n: int, k: int, seed: int = 1) -> U8:
    """Random bytes [n, bytes of a row] of a format; the factors in them are finite."""
    shape = quant_shape_to_byte_shape((n, k), GGMLQuantizationType[name])
    raw: U8 = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    f = gguf_formats()[name]
    blocks = raw.reshape(-1, raw.shape[1] * f.block // k)
    ends = [blocks.shape[1] - 1] if name == "Q6_K" else [1, 3] if f.minimums else [1]
    blocks[:, ends] &= 0xBB  # the exponent is not the largest
    return raw
