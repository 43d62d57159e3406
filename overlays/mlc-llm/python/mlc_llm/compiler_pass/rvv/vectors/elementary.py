# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as arithmetic, beside those that attention kernels need too.

Those are in ``_vector_math.py`` of the TVM tree. Every function takes and gives a TIR expression.
Bounds are those that test_vector_math.py (tests/passes) holds them to, against float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn.llm._vector_math import (
    const,
    named,
    polynomial,
    reduced,
    rounded,
    sin_cos,
)

from ..half.dtypes import HALF, dtype_of
from ..tir import nodes_of

__all__ = ["exp", "sigmoid", "silu", "sin_cos"]

# exp: e^x = 2^n * e^r with |r| <= ln(2) / 2, ln(2) being in two parts. The polynomial is minimax
# in e^r: relative error 2^-23.2.
LN2_PARTS = [0.6931471824645996, -1.904654299957768e-09]
EXP_TERMS = [1, 1, 0.4999923149, 0.1666711465, 0.0418901572, 0.00831252025]
# Beyond these, the result is 0 (it would be below 2^-126) or infinite.
EXP_LEAST, EXP_MOST = -87.33, 88.7228
# The logistic function is taken at this for arguments whose negative is above it: 2^-124.4, the
# inverse of a number whose own first approximation below is normal.
LOGISTIC_MOST = 86.25
# e^-r by 120 * e^-r = -(r^5 + ...), from the constant term up: minimax, relative error 2^-23.1.
# As the highest coefficient is 1, no step overwrites r, of which a core would need a copy. The
# power of two comes with the exponent: nothing on the way overflows.
MONIC_TERMS = [-120, 120, -59.9990234375, 20.000333786, -5.0275254249]
MONIC_EXPONENT, MONIC_FACTOR = -7, -(2.0**7) / 120
# Bits less those of x > 0: 1/x with a relative error below 2^-3, which each step of Newton squares.
INVERSE_BITS, INVERSE_STEPS = 0x7EF311C3, 3


def exp(x: Any) -> Any:
    """e^x, with a relative error below 2^-22; 0 where the result is below 2^-126."""
    large, small = x > const(EXP_MOST), x < const(EXP_LEAST)
    value = _exp_between(x, EXP_LEAST, EXP_MOST)
    return tirx.Select(large, const(math.inf), tirx.Select(small, const(0), value))


def _exp_between(x: Any, least: float, most: float) -> Any:
    """e^x; e to the power of the nearer bound where x is outside of them."""
    # Selections, unlike min and max, let a NaN through.
    above, below = x > const(most), x < const(least)
    clamped = tirx.Select(above, const(most), tirx.Select(below, const(least), x))
    bits, whole = rounded(clamped * const(1 / math.log(2)))
    rest = reduced(clamped, whole, LN2_PARTS)
    exponent = tirx.shift_left(bits, tirx.const(23, "uint32"))
    power = tirx.reinterpret("uint32", polynomial(rest, EXP_TERMS))
    value = tirx.reinterpret("float32", power + exponent)
    # NaN if x is. `rest`, not `clamped`, which nothing else needs by now: a fused multiply-add
    # overwrites an operand, and a copy of one that is still needed costs a core more than it does.
    return tirx.op.fma(rest, const(0), value)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), with a relative error below 2^-21 for results from 2^-124 on.

    Those below are 2^-124.4. Divisions take cores ten times as long as what is here in their place,
    but TVM writes out what is named wherever it is used: where the argument is the conversion of a
    half, or a half comes of the result, it would not end within minutes.
    """
    if _of_halves(x):
        return named(x, _divided)
    return named(_divisor(x), _inverse)


def silu(x: Any) -> Any:
    """Give x / (1 + e^-x), as near as :func:`sigmoid`, in three quarters of the instructions.

    NaN comes of the product with x: bounds may be minima and maxima, which lose it.
    """
    if _of_halves(x):
        return x * sigmoid(x)
    return named(x, lambda value: value * named(_finite_divisor(value), _inverse))


def _finite_divisor(x: Any) -> Any:
    """1 + e^-x for |x| up to LOGISTIC_MOST, else that at the nearer bound, also if x is NaN."""

    def of_clamped(clamped: Any) -> Any:
        bits, whole = rounded(clamped * const(-1 / math.log(2)), MONIC_EXPONENT)
        rest = reduced(clamped, whole, [-part for part in LN2_PARTS])
        return named(rest, lambda value: by_rest(bits, value))

    def by_rest(bits: Any, rest: Any) -> Any:
        result = rest + const(MONIC_TERMS[-1])
        for term in reversed(MONIC_TERMS[:-1]):
            result = result * rest + const(term)
        exponent = tirx.shift_left(bits, tirx.const(23, "uint32"))
        value = tirx.reinterpret("float32", tirx.reinterpret("uint32", result) + exponent)
        return tirx.op.fma(value, const(MONIC_FACTOR), const(1))

    below = tirx.call_llvm_pure_intrin("float32", "llvm.minnum", x, const(LOGISTIC_MOST))
    both = tirx.call_llvm_pure_intrin("float32", "llvm.maxnum", below, const(-LOGISTIC_MOST))
    return named(both, of_clamped)


def _of_halves(x: Any) -> bool:
    return any(dtype_of(node) == HALF for node in nodes_of(x, object))


def _divided(x: Any) -> Any:
    return const(1) / _divisor(x)


def _divisor(x: Any) -> Any:
    """1 + e^-x, at most 2^125."""
    return const(1) + _exp_between(const(0) - x, EXP_LEAST, LOGISTIC_MOST)


def _inverse(x: Any) -> Any:
    """1 / x for x from 1 to 2^125.

    Goldschmidt's form of Newton's steps: with less = 1 - x * near, near + near * less is nearer,
    and what is less of it is the square of less. Nothing but these two is needed again.
    """

    def step(near: Any, count: int) -> Callable[[Any], Any]:
        def approach(less: Any) -> Any:
            nearer = tirx.op.fma(near, less, near)
            if count == 1:
                return nearer
            return named(nearer, lambda value: named(less * less, step(value, count - 1)))

        return approach

    def begin(near: Any) -> Any:
        less = tirx.op.fma(const(-1) * x, near, const(1))
        return named(less, step(near, INVERSE_STEPS))

    bits = tirx.const(INVERSE_BITS, "uint32") - tirx.reinterpret("uint32", x)
    return named(tirx.reinterpret("float32", bits), begin)
