# SPDX-License-Identifier: Apache-2.0
"""Functions of a number whose last digits are right also near zero and far from it.

Those of a float32 consist of arithmetic, and of exp, log1p, tanh and erf, which the passes compute
in vectors. Those of a float64 are the C library's.
`nox -s tests -- -m survey packages/pytorch-road/tests/survey/test_ulp.py` prints their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from tvm import te, tirx
from tvm.relax.frontend.nn.llm._vector_math import const, polynomial

# (e^x - 1 - x) / x^2 for x from -1 to 1.1, minimax: the error of e^x - 1 is below 2^-28.
EXPM1_TERMS = [
    *(0.5, 0.1666666716337204, 0.04166675731539726, 0.00833334680646658, 0.001388453645631671),
    *(0.00019831744430121034, 2.5425077183172107e-05, 2.8606173145817593e-06),
]
EXPM1_NEAR = (-1.0, 1.1)
# (sinh(x) / x - 1) / x^2 by x^2 for |x| <= 1, minimax: the error of sinh(x) is below 2^-31.
SINH_TERMS = [
    *(0.1666666716337204, 0.00833331048488617, 0.00019842895562760532, 2.7822131869469468e-06),
]
# e^(z^2) erfc(z) / t by t - 19/32 for t = 1 / (1 + z / 2) and z up to 10.2, minimax: 2^-24. The
# middle of the range as origin keeps the rounding errors of high powers small.
TAIL_ORIGIN = 19 / 32
TAIL_TERMS = [
    *(0.5802313685417175, 0.7952033281326294, 0.5901355743408203, 0.07390131801366806),
    *(-0.2065543532371521, -0.04303915426135063, 0.11289568245410919, 0.003538979683071375),
    -0.060229331254959106,
]
# From here on, the square of a number is lost beside a number.
FAR = 1e9


def each(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Return a function of a tensor that applies ``function`` to each element."""
    return lambda x: te.compute(x.shape, lambda *i: function(x(*i)), name=name)


def _of_float32(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of float32 that calls the C library's of the same name for float64."""

    @wraps(function)
    def of(x: Any) -> Any:
        if str(x.ty.dtype) == "float64":
            return tirx.call_pure_extern("float64", function.__name__, x)
        return function(x)

    return of


tanh = _of_float32(te.tanh)


@_of_float32
def expm1(x: Any) -> Any:
    """Compute e^x - 1."""
    is_near = tirx.all(x > const(EXPM1_NEAR[0]), x < const(EXPM1_NEAR[1]))
    near = x + x * x * polynomial(x, EXPM1_TERMS)
    return tirx.Select(is_near, near, te.exp(x) - const(1))


def silu(x: Any) -> Any:
    """Compute x / (1 + e^-x)."""
    return x * te.sigmoid(x)


@_of_float32
def sinh(x: Any) -> Any:
    """Compute the hyperbolic sine."""
    size, half = te.abs(x), _half_power(te.abs(x))
    near = x + x * x * x * polynomial(x * x, SINH_TERMS)
    far = with_sign(half - const(0.25) / half, x)
    return tirx.Select(size < const(1), near, far)


@_of_float32
def cosh(x: Any) -> Any:
    """Compute the hyperbolic cosine."""
    half = _half_power(te.abs(x))
    return half + const(0.25) / half


def _half_power(x: Any) -> Any:
    """Compute e^x / 2, which overflows later than e^x."""
    far = x > const(80)
    shifted = te.exp(tirx.Select(far, x - const(8), x))
    return shifted * tirx.Select(far, const(math.exp(8) / 2), const(0.5))


@_of_float32
def asinh(x: Any) -> Any:
    """Compute the inverse of :func:`sinh`."""
    size = te.abs(x)
    near = tirx.Select(size > const(FAR), const(0), size)
    square = near * near
    value = tirx.log1p(near + square / (const(1) + te.sqrt(square + const(1))))
    far = te.log(tirx.max(size, const(1))) + const(math.log(2))
    return with_sign(tirx.Select(size > const(FAR), far, value), x)


@_of_float32
def acosh(x: Any) -> Any:
    """Compute the inverse of :func:`cosh`."""
    over = x - const(1)
    # Two roots, as the product of two negative numbers has a root.
    value = tirx.log1p(over + te.sqrt(over) * te.sqrt(over + const(2)))
    return tirx.Select(x > const(FAR), te.log(x) + const(math.log(2)), value)


@_of_float32
def atanh(x: Any) -> Any:
    """Compute the inverse of :func:`tanh`."""
    size = te.abs(x)
    return with_sign(const(0.5) * tirx.log1p(const(2) * size / (const(1) - size)), x)


def elu(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """Compute scale * x for x > 0, else scale * alpha * (e^(input_scale * x) - 1)."""
    return tirx.Select(x > 0, scale * x, scale * alpha * expm1(x * input_scale))


@_of_float32
def erfc(x: Any) -> Any:
    """Compute 1 - erf(x)."""
    size = te.abs(x)
    tail = _scaled_tail(size) * _power_of_square(size, 1)
    return tirx.Select(x < const(0), const(2) - tail, tail)


def gelu(x: Any) -> Any:
    """Compute x times the normal distribution function, also far below zero."""
    if str(x.ty.dtype) == "float64":
        return x * 0.5 * erfc(x * -math.sqrt(0.5))
    size = te.abs(x)
    tail = const(0.5) * _scaled_tail(size * const(math.sqrt(0.5))) * _power_of_square(size, 0.5)
    part = x * tail
    # The product of infinity and 0 is NaN.
    return tirx.Select(x < const(0), part, tirx.Select(x > const(15), x, x - part))


def _scaled_tail(z: Any) -> Any:
    """Compute e^(z^2) erfc(z) for z >= 0."""
    t = const(1) / (const(1) + const(0.5) * z)
    return t * polynomial(t - const(TAIL_ORIGIN), TAIL_TERMS)


def _power_of_square(x: Any, factor: float) -> Any:
    """Compute e^(-factor * x^2), also of the part of the square that a float32 has no bits for."""
    # Beyond this, the result is 0 (it would be below 2^-126).
    is_far = x > const(math.sqrt(87 / factor))
    near = tirx.Select(is_far, const(0), x)
    square = near * near
    lost = tirx.op.fma(near, near, const(0) - square)
    power = te.exp(const(-factor) * square) * (const(1) - const(factor) * lost)
    return tirx.Select(is_far, const(0), power)


def remainder(x: Any, y: Any) -> Any:
    """Compute the remainder of a division rounded down, of any floats, as torch computes it."""
    rest = tirx.truncmod(x, y)
    return tirx.Select(_signs_differ(rest, y), rest + y, rest)


def floored_quotient(x: Any, y: Any) -> Any:
    """Compute the whole number of times that a float fits into a float, as torch computes it.

    A rounded quotient can be one more: 1 / 0.1 in float32 is 10, but ten times that 0.1 exceed 1.
    """
    rest = tirx.truncmod(x, y)
    quotient = (x - rest) / y
    quotient = tirx.Select(_signs_differ(rest, y), quotient - 1, quotient)
    below = te.floor(quotient)
    nearest = tirx.Select(quotient - below > 0.5, below + 1, below)
    return tirx.Select(y == 0, x / y, nearest)


def _signs_differ(x: Any, y: Any) -> Any:
    return tirx.any(tirx.all(x < 0, y > 0), tirx.all(x > 0, y < 0))


def with_sign(size: Any, x: Any) -> Any:
    """Return the float32 with the magnitude of ``size`` and the sign of ``x``."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.copysign", size, x)
