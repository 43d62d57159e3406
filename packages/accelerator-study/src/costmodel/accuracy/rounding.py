# SPDX-License-Identifier: Apache-2.0
"""Fake quantization: float32 values rounded to the values that a scheme can store."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.accelerator.scheme import Grain, Scheme

F32 = NDArray[np.float32]


def rounded(values: F32, bits: int, axis: int | None) -> F32:
    """Round values to symmetric integers of ``bits``, times a scale; from 16 bits on, to a float.

    Values along ``axis`` share a scale; None: all values.
    """
    if bits >= 16:
        return values.astype(np.float16).astype(np.float32) if bits == 16 else values
    most = 2 ** (bits - 1) - 1
    top = np.max(np.abs(values), axis=axis, keepdims=axis is not None)
    scale = _as_half(np.maximum(np.asarray(top, dtype=np.float32) / most, 1e-8))
    return np.asarray(np.clip(np.rint(values / scale), -most - 1, most) * scale, dtype=np.float32)


def _as_half(values: F32) -> F32:
    """Round scales to float16, in which a scheme stores them."""
    return np.maximum(values.astype(np.float16).astype(np.float32), np.float32(6e-8))


def weights(values: F32, scheme: Scheme) -> F32:
    """Round N x K weights as a scheme stores them; the last group along K may be shorter."""
    if scheme.weight_grain is Grain.GROUP:
        # An incomplete last group has a separate scale.
        starts = range(0, values.shape[1], scheme.group)
        parts = [rounded(values[:, s : s + scheme.group], scheme.weight, 1) for s in starts]
        return np.concatenate(parts, axis=1)
    return rounded(values, scheme.weight, 1 if scheme.weight_grain is Grain.CHANNEL else None)


def activations(values: F32, scheme: Scheme) -> F32:
    """Round tokens x K activations; the scales follow from the values."""
    axis = {Grain.TOKEN: 1, Grain.EMBEDDING: 0}.get(scheme.activation_grain)
    return rounded(values, scheme.activation, axis)


def cache(values: F32, scheme: Scheme) -> F32:
    """Round keys or values of heads x tokens x width, with a scale for each head and token."""
    return rounded(values, scheme.cache, 2)
