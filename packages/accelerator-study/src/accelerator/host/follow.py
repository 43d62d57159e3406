# SPDX-License-Identifier: Apache-2.0
"""A reference in numpy that takes the roundings of a runner, each checked by its own values.

Two hosts add up float32 in different orders. An activation that is near to the middle between two
whole numbers then falls to one on the first and to the other on the second, and in a deep model
such steps of 1/127 grow until the two answers share no rounding. Both are right: W8A8 does not say
more. So the runner writes down what it rounded (native/runtime/record.h), and the reference
goes the same way wherever its own value is as near to the middle as float32 explains; anything
else is a fault, with its place. What remains between the two is float32 alone.
"""

from __future__ import annotations

import struct

import numpy as np

from accelerator.errors import AcceleratorError
from accelerator.layer import Int8
from accelerator.model import quantise
from costmodel.accuracy.rounding import F32

VARIABLE = "MLC_RVV_ACCELERATOR_RECORD"
# Of a step of rounding, and of a scale: float32 sums in another order leave less than a tenth.
SLACK = 1e-2
SCALE_SLACK = 1e-3
_SIZES = struct.Struct("<II")


class Roundings:
    """Roundings of a runner, taken one matrix after the other.

    Args:
        record: the file that the runner wrote.

    Attributes:
        taken: values that were taken so far.
        other: of these, those that :func:`quantise` rounds to another whole number.
        farthest: from the nearest half, of these, in steps.
    """

    def __init__(self, record: bytes) -> None:
        self._record, self._at, self._matrix = record, 0, 0
        self.taken = self.other = 0
        self.farthest = 0.0

    def __call__(self, matrix: F32) -> tuple[Int8, F32]:
        """The runner's int8 values and scales of a matrix.

        Raises:
            AcceleratorError: the runner rounded a matrix of another size, or other values.
        """
        values, scales = self._next(matrix.shape)
        own, own_scales = quantise(matrix)
        apart = np.abs(scales / own_scales - 1)
        if not (apart.max(initial=0) <= SCALE_SLACK):
            row = int(np.argmax(apart))
            raise self._fault(f"row {row} has a scale of {scales[row]:g}, not {own_scales[row]:g}")
        steps = np.abs(matrix / scales[:, None].astype(np.float64) - values) - 0.5
        over = float(steps.max(initial=-0.5))
        if not (over <= SLACK):
            row, column = divmod(int(np.argmax(steps)), matrix.shape[1])
            what = f"row {row}, column {column} is {values[row, column]}"
            raise self._fault(f"{what}, not {own[row, column]}")
        self.taken += values.size
        self.other += int((values != own).sum())
        self.farthest = max(self.farthest, over)
        return values, scales

    def end(self) -> None:
        """Check that nothing is left over.

        Raises:
            AcceleratorError: the runner rounded more.
        """
        if self._at != len(self._record):
            raise self._fault("the reference rounds nothing more")

    def _next(self, shape: tuple[int, ...]) -> tuple[Int8, F32]:
        self._matrix += 1
        at = self._at + _SIZES.size
        if at > len(self._record):
            raise self._fault("the runner rounded nothing more")
        rows, columns = _SIZES.unpack_from(self._record, self._at)
        end = at + rows * (columns + 4)
        if (rows, columns) != shape or end > len(self._record):
            raise self._fault(f"the runner rounded {rows} x {columns}, not {shape[0]} x {shape[1]}")
        self._at = end
        values = np.frombuffer(self._record, np.int8, rows * columns, at + 4 * rows)
        return values.reshape(shape), np.frombuffer(self._record, "<f4", rows, at)

    def _fault(self, what: str) -> AcceleratorError:
        return AcceleratorError(f"rounding {self._matrix} of the runner: {what}", exit_code=1)
