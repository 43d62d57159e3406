# SPDX-License-Identifier: Apache-2.0
"""Windows that a kernel reads along a dimension of a picture, with stride, padding and dilation.

Positions and counts may be integers or numpy arrays of integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Count = Any  # an integer or a numpy array of int64


@dataclass(frozen=True)
class Span:
    """The samples of the windows of neighbouring outputs.

    Attributes:
        first: position of the first sample inside the picture.
        count: samples inside the picture.
        before, after: samples of padding on either side.
    """

    first: Count
    count: Count
    before: Count = 0
    after: Count = 0

    @property
    def samples(self) -> Count:
        """The number of samples, with padding."""
        return self.before + self.count + self.after


@dataclass(frozen=True)
class Axis:
    """A dimension of a picture under a kernel; the default is a dimension without windows.

    Attributes:
        extent: positions of the picture.
        kernel: positions of the kernel.
        stride: positions between windows.
        padding: positions before the picture; trailing: behind it, None for as many.
        dilation: positions between the kernel's positions.
    """

    extent: int
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    trailing: int | None = None

    @property
    def outputs(self) -> int:
        """The number of windows; below 1 if the kernel is larger than the padded picture."""
        behind = self.padding if self.trailing is None else self.trailing
        free = self.extent + self.padding + behind - self.dilation * (self.kernel - 1) - 1
        return free // self.stride + 1

    @property
    def step(self) -> int:
        """The positions from sample to sample: the stride for a kernel of one position, else 1."""
        return self.stride if self.kernel == 1 else 1

    @property
    def advance(self) -> int:
        """The samples from window to window: 1 for a kernel of one position, else the stride."""
        return 1 if self.kernel == 1 else self.stride

    def samples(self, size: Count) -> Count:
        """Return the number of samples of the windows of ``size`` neighbouring outputs."""
        return (size - 1) * self.advance + (self.kernel - 1) * self.dilation + 1

    def span(self, at: Count, size: Count) -> Span:
        """Return the samples of the windows of the outputs from ``at`` to ``at + size``."""
        begin, samples = at * self.stride - self.padding, self.samples(size)
        before = _between(0, -(begin // self.step), samples)
        end = _between(before, -((begin - self.extent) // self.step), samples)
        return Span(begin + before * self.step, end - before, before, samples - end)


def _between(low: Count, value: Count, high: Count) -> Count:
    """Return the value limited to a range; integers stay Python's."""
    if isinstance(value, int):
        return max(low, min(value, high))
    return np.clip(value, low, high)
