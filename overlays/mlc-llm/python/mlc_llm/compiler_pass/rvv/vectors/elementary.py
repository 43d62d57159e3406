# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as arithmetic, beside those that attention kernels need too.

Those are in ``_vector_math.py`` of the TVM tree. Every function takes and gives a TIR expression.
Bounds are those that test_vector_math.py (tests/passes) holds them to, against float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.relax.frontend.nn.llm._vector_math import (
    const,
    named,
    polynomial,
    reduced,
    rounded,
    sin_cos,
)
from tvm.target.intrin import register_intrin_lowering

from ..half.dtypes import HALF, dtype_of
from ..tir import nodes_of

__all__ = ["erf", "exp", "log1p", "sigmoid", "silu", "sin_cos", "tanh"]

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
# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2: the error of e^r - 1 is below 2^-26 of r.
EXPM1_TERMS = [0.5, 0.16666544973, 0.0416664034128, 0.00836639758199, 0.00139406498056]
# tanh is 1 in float32 from here on.
TANH_MOST = 9.1
# (2 atanh(s) / s - 2) / s^2 by s^2 for |s| <= 1/3: relative error 2^-33 of 2 atanh(s).
ATANH_TERMS = [0.66666674614, 0.39998948574, 0.28615212440, 0.21443885565, 0.24245256186]
# erf(x) / x by x^2 for |x| <= 1: relative error 2^-24.
ERF_TERMS = [
    1.1283791065216064,
    -0.37612220644950867,
    0.11279028654098511,
    -0.026664838194847107,
    0.004831977188587189,
    -0.0004899872001260519,
    -2.358541496505495e-05,
]
# e^(z^2) erfc(z) / t by t - 19/32 for t = 1 / (1 + z / 2) and z up to 10.2: relative error 2^-24.
# The middle of the range as origin keeps the rounding errors of high powers small.
TAIL_ORIGIN = 19 / 32
TAIL_TERMS = [
    0.5802313685417175,
    0.7952033281326294,
    0.5901355743408203,
    0.07390131801366806,
    -0.2065543532371521,
    -0.04303915426135063,
    0.11289568245410919,
    0.003538979683071375,
    -0.060229331254959106,
]
# Bits less those of x > 0: 1/x with a relative error below 2^-3, which each step of Newton squares.
INVERSE_BITS, INVERSE_STEPS = 0x7EF311C3, 3


def exp(x: Any) -> Any:
    """Return e^x with a relative error below 2^-22; 0 if the result is below 2^-126."""
    return _exp(x) if _of_halves(x) else named(x, _exp)


def _exp(x: Any) -> Any:
    large, small = x > const(EXP_MOST), x < const(EXP_LEAST)
    value = _exp_between(x, EXP_LEAST, EXP_MOST)
    return tirx.Select(large, const(math.inf), tirx.Select(small, const(0), value))


def _exp_between(x: Any, least: float, most: float) -> Any:
    """Return e^x with x clamped to [least, most]."""
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
    """Return 1 / (1 + e^-x) with a relative error below 2^-21 for results of at least 2^-124.

    Smaller results become 2^-124.4. Newton's steps replace the division, which takes cores ten
    times as long, unless the argument has halves: TVM would then repeat the steps for each use,
    and take minutes.
    """
    if _of_halves(x):
        return named(x, _divided)
    return named(_divisor(x), _inverse)


