# SPDX-License-Identifier: Apache-2.0
"""Errors are counted in units in the last place of the right result."""

from __future__ import annotations

import numpy as np

from torchroad.survey.ulp import ulps


def test_a_unit_is_the_distance_to_the_next_float32() -> None:
    wanted = np.array([1.0, 1024.0, -1e-3, np.nan, np.inf, 1e-40, 1.0])
    made = wanted.astype(np.float32)
    made[:3] = np.nextafter(made[:3], np.float32(1e9))
    made[-2:] = 0, np.nan
    errors = ulps(made, wanted)
    assert np.allclose(errors[:2], 1)
    assert 0.5 <= errors[2] <= 1.5
    assert errors[3:6].tolist() == [0, 0, 0]
    assert errors[6] > 1e300
