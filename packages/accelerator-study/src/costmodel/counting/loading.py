# SPDX-License-Identifier: Apache-2.0
"""Counts of the loads of an operand that stays in the array while other operands stream."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.counting.digits import digit_domain
from costmodel.counting.space import Access, Box, NonSeparableMapError, SpaceTime
from costmodel.counting.stamps import stamp_set


def folds(domain: Box, mapping: SpaceTime, operands: Sequence[Access]) -> int:
    """Return how many times the array loads an operand that its PEs keep; 0 without such.

    PEs keep an operand if its index has no digit that only the last component of the time stamp
    uses. Without a kept operand, or without a closed form of the map, the result is 0.
    """
    listed = [e for a in operands for e in a.indices[0]]
    try:
        digits = digit_domain(domain, [*mapping.space, *mapping.time, *listed])
        time = [digits.lower(e) for e in mapping.time]
        outer = [*(digits.lower(e) for e in mapping.space), *time[:-1]]
        streaming = [
            n
            for n, weight in enumerate(time[-1].weights)
            if weight and not any(form.weights[n] for form in outer)
        ]
        kept = [
            access
            for access in operands
            if not any(digits.lower(e).weights[n] for e in access.indices[0] for n in streaming)
        ]
        if not kept or not streaming:
            return 0
        return stamp_set(digits, time[:-1]).count() if len(time) > 1 else 1
    except NonSeparableMapError:
        return 0
