# SPDX-License-Identifier: Apache-2.0
"""Outputs beside torch's: infinities, NaNs, fills and integers."""

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


@pytest.mark.parametrize("fill", [-1e9, 1e9, -1e4, float(np.finfo(np.float32).min)])
def test_a_fill_hides_no_error(fill: float) -> None:
    expected = {"y": np.array([fill, 3.0, -1.0], np.float32)}
    for second, right in ((3.00001, True), (3.1, False)):
        assert compare({"y": np.array([fill, second, -1.0], np.float32)}, expected)[1] is right
    wrong = {"y": np.array([0.5, 3.0, -1.0], np.float32)}
    assert compare(wrong, expected) == (pytest.approx(1, rel=1e-3), False)


@pytest.mark.parametrize("error", [0, 0.5])
def test_a_rounded_fill_hides_no_error(error: float) -> None:
    """A mask that is added to scores keeps the roundings of other kernels."""
    scores = np.linspace(-3, 3, 32, dtype=np.float32)
    expected = scores + np.where(np.arange(32) < 16, -1e4, 0).astype(np.float32)
    made = expected + np.float32(error)
    made[:16] = np.nextafter(expected[:16], np.float32(0))
    assert (made[:16] != expected[:16]).all()
    worst, right = compare({"y": made}, {"y": expected})
    assert right is (error == 0)
    assert worst == pytest.approx(error / 3, abs=2e-7)


def test_large_values_that_torch_computes_are_the_scale() -> None:
    made, expected = ({"y": np.array([2e6, 1e6, one], np.float32)} for one in (30001, 30002))
    assert compare(made, expected) == (pytest.approx(5e-7), True)


def test_values_near_the_limit_of_the_dtype_are_judged_by_themselves() -> None:
    limit = float(np.finfo(np.float32).max)
    expected = {"y": np.array([limit, 3.0], np.float32)}
    for pair, right in (((limit * (1 - 1e-6), 3.0), True), ((limit * (1 - 1e-6), 3.1), False)):
        assert compare({"y": np.array(pair, np.float32)}, expected)[1] is right


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_are_equal(dtype: str) -> None:
    made, expected, same = ({"y": np.array([200, one]).astype(dtype)} for one in (0, 1, 1))
    assert compare(made, expected) == (float("inf"), False)
    assert compare(same, expected) == (0, True)
