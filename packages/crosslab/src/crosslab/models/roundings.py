# SPDX-License-Identifier: Apache-2.0
"""Roundings to int8: computed by the reference, or recorded in a run and checked.

Two hosts add up float32 in different orders. A value near the middle between two whole numbers is
then rounded up by the first host and down by the second. In a deep model such steps of 1/127 grow
until the two answers share no rounding. Both are right. So the runner records its roundings
(``runner/model/roundings.h``). The reference computes everything itself, and uses a recorded
rounding if the reference's value is as near to the middle as float32 explains. Every other
difference is an error, reported with its position. The remaining difference between the two answers
is that of float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import LabError
from crosslab.models.weights_file import F32

Int8 = NDArray[np.int8]
GROUP = 32
"""Inputs that share a scale when activations are rounded for MLC-LLM's formats of weights."""
LEAST = np.float32(2.0**-100)
"""Blocks whose largest value is at most this are zeros (kernels/include/mlc_rvv_linear.h)."""


@dataclass(frozen=True)
class Slack:
    """Largest differences between a run's roundings and the reference's that arithmetic explains.

    Attributes:
        steps: largest distance of a value from the middle, in steps of rounding.
        scale: largest relative difference of a scale.
        mean: largest relative difference of the mean of a matrix's scales.
        other: largest share of a matrix's values that round to another whole number; None: the
            share that halves explain.
    """

    steps: float
    scale: float
    mean: float
    other: float | None


FLOAT32_SLACK = Slack(steps=1e-2, scale=1e-4, mean=1e-4, other=5e-2)
"""For float32 models: another order of sums changes a value by less than 0.001 steps."""
INT16_SLACK = Slack(steps=1, scale=3e-3, mean=5e-4, other=5e-2)
"""For float32 models with a KV cache in int8, whose decode attention rounds queries to int16:
values differ by up to 0.15 steps, and scales by 2e-4, in 30 layers of SmolLM2."""
HALVES_SLACK = Slack(steps=8, scale=6e-2, mean=2e-3, other=None)
"""For models with float16 activations: single values differ by up to 4 steps and 2.5 % in 30 layers
of SmolLM2, where large values cancel, but the mean of many values differs little."""
# Halves have 11 bits, and a layer stores about twelve of them one after another. Their independent
# errors add up as the root of their number. Right models reach a half of this.
_HALVES_ROUNDING, _HALVES_STORES, _HALVES_MARGIN = 2.0**-11, 12, 0.7

# Error of float32, as a part of a row's largest value, in a block of far smaller values.
NOISE = 1e-6
# Values of a matrix that may differ regardless of their share.
FEW = 8
_HEADER = struct.Struct("<4IQ")
_ROWS, _TOKENS, _CALL = range(3)


def halves_error(layers: int) -> float:
    """Return the largest error that rounding to halves explains behind a number of layers.

    The error is a part of the numbers; both are root mean squares.
    """
    return _HALVES_MARGIN * _HALVES_ROUNDING * float(np.sqrt(_HALVES_STORES * layers))


class RoundingError(LabError):
    """The reference's values do not explain a recorded rounding of the run."""


def int8_rows(x: F32, block: int) -> tuple[Int8, F32]:
    """Round a matrix to int8 as the kernels do.

    Args:
        x: [rows, columns].
        block: neighbouring columns that share a scale.

    Returns:
        int8 [rows, columns], from -127 to 127; scales [rows, blocks].
    """
    blocks = _in_blocks(x, block)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    some = largest > LEAST
    factor = np.where(some, np.float32(127) / np.where(some, largest, 1), 0).astype(np.float32)
    values = np.rint(blocks * factor).astype(np.int8).reshape(len(x), -1)[:, : x.shape[1]]
    return values, (largest * np.float32(1 / 127))[:, :, 0]


def _in_blocks(x: F32, block: int) -> F32:
    """Reshape [rows, columns] to [rows, blocks, block]; zeros fill the last block."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % block))).reshape(len(x), -1, block)


def round_to_int8(x: F32, block: int = GROUP) -> F32:
    """Round a matrix to int8; return the rounded values in float32."""
    return _near(*int8_rows(x, block), block)


def _near(values: Int8, scales: F32, block: int) -> F32:
    wide = np.repeat(scales, block, axis=1)[:, : values.shape[1]]
    near: F32 = values.astype(np.float32) * wide
    return near


class Roundings:
    """Roundings computed by the reference.

    Attributes:
        rounds_head: the model rounds the input of the last product.
    """

    def __init__(self) -> None:
        self.rounds_head = True

    def begin(self) -> None:
        """Begin a call of the model; does nothing here."""

    def head(self, x: F32, block: int, name: str) -> F32:
        """Return the input of a call's last product, rounded if `rounds_head` is set."""
        return self.rounded(x, block, name) if self.rounds_head else x

    def matrix(self, x: F32, block: int, name: str) -> tuple[Int8, F32]:  # noqa: ARG002 - overridden
        """Round a matrix; return int8 values and scales, see :func:`int8_rows`.

        Args:
            x: [rows, columns].
            block: neighbouring columns that share a scale.
            name: name of the weight that the matrix is multiplied with, for messages.
        """
        return int8_rows(x, block)

    def rounded(self, x: F32, block: int, name: str) -> F32:
        """Round a matrix; return the rounded values in float32."""
        return _near(*self.matrix(x, block, name), block)

    def cached(
        self,
        keys: F32,
        values: F32,
        layer: int,  # noqa: ARG002 - overridden
        first: int,  # noqa: ARG002
    ) -> tuple[F32, F32]:
        """Return keys and values rounded to int8, as float32, each row of a head by its own scale.

        Args:
            keys: [tokens, heads, width].
            values: [tokens, heads, width].
            layer: number of the layer.
            first: position of the first token.
        """
        width = keys.shape[-1]
        near = [round_to_int8(_flat(x), width).reshape(x.shape) for x in (keys, values)]
        return near[0], near[1]


