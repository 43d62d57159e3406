# SPDX-License-Identifier: Apache-2.0
"""Search of the fastest candidate: in the order of lower bounds, until no other can be faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FIRST_CHUNK, CHUNK = 32, 256  # candidates of a call


def in_order_of_bounds(bounds: Any, simulated: Callable[[Any], Sequence[float]]) -> Any:
    """Return the times of candidates; NaN for those left out, whose bounds reach the best time.

    Args:
        bounds: lower bounds of the times.
        simulated: returns the times of the candidates at some places.
    """
    times = np.full(len(bounds), np.nan)
    chunk = np.argpartition(bounds, min(FIRST_CHUNK, len(bounds)) - 1)[:FIRST_CHUNK]
    ranked: Any = None
    while len(chunk):
        times[chunk] = simulated(chunk)
        best = np.nanmin(times)
        if ranked is None:
            left = np.setdiff1d(np.flatnonzero(bounds < best), chunk)
            ranked = left[np.argsort(bounds[left], kind="stable")]
        ranked = ranked[: np.searchsorted(bounds[ranked], best)]
        chunk, ranked = ranked[:CHUNK], ranked[CHUNK:]
    return times