def silu(x: Any) -> Any:
    """Return x / (1 + e^-x), as precise as :func:`sigmoid`, with fewer instructions.

    NaN comes of the product with x: bounds may be minima and maxima, which lose it.
    """
    if _of_halves(x):
        return x * sigmoid(x)

    def product(value: Any) -> Any:
        result = value * named(_finite_divisor(value), _inverse)
        # The factor of the bound is not small beside the largest numbers.
        return tirx.Select(value < const(-LOGISTIC_MOST), const(0), result)

    return named(x, product)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent with a relative error below 2^-21."""

    def by_size(size: Any) -> Any:
        # A minimum would lose a NaN.
        near = tirx.Select(size > const(TANH_MOST), const(TANH_MOST), size)
        small = named(_expm1_between(const(-2) * near), lambda less: less / (less + const(2)))
        # A subnormal number has no square.
        return tirx.Select(size < const(1e-10), size, small)

    return named(x, lambda value: _with_sign(named(_size(value), by_size), value))


def log1p(x: Any) -> Any:
    """Return the logarithm of 1 + x with a relative error below 2^-21."""

    def by_quotient(s: Any) -> Any:
        return named(s * s, lambda q: tirx.op.fma(s * q, polynomial(q, ATANH_TERMS), s + s))

    def near_or_far(value: Any) -> Any:
        # Far from 0, the rounding of 1 + x changes its logarithm by little.
        is_near = _size(value) < const(0.5)
        near = named(tirx.Select(is_near, value, const(0)), lambda v: v / (v + const(2)))
        return tirx.Select(is_near, named(near, by_quotient), tirx.log(const(1) + value))

    return named(x, near_or_far)


def erf(x: Any) -> Any:
    """Return the error function with a relative error below 2^-21."""

    def by_size(size: Any) -> Any:
        ratio = const(1) / (const(1) + const(0.5) * size)
        scaled = named(ratio, lambda t: t * polynomial(t - const(TAIL_ORIGIN), TAIL_TERMS))
        return const(1) - scaled * exp(const(-1) * size * size)

    def near_or_far(value: Any) -> Any:
        near = value * named(value * value, lambda square: polynomial(square, ERF_TERMS))
        far = _with_sign(named(_size(value), by_size), value)
        return tirx.Select(_size(value) < const(1), near, far)

    return named(x, near_or_far)


def _expm1_between(x: Any) -> Any:
    """Return e^x - 1 for x in [-87, 0] with a relative error below 2^-22."""

    def of_named(value: Any) -> Any:
        bits, whole = rounded(value * const(1 / math.log(2)), 127)
        power = tirx.reinterpret("float32", tirx.shift_left(bits, tirx.const(23, "uint32")))
        rest = reduced(value, whole, LN2_PARTS)
        return named(power, lambda p: named(rest, lambda r: by_rest(p, r)))

    def by_rest(power: Any, rest: Any) -> Any:
        small = tirx.op.fma(rest * rest, polynomial(rest, EXPM1_TERMS), rest)
        return tirx.op.fma(power, small, power - const(1))

    return named(x, of_named)


def _size(x: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.fabs", x)


def _with_sign(size: Any, x: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.copysign", size, x)


def _finite_divisor(x: Any) -> Any:
    """Return 1 + e^-x with x clamped to [-LOGISTIC_MOST, LOGISTIC_MOST]; finite for NaN, too."""

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
    """Return 1 + e^-x, at most 2^125."""
    return const(1) + _exp_between(const(0) - x, EXP_LEAST, LOGISTIC_MOST)


def _inverse(x: Any) -> Any:
    """Return 1 / x for x in [1, 2^125].

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


# Intrinsic functions that vectors compute by arithmetic.
ELEMENTARY = {
    "tirx.erf": erf,
    "tirx.exp": exp,
    "tirx.log1p": log1p,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
}
# Functions of libm for scalars: TVM's own code for them is inaccurate near 0.
OF_SCALARS = {"tirx.erf": "erff", "tirx.log1p": "log1pf", "tirx.tanh": "tanhf"}


def _lowered(name: str, of_libm: str) -> Callable[[Any], Any]:
    """Return a lowering of scalars of 32 or 16 bits to a call of libm; TVM's own lowers others."""
    attributes = ("llvm.FLowerIntrinsic", "default.FLowerIntrinsic")
    own = next(filter(None, map(tvm.ir.Op.get(name).get_attr, attributes)))

    def lower(call: Any) -> Any:
        dtype = str(call.ty.dtype)
        if dtype not in ("float32", HALF):
            return own(call)
        value = call.args[0].astype("float32")
        return tirx.call_pure_extern("float32", of_libm, value).astype(dtype)

    return lower


for _name, _of_libm in OF_SCALARS.items():
    register_intrin_lowering(_name, "llvm", f=_lowered(_name, _of_libm), level=20)
