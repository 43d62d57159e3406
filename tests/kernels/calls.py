# SPDX-License-Identifier: Apache-2.0
"""Kernel calls for the driver, and what they must give, in float64."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crosslab.assemble.kernels import Kernel

Floats = NDArray[np.float32]
UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Call:
    """One call: the three buffers are flat and end with the last element of the last row."""

    kernel: Kernel
    acc: Floats
    lhs: Floats
    rhs: Floats
    strides: tuple[int, int, int]

    def packed(self) -> bytes:
        buffers = (self.acc, self.lhs, self.rhs)
        head = struct.pack(
            "48s6q", self.kernel.symbol.encode(), *self.strides, *(b.size for b in buffers)
        )
        return head + b"".join(b.tobytes() for b in buffers)


def shapes(kernel: Kernel) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Shapes of acc, lhs and rhs."""
    q, kv, d = kernel.q_tile, kernel.kv_tile, kernel.d
    return ((q, kv), (q, d), (kv, d)) if kernel.product == "qk" else ((q, d), (q, kv), (kv, d))


def make_call(kernel: Kernel, paddings: tuple[int, int, int], seed: int, magnitude: int) -> Call:
    """Random buffers; a row is followed by that many elements which belong to nobody."""
    generator = np.random.default_rng(seed)
    buffers, strides = [], []
    for (rows, columns), padding in zip(shapes(kernel), paddings, strict=True):
        stride = columns + padding
        size = (rows - 1) * stride + columns
        scale = 2.0 ** generator.integers(-magnitude, magnitude + 1, size)
        values = generator.standard_normal(size) * scale
        values[generator.random(size) < 0.05] = 0
        buffers.append(values.astype(np.float32))
        strides.append(stride)
    return Call(kernel, buffers[0], buffers[1], buffers[2], (strides[0], strides[1], strides[2]))


def matrix(buffer: Floats, shape: tuple[int, int], stride: int) -> Floats:
    """The rows that lie in a flat buffer, as a view."""
    item = buffer.itemsize
    return np.lib.stride_tricks.as_strided(buffer, shape, (stride * item, item))


def check(call: Call, got: Floats) -> None:
    """Compare a result with float64, within the bound that any order of summation keeps."""
    acc, lhs, rhs = (
        matrix(buffer, shape, stride).astype(np.float64)
        for buffer, shape, stride in zip(
            (call.acc, call.lhs, call.rhs), shapes(call.kernel), call.strides, strict=True
        )
    )
    right = rhs.T if call.kernel.product == "qk" else rhs
    want = acc + lhs @ right
    terms = lhs.shape[1] + 1
    bound = 1.01 * terms * UNIT_ROUNDOFF * (np.abs(acc) + np.abs(lhs) @ np.abs(right))
    tile = matrix(got, acc.shape, call.strides[0]).astype(np.float64)
    assert np.all(np.abs(tile - want) <= bound), call.kernel.symbol
    untouched = got.copy()
    matrix(untouched, acc.shape, call.strides[0])[:] = matrix(call.acc, acc.shape, call.strides[0])
    assert np.array_equal(untouched, call.acc), f"{call.kernel.symbol} wrote between the rows"


def run(command: Sequence[str], calls: Sequence[Call]) -> None:
    """Run calls through a driver and check every result."""
    done = subprocess.run(
        command, input=b"".join(c.packed() for c in calls), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    results = np.frombuffer(done.stdout, dtype=np.float32)
    ends = np.cumsum([c.acc.size for c in calls])
    assert results.size == ends[-1]
    for call, got in zip(calls, np.split(results, ends[:-1]), strict=True):
        check(call, got)
