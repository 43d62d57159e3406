# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled model's tokens, logits and other outputs with the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosslab.errors import LabError
from crosslab.models.reference import Answer

# Least magnitude of a fill, 1e4 in bfloat16, and its least ratio to values that differ from the
# reference.
LEAST_FILL, FAR_FROM_VALUES = 9984, 100
# Largest difference of a fill from the reference's, in epsilons of the dtype: a mask is often added
# to values, and their roundings change the last bits of the sum.
FILL_EPSILONS = 4
# Values above this share of the dtype's largest number are fills.
NEAR_LIMIT = 0.5


@dataclass(frozen=True)
class Comparison:
    """Differences between an answer and the reference's answer.

    Attributes:
        same_tokens: each token is the likeliest by the reference's logits.
        chosen: each token is the likeliest by the answer's own logits.
        logit_error: largest difference of a logit divided by the reference's largest logit, over
            the steps in which both models have read the same tokens; NaN counts as infinite.
        tolerance: limit of the logit error, see :mod:`crosslab.models.formats`.
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
        """True if the logit error is below the tolerance, and the tokens follow from the logits.

        Tokens that the reference finds equally likely may differ.
        """
        return self.chosen and self.within


def compare(
    tokens: Sequence[int], logits: NDArray[np.float32], reference: Answer, tolerance: float
) -> Comparison:
    """Compare an answer with the answer that the reference generated independently.

    After the first differing token the two texts differ: only the steps up to that token are
    compared.

    Args:
        tokens: generated ids.
        logits: [len(tokens), vocab] float32.
        reference: the reference's answer.
        tolerance: tolerance of the weight format.

    Raises:
        LabError: the shape of the logits does not fit the tokens and the vocabulary.
    """
    pairs = list(zip(tokens, reference.tokens, strict=False))
    steps = next((i + 1 for i, (ours, wanted) in enumerate(pairs) if ours != wanted), len(pairs))
    result = compare_rows(tokens, logits, reference.logits, tolerance, steps)
    same = result.same_tokens and len(tokens) == len(reference.tokens)
    return Comparison(same, result.chosen, result.logit_error, tolerance)


def compare_rows(
    tokens: Sequence[int],
    logits: NDArray[np.float32],
    rows: NDArray[np.float32],
    tolerance: float,
    steps: int | None = None,
) -> Comparison:
    """Compare an answer with the logits of a reference that has read the answer's tokens.

    Args:
        tokens: generated ids.
        logits: [len(tokens), vocab] float32.
        rows: [len(tokens), vocab] float32, the reference's logits.
        tolerance: tolerance of the weight format.
        steps: number of first rows to compare; None: all rows.

    Raises:
        LabError: the shape of the logits does not fit the tokens and the vocabulary.
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


def relative_error(output: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Return the largest error of an output, relative to its largest value without fills.

    A fill is a large constant, such as -1e9 at hidden positions: it equals the reference, except
    for rounding, and is far from the values that differ, or it is near the limit of its dtype. As
    the scale of the other values it would hide every error; its own error is relative to itself.

    Args:
        output: of any shape and dtype, bfloat16 included.
        wanted: the reference, of the same shape and dtype.

    Returns:
        0 if all values are equal, where NaN equals NaN; infinity for a NaN or an infinity on one
        side only, and for integers or truth values that differ.
    """
    same = (output == wanted) | ((output != output) & (wanted != wanted))  # noqa: PLR0124 (NaN)
    if same.all():
        return 0.0
    # The kind of bfloat16, as that of int4, is "V".
    if "float" not in wanted.dtype.name:
        return float("inf")
    actual, reference = output.astype(np.float64), wanted.astype(np.float64)
    sizes = np.where(np.isfinite(reference), np.abs(reference), 0)
    info = ml_dtypes.finfo(wanted.dtype)  # type: ignore[no-untyped-call]
    fills = sizes > NEAR_LIMIT * float(info.max)
    with np.errstate(invalid="ignore"):  # an infinity less itself
        near = same | (np.abs(actual - reference) <= FILL_EPSILONS * float(info.eps) * sizes)
    far = max(LEAST_FILL, FAR_FROM_VALUES * sizes[~near & ~fills].max(initial=0))
    fills |= near & (sizes >= far)
    # An output of zeros has no scale: its error is absolute.
    scales = np.where(fills, sizes, sizes[~fills].max(initial=0) or 1)
    error = float(np.max(np.abs(actual[~same] - reference[~same]) / scales[~same]))
    return error if np.isfinite(error) else float("inf")
