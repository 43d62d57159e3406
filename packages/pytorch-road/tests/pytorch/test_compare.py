# SPDX-License-Identifier: Apache-2.0
"""Outputs beside torch's: infinities and NaNs of both are no errors, those of one are."""

from __future__ import annotations

import numpy as np
import pytest

from torchroad.job import compare


@pytest.mark.parametrize(
    ("made", "expected", "right"),
    [
        ([-np.inf, np.nan, 2.0], [-np.inf, np.nan, 2.0], True),
        ([-np.inf, 1.0], [-np.inf, 2.0], False),
        ([np.inf, 2.0], [-np.inf, 2.0], False),
        ([np.nan, 2.0], [1.0, 2.0], False),
        ([1.0, 2.0], [np.nan, 2.0], False),
        ([-np.inf], [-np.inf], True),
    ],
)
def test_what_is_not_finite_has_to_be_torchs(
    made: list[float], expected: list[float], right: bool
) -> None:
    tables = ({"y": np.array(values, np.float32)} for values in (made, expected))
    assert compare(*tables)[1] is right
