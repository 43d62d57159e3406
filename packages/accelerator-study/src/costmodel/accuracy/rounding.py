# SPDX-License-Identifier: Apache-2.0
"""Fake quantization: floats rounded to the values that a scheme can store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.accelerator.scheme import Grain, Scheme

Floats = NDArray[np.floating[Any]]  # of 32 or 64 bits


def rounded(values: Floats, bits: int, axis: int | None) -> Floats:
    """Round values to symmetric integers of ``bits``, times a scale; from 16 bits on, to a float.

    Values along ``axis`` share a scale; None: all values.
    """
    if bits >= 16:
        return values.astype(np.float16).astype(values.dtype) if bits == 16 else values
    most = 2 ** (bits - 1) - 1
    top = np.max(np.abs(values), axis=axis, keepdims=axis is not None)
    scale = _as_half(np.maximum(np.asarray(top, dtype=values.dtype) / most, 1e-8))
    return np.asarray(np.clip(np.rint(values / scale), -most - 1, most) * scale)


def _as_half(values: Floats) -> Floats:
    """Round scales to float16, in which a scheme stores them."""
    return np.maximum(values.astype(np.float16).astype(values.dtype), 6e-8)


def weights(values: Floats, scheme: Scheme) -> Floats:
    """Round N x K weights as a scheme stores them; the last group along K may be shorter."""
    if scheme.weight_grain is Grain.GROUP:
        # An incomplete last group has a separate scale.
        starts = range(0, values.shape[1], scheme.group)
        parts = [rounded(values[:, s : s + scheme.group], scheme.weight, 1) for s in starts]
        return np.concatenate(parts, axis=1)
    return rounded(values, scheme.weight, 1 if scheme.weight_grain is Grain.CHANNEL else None)


def activations(values: Floats, scheme: Scheme) -> Floats:
    """Round tokens x K activations; the scales follow from the values."""
    axis = {Grain.TOKEN: 1, Grain.EMBEDDING: 0}.get(scheme.activation_grain)
    return rounded(values, scheme.activation, axis)


def cache(values: Floats, scheme: Scheme) -> Floats:
    """Round keys or values of heads x tokens x width, with a scale for each head and token."""
    return rounded(values, scheme.cache, 2)