@dataclass(frozen=True)
class _Rows:
    """Rows of a matrix, as a thread of the run rounded them."""

    order: int
    block: int
    values: Int8
    scales: F32


class RunRoundings(Roundings):
    """Roundings that a run recorded, in the order of the run.

    Args:
        record: content of the file that the runner wrote.
        slack: differences that are accepted.
        layers: number of the model's layers.

    Attributes:
        rounds_head: the run rounded the input of the last product; False without a record of it.
        taken: number of the run's values used so far.
        other: number of used values that the reference rounds to another whole number.
        farthest: largest distance of these values from the middle, in steps.

    Raises:
        RoundingError: on use, the reference's values do not explain a rounding.
        LabError: the record is incomplete.
    """

    def __init__(self, record: bytes, slack: Slack = FLOAT32_SLACK, layers: int = 1) -> None:
        super().__init__()
        self._slack, self._layers, self._matrix = slack, layers, 0
        self.taken = self.other = 0
        self.farthest = 0.0
        tokens: list[NDArray[np.float32]] = []
        calls: list[list[_Rows]] = [[]]
        for entry in _entries(record):
            if entry is None:
                calls.append([])
            elif isinstance(entry, _Rows):
                calls[-1].append(entry)
            else:
                tokens.append(entry)
        if calls.pop():
            raise LabError("the run's record of roundings ends within a call")
        self._calls = iter(calls)
        self._rows: Iterator[_Rows] = iter(())
        self._ahead: _Rows | None = None
        # Keys and values: [2, layers, tokens, heads, width].
        self._cached = np.concatenate(tokens, axis=2) if tokens else np.zeros((2, 0, 0, 0, 0))
        self._read = np.zeros(self._cached.shape[1:3], bool)

    def begin(self) -> None:
        """Begin the next call; raise RoundingError if the run rounded more in the last one."""
        if self._ahead is not None:
            raise RoundingError("a call of the run rounded more than the reference")
        self._rows = iter(next(self._calls, []))
        self._ahead = next(self._rows, None)

    def head(self, x: F32, block: int, name: str) -> F32:
        """Return the input of the last product, which a run may multiply without rounding."""
        self.rounds_head = self._ahead is not None
        return super().head(x, block, name)

    def matrix(self, x: F32, block: int, name: str) -> tuple[Int8, F32]:
        """Return the run's int8 values and scales of x; RoundingError if x differs too much."""
        self._matrix += 1
        where = f"rounding {self._matrix} of the run, the input of {name}"
        parts = [self._next(x.shape, block, where)]
        while sum(len(part.values) for part in parts) < len(x):
            parts.append(self._next(x.shape, block, where))
        parts.sort(key=lambda part: part.order)
        values = np.concatenate([part.values for part in parts])
        scales = np.concatenate([part.scales for part in parts])
        if values.shape != x.shape:
            raise RoundingError(f"{where}: {values.shape[0]} rows of a matrix of {len(x)}")
        return self._checked(x, block, values, scales, where, self._layers)

    def _next(self, shape: tuple[int, ...], block: int, where: str) -> _Rows:
        rows = self._ahead
        if rows is None:
            raise RoundingError(f"{where}: the run rounded nothing more in this call")
        self._ahead = next(self._rows, None)
        if (rows.values.shape[1], rows.block) != (shape[1], block) or len(rows.values) > shape[0]:
            raise RoundingError(
                f"{where}: the run rounded {rows.values.shape[0]} x {rows.values.shape[1]} in "
                f"blocks of {rows.block}, not {shape[0]} x {shape[1]} in blocks of {block}"
            )
        return rows

    def cached(self, keys: F32, values: F32, layer: int, first: int) -> tuple[F32, F32]:
        """Return the run's cached keys and values; RoundingError if these differ too much."""
        end = first + len(keys)
        if self._cached.shape[1] <= layer or self._cached.shape[2] < end:
            raise RoundingError(f"the run's cache lacks token {end - 1} of layer {layer}")
        self._read[layer, first:end] = True
        pairs = []
        for kind, fresh, held in zip(
            ("key", "value"), (keys, values), self._cached[:, layer, first:end], strict=True
        ):
            where = f"layer {layer} of the run's cache, {kind} of token {first}"
            x, kept = _flat(fresh), _flat(held)
            if kept.shape != x.shape:
                raise RoundingError(f"{where}: heads of {held.shape[1:]}, not {fresh.shape[1:]}")
            if not np.isfinite(kept).all():
                raise RoundingError(f"{where}: the cache holds NaN or infinity")
            # The largest of a row is 127 steps.
            scales = np.abs(kept).max(axis=1, keepdims=True) / np.float32(127)
            whole = np.rint(kept / np.where(scales > 0, scales, 1)).astype(np.int8)
            near, factors = self._checked(x, x.shape[1], whole, scales, where, layer + 1)
            pairs.append((near * factors).astype(np.float32).reshape(fresh.shape))
        return pairs[0], pairs[1]

    def _checked(
        self, x: F32, block: int, values: Int8, scales: F32, where: str, layers: int
    ) -> tuple[Int8, F32]:
        """Return the run's values and scales; RoundingError if x differs too much.

        Args:
            x: [rows, columns], computed by the reference.
            block: neighbouring columns that share a scale.
            values: [rows, columns], of the run.
            scales: [rows, blocks], of the run.
            where: place of the matrix, for messages.
            layers: number of layers that the matrix depends on.
        """
        expected, expected_scales = int8_rows(x, block)
        if scales.shape != expected_scales.shape:
            raise RoundingError(f"{where}: {scales.shape} scales, not {expected_scales.shape}")
        noise = NOISE * np.abs(x).max(axis=1, keepdims=True, initial=0).astype(np.float64)
        differences = scales.astype(np.float64) - expected_scales
        allowed = self._slack.scale * expected_scales + noise / 127 + float(LEAST)
        if not (np.abs(differences) <= allowed).all():
            row, column = np.argwhere(~(np.abs(differences) <= allowed))[0]
            raise RoundingError(
                f"{where}: row {row}, block {column} has a scale of {scales[row, column]:g}, "
                f"not {expected_scales[row, column]:g}"
            )
        mean = float(differences.mean() / max(expected_scales.mean(), float(LEAST)))
        if abs(mean) > self._slack.mean:
            raise RoundingError(f"{where}: scales are off by {mean:.1e} of their mean")
        steps = np.repeat(np.maximum(scales, LEAST).astype(np.float64), block, axis=1)
        steps = steps[:, : x.shape[1]]
        beyond = np.abs(x / steps - values) - 0.5
        explained = beyond <= self._slack.steps + noise / steps
        if not explained.all():
            row, column = np.argwhere(~explained)[0]
            what = f"{values[row, column]}, not {expected[row, column]}"
            raise RoundingError(f"{where}: row {row}, column {column} is {what}")
        other = values != expected
        if other.sum() > self._share(x, scales, layers) * other.size + FEW:
            raise RoundingError(
                f"{where}: {other.sum()} of {other.size} values are not the reference's own"
            )
        self.taken += values.size
        self.other += int(other.sum())
        self.farthest = max(self.farthest, float(beyond[other].max(initial=0.0)))
        return values, scales

    def _share(self, x: F32, scales: F32, layers: int) -> float:
        """Return the share of a matrix's values that may round to another whole number.

        An error that is small beside a step changes the whole number with a probability of its mean
        magnitude in steps, which is that of a normal distribution.
        """
        if self._slack.other is not None:
            return self._slack.other
        size = np.sqrt(np.square(x.astype(np.float64)).mean(axis=1, keepdims=True))
        steps = halves_error(layers) * size / np.maximum(scales, LEAST)
        return float(np.minimum(np.sqrt(2 / np.pi) * steps, 1).mean())

    def end(self) -> None:
        """Check that the reference has used all roundings of the run.

        Raises:
            RoundingError: the run rounded more than the reference.
        """
        if self._ahead or next(self._calls, None) or not self._read.all():
            raise RoundingError("the run rounded more than the reference")


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    return x.reshape(-1, x.shape[-1])


def _entries(record: bytes) -> Iterator[_Rows | NDArray[np.float32] | None]:
    """Yield rows, keys with values [2, layers, tokens, heads, width], or None after a call."""
    at = 0

    def take(dtype: str, *shape: int) -> NDArray[Any]:
        nonlocal at
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(dtype).itemsize
        if at + size > len(record):
            raise LabError("the run's record of roundings is cut off")
        array = np.frombuffer(record, dtype, count, at).reshape(shape)
        at += size
        return array

    while at < len(record):
        kind, first, second, third, last = _HEADER.unpack(take("V24", 1).tobytes())
        if kind == _TOKENS:
            yield take("<f4", 2, first, second, third, last)
        elif kind == _ROWS and third > 0:
            scales = take("<f4", first, -(-second // third))
            yield _Rows(last, third, take("i1", first, second), scales)
        elif kind == _CALL:
            yield None
        else:
            raise LabError(f"the run's record of roundings has an entry of unknown kind {kind}")
