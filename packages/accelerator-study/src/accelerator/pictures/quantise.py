# SPDX-License-Identifier: Apache-2.0
"""Calibration: the scales of activations, and layers in int8.

A tensor's scale is a power of two, so that the device turns sums into results by shifts. If the CPU
alone reads a layer's result, the layer leaves its exact sums; the CPU multiplies them by scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from accelerator.device import Device
from accelerator.layer import EXACT, MOST_ROUNDED, Int8, Int32, Pooling, Requantisation
from accelerator.model import MOST, check_finite, lowered
from accelerator.pictures.partition import DeviceLayer, Floats
from accelerator.pooling import pool
from accelerator.program import Program

MOST_SHIFT = 24  # of a channel's sums
MOST_ADDEND = 29  # bits of a channel's addend
MOST_LEFT = 16  # left shift of a residual: finer steps of the result hold none of its values
EXPONENTS = range(-48, 48)  # of scales
HEADROOM = 1024  # times int8's range: a value so far above it never pays


def best_exponents(runs: Iterable[Mapping[str, Floats]]) -> dict[str, int]:
    """Return the exponent of each tensor's scale with the least squared error over all runs.

    A step of the tensor is ``2 ** -exponent``.
    """
    errors: dict[str, dict[int, float]] = {}
    for tensors in runs:
        for name, values in tensors.items():
            of_tensor = errors.setdefault(name, dict.fromkeys(EXPONENTS, 0.0))
            finite = values[np.isfinite(values)]
            largest = float(np.abs(finite).max(initial=0.0))
            square = float(np.square(finite, dtype=float).sum())
            for exponent in of_tensor:
                steps = largest * 2.0**exponent
                if steps > MOST * HEADROOM:
                    of_tensor[exponent] = np.inf
                elif steps < 0.5:  # all values become 0
                    of_tensor[exponent] += square
                else:
                    whole = np.clip(np.rint(finite * 2.0**exponent), -MOST - 1, MOST)
                    off = whole * 2.0**-exponent - finite
                    of_tensor[exponent] += float((off**2).sum())
    # The first of equal errors is that of the least exponent.
    return {name: min(each, key=lambda at: each[at]) for name, each in errors.items()}


def rounded(values: Floats, exponent: int) -> Int8:
    """Return values in steps of ``2 ** -exponent``, saturated."""
    whole: Int8 = np.clip(np.rint(values * 2.0**exponent), -MOST - 1, MOST).astype(np.int8)
    return whole


@dataclass(frozen=True)
class QuantisedLayer:
    """A layer in int8, compiled for a device.

    Attributes:
        part: in float.
        program: of the device.
        weights, channels: operands; None for a pooling.
        exponent: of the result's scale; None: exact sums, multiplied by ``scales``.
        scales: of channels.
    """

    part: DeviceLayer
    program: Program
    weights: Int8 | None
    channels: Int32 | None
    exponent: int | None
    scales: Floats


def quantise(
    part: DeviceLayer, ranges: Mapping[str, int], device: Device, exact: bool
) -> QuantisedLayer:
    """Return a layer in int8 with the best mapping.

    Args:
        part: in float.
        ranges: exponents of the scales of tensors.
        device: that multiplies.
        exact: the CPU reads the result, as exact sums.

    Raises:
        AcceleratorError: no tile of the layer fits the device, or a weight is not finite.
    """
    check_finite(part.layer.name, part.weights, part.bias)
    source = ranges[part.source]
    if isinstance(part.layer, Pooling):
        program, _ = pool(part.layer, device)
        return QuantisedLayer(part, program, None, None, source, np.ones(1))
    largest = np.maximum(np.abs(part.weights).reshape(len(part.weights), -1).max(axis=1), 1e-12)
    shape = (-1, *[1] * (part.weights.ndim - 1))
    if exact:
        steps = largest / MOST
        whole = np.rint(part.weights / steps.reshape(shape)).astype(np.int8)
        program = lowered(replace(part.layer, requantisation=EXACT), device)
        return QuantisedLayer(part, program, whole, None, None, steps * 2.0**-source)
    result = ranges[part.result]
    # The sums of a channel are shifted to the result's scale: the step of its weights follows.
    room = np.floor(np.log2(MOST / largest)).astype(int)
    # The device shifts to the right only: large weights make the result's steps coarser.
    # A channel of small weights and a large bias: the addend may not pass 32 bits.
    largest_bias = np.maximum(np.abs(part.bias), 1e-12)
    free = np.floor(MOST_ADDEND - np.log2(largest_bias)).astype(int)
    result = min(result, source + int(room.min()), int(free.min()))
    if part.residual:
        result = min(result, ranges[part.residual] + MOST_LEFT)
    shifts = np.minimum(np.minimum(room - (result - source), MOST_SHIFT), free - result)
    factors = 2.0 ** (shifts + result - source)
    whole = np.clip(np.rint(part.weights * factors.reshape(shape)), -MOST, MOST).astype(np.int8)
    halves = (1 << shifts) >> 1
    addends = np.rint(part.bias * 2.0 ** (result + shifts)) + halves
    least, most = (
        None if limit is None else int(min(np.rint(limit * 2.0**result), MOST))
        for limit in part.limits
    )
    # An int8 value that is shifted right by 8 bits or more, and rounded, is 0.
    residual = max(result - ranges[part.residual], -MOST_ROUNDED) if part.residual else None
    form = Requantisation(1, 0, True, residual, least, most)
    program = lowered(replace(part.layer, requantisation=form), device)
    channels = np.stack([addends, shifts]).astype(np.int32)
    return QuantisedLayer(part, program, whole, channels, result, np.ones(1))
