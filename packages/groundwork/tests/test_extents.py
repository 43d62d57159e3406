# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on a model's sizes."""

from __future__ import annotations

import pytest

from groundwork.extents import evaluate, names


@pytest.mark.parametrize(
    ("extent", "number"),
    [
        *((12, 12), ("12", 12), ("n*4", 28), ("(n + 1)//2*n", 28), ("n % 4 - 1", 2)),
        *(("min(n, 5)*2", 10), ("max(n, n*2, 3)", 14), ("((n*b)+min(n,3)-(n//2)%2)", 16)),
    ],
)
def test_extents_are_arithmetic(extent: int | str, number: int) -> None:
    assert evaluate(extent, {"n": 7, "b": 2}) == number
    assert names(extent) <= {"n", "b"}


@pytest.mark.parametrize(
    ("extent", "error", "message"),
    [
        ("q*2", KeyError, "q"),
        ("n.real", ValueError, "not integer arithmetic"),
        ("print(n)", ValueError, "not integer arithmetic"),
        ("min(n)", ValueError, "not integer arithmetic"),
        ("n" * 1001, ValueError, "1001 characters"),
        ("n//0", ZeroDivisionError, "zero"),
        ("n +", SyntaxError, "invalid"),
    ],
)
def test_extents_are_nothing_but_arithmetic(
    extent: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        evaluate(extent, {"n": 7})
