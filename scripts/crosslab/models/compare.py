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
        same_tokens: all tokens are those that the reference finds likeliest.
        chosen: each token is the likeliest by the answer's own logits.
        logit_error: largest difference of a logit divided by the reference's largest logit,
            over the steps that both read the same tokens for; NaN counts as infinite.
        tolerance: largest logit error that is right, see :mod:`crosslab.models.formats`.
    """

    same_tokens: bool
    chosen: bool
    logit_error: float
    tolerance: float

    @property
    def within(self) -> bool:
        """True if the logit error is below the tolerance."""
        return self.logit_error < self.tolerance

    @property
    def right(self) -> bool:
        """True if the logits agree, and the tokens follow from them.

        Tokens that the reference finds equally likely may differ.
        """
        return self.chosen and self.within


def compare(
    tokens: Sequence[int], logits: NDArray[np.float32], reference: Answer, tolerance: float
) -> Comparison:
    """Compare an answer with one that the reference gave by itself.

    After the first differing token, the two go on from different texts: only the steps up to it are
    compared.

    Args:
        tokens: generated ids.
        logits: [len(tokens), vocab] float32.
        reference: its answer.
        tolerance: of the weights' format.

    Raises:
        LabError: the logits are not of the tokens' and the vocabulary's shape.
    """
    pairs = list(zip(tokens, reference.tokens, strict=False))
    steps = next((i + 1 for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    found = compare_rows(tokens, logits, reference.logits, tolerance, steps)
    same = found.same_tokens and len(tokens) == len(reference.tokens)
    return Comparison(same, found.chosen, found.logit_error, tolerance)


def compare_rows(
    tokens: Sequence[int],
    logits: NDArray[np.float32],
    rows: NDArray[np.float32],
    tolerance: float,
    steps: int | None = None,
) -> Comparison:
    """Compare an answer with the logits of a reference that has read its tokens.

    Args:
        tokens: generated ids.
        logits: [len(tokens), vocab] float32.
        rows: the reference's, likewise.
        tolerance: of the weights' format.
        steps: first rows that are compared; None: all.

    Raises:
        LabError: the logits are not of the tokens' and the vocabulary's shape.
    """
    vocab = rows.shape[1]
    if logits.shape != (len(tokens), vocab):
        raise LabError(f"logits of shape {logits.shape} for {len(tokens)} tokens of {vocab}")
    ours, wanted = logits[:steps].astype(np.float64), rows[:steps]
    error = float(np.abs(ours - wanted).max() / np.abs(wanted).max())
    return Comparison(
        same_tokens=wanted.argmax(axis=1).tolist() == list(tokens[:steps]),
        chosen=logits.argmax(axis=1).tolist() == list(tokens),
        logit_error=error if np.isfinite(error) else float("inf"),
        tolerance=tolerance,
    )
