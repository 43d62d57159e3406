# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled model's answer with the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crosslab.errors import LabError
from crosslab.models.reference import Answer


@dataclass(frozen=True)
class Comparison:
    """Distance of an answer from the reference.

    Attributes:
        same_tokens: whether all token ids are equal.
        logit_error: largest difference of a logit divided by the reference's largest logit,
            over the steps that both read the same tokens for; NaN counts as infinite.
        tolerance: largest logit error that is right, see :mod:`crosslab.models.formats`.
        tie: the answers part at a step where the reference's logits of the two tokens are nearer to
            each other than rounding moves a logit.
    """

    same_tokens: bool
    logit_error: float
    tolerance: float
    tie: bool = False

    @property
    def within(self) -> bool:
        """True if the logit error is below the tolerance."""
        return self.logit_error < self.tolerance

    @property
    def right(self) -> bool:
        """True if the logit error is below the tolerance, and the tokens are equal up to a tie."""
        return (self.same_tokens or self.tie) and self.within


def compare(
    tokens: Sequence[int],
    logits: NDArray[np.float32],
    reference: Answer,
    tolerance: float,
    rounding: float = 0.0,
) -> Comparison:
    """Compare an answer with the reference's.

    Rounding activations makes a deep model chaotic: a sum in another order moves some of them to
    other whole numbers, and the logits by up to as much as rounding itself moves them.

    Args:
        tokens: generated ids.
        logits: [len(tokens), vocab] float32.
        reference: the answer that is right.
        tolerance: of the weights' format.
        rounding: by how much rounding moves the reference's logits, as a part of the largest.

    Raises:
        LabError: the logits are not of the tokens' and the vocabulary's shape.
    """
    vocab = reference.logits.shape[1]
    if logits.shape != (len(tokens), vocab):
        raise LabError(f"logits of shape {logits.shape} for {len(tokens)} tokens of {vocab}")
    # After the first differing token the two answers go on from different texts.
    pairs = list(zip(tokens, reference.tokens, strict=False))
    steps = next((i + 1 for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    wanted = reference.logits[:steps]
    difference = np.abs(logits[:steps].astype(np.float64) - wanted).max()
    largest = np.abs(wanted).max()
    error = float(difference / largest)
    last = wanted[-1]
    apart = abs(last[tokens[steps - 1]] - last[reference.tokens[steps - 1]]) / largest
    return Comparison(
        same_tokens=tuple(tokens) == reference.tokens,
        logit_error=error if np.isfinite(error) else float("inf"),
        tolerance=max(tolerance, rounding),
        # Both logits may have moved.
        tie=bool(0 < apart < 2 * rounding),
    )
