# SPDX-License-Identifier: Apache-2.0
"""Pictures for models that see: a sample, and a picture's preparation in double precision.

The preparation is that of transformers' processor of CLIP: resize the shorter side with Pillow's
antialiasing filter, cut out the middle, rescale, and normalize each colour.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Pixels = NDArray[np.uint8]
_ONE = 1 << 22


def _cubic(x: F64) -> F64:
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _linear(x: F64) -> F64:
    return np.maximum(0.0, 1.0 - x)


FILTERS: Mapping[str, tuple[float, Callable[[F64], F64]]] = {
    "bilinear": (1.0, _linear),
    "bicubic": (2.0, _cubic),
}
"""Half the width of each filter in pixels, and its weights by distance."""


def sample_picture() -> Pixels:
    """Return a picture [45, 70, 3] with edges, slopes and noise."""
    y, x = np.mgrid[:45, :70]
    noise = np.random.default_rng(45).integers(0, 64, (45, 70))
    edges = 255 * ((x // 9 + y // 11) % 2)
    colours = np.stack([3 * x + noise // 2, 5 * y + noise // 3, edges], axis=-1)
    return colours.clip(0, 255).astype("u1")


def write_png(pixels: Pixels, path: Path) -> None:
    """Write pixels [height, width, 3] as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), "u1"), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")):
        file += struct.pack(">I", len(data)) + kind + data
        file += struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(file)


def prepare(pixels: Pixels, about: Mapping[str, Any], size: int) -> F64:
    """Resize, crop and normalize a picture; return the numbers [3, size, size] for a tower.

    Args:
        pixels: [height, width, 3].
        about: the table ``picture`` of an imported model's config.
        size: pixels of both sides of the part in the middle.
    """
    height, width = pixels.shape[:2]
    shortest = about["shortest"]
    resized = pixels.astype(float)
    # Pillow rounds between the directions, too.
    for axis, side in ((1, width), (0, height)):
        to = int(shortest * side / min(height, width))
        mixed = np.tensordot(_weights(side, to, about["filter"]), resized, (1, axis))
        resized = np.floor(np.moveaxis(mixed, 0, axis) + 0.5).clip(0, 255)
    top, left = ((side - size) // 2 for side in resized.shape[:2])
    middle = resized[top : top + size, left : left + size]
    normal: F64 = (middle * about["scale"] - about["mean"]) / about["deviation"]
    return normal.transpose(2, 0, 1)


def _weights(side: int, to: int, name: str) -> F64:
    """Return the weights [to, side] of a side's pixels in each resized pixel."""
    half, of_distance = FILTERS[name]
    scale = side / to
    wide = max(scale, 1.0)
    centres = (np.arange(to)[:, None] + 0.5) * scale
    places = np.arange(side)
    weights = of_distance(np.abs(places - centres + 0.5) / wide)
    low, high = (np.trunc(centres + sign * half * wide + 0.5) for sign in (-1, 1))
    weights = np.where((places >= low) & (places < high), weights, 0.0)
    normal = weights / weights.sum(axis=1, keepdims=True)
    # Pillow's weights have 22 bits behind the point.
    rounded: F64 = np.trunc(normal * _ONE + np.copysign(0.5, normal)) / _ONE
    return rounded
