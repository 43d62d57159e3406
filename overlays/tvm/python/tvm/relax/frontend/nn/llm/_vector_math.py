# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as arithmetic, which vectorises where a call of libm does not.

Every function takes and gives a TIR expression. Bounds are those that
tests/passes/rvv/test_vector_math.py holds them to, against float64.
"""

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

# Adding it rounds a float32 of magnitude below 2^22 to an integer, in the lowest bits.
ROUNDING = 1.5 * 2.0**23

# 2^f for f in [-1/2, 1/2], from the constant term up: Chebyshev interpolation of degree 6, with a
# relative error of 3e-9 before rounding.
EXP2_TERMS = [
    1,
    0.693147207,
    0.240226509,
    0.0555032723,
    0.00961805668,
    0.00134004282,
    0.000154614447,
]
# Arguments of exp2 below this give 0; above it 2^n is a normal number for every n which occurs.
EXP2_LEAST = -125.0

# log2(1 + f) / f for 1 + f in [sqrt(1/2), sqrt(2)], from the constant term up: least maximum of
# the relative error, 2^-25.1 before rounding.
LOG2_TERMS = [
    1.442695022,
    -0.721347332,
    0.480910629,
    -0.3607036769,
    0.2879162431,
    -0.2389448285,
    0.2157156169,
    -0.2072697282,
    0.1258369833,
]
# The bits of sqrt(1/2) as a float32.
SQRT_HALF_BITS = 0x3F3504F3

# sin and cos: a quarter turn in three parts, so that nothing is lost as whole ones are taken off.
# The polynomials are minimax: in sin (absolute error 2^-29.0) and cos (2^-34.1).
QUARTER_PARTS = [1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15]
SIN_TERMS = [1, -0.1666665065968, 0.0083319781214, -0.00019495567319959]
COS_TERMS = [1, -0.49999999725, 0.041666623298, -0.00138867629451, 2.43903687576e-05]


def const(value: float) -> Any:
    """Return a float32 constant."""
    return tirx.const(value, "float32")


def polynomial(x: Any, terms: list[float]) -> Any:
    """Return the polynomial with the given coefficients, constant term first.

    Its steps are fused where the target can, which LLVM sees to; elsewhere fma would be a call.
    """
    result = const(terms[-1])
    for term in reversed(terms[:-1]):
        result = result * x + const(term)
    return result


def rounded(x: Any, more: int = 0) -> tuple[Any, Any]:
    """Round x; return the integer plus `more` as uint32 modulo 2^22, and alone as float32."""
    bits = tirx.reinterpret("uint32", x + const(ROUNDING + more))
    # By way of the bits, as TVM would simplify x + c - c although that is not x in float32.
    return bits, tirx.reinterpret("float32", bits) - const(ROUNDING + more)


def reduced(x: Any, count: Any, parts: list[float]) -> Any:
    """Return x - count * (sum of parts), subtracted part by part."""
    for part in parts:
        x = tirx.op.fma(count, const(-part), x)
    return x


def exp2(x: Any) -> Any:
    """Return 2^x for x <= 0 with a relative error below 2^-22; 0 for x < -125."""
    bits, whole = rounded(x)
    fraction = x - whole
    power = polynomial(fraction, EXP2_TERMS)
    # The bits above the integer are shifted out; the rest is added to the exponent.
    exponent = tirx.shift_left(bits, tirx.const(23, "uint32"))
    scaled = tirx.reinterpret("float32", tirx.reinterpret("uint32", power) + exponent)
    return tirx.Select(x < const(EXP2_LEAST), const(0), scaled)


def log2(x: Any) -> Any:
    """Return log2 of a normal x > 0 with an error of at most 2^-22 * max(1, |log2 x|).

    NaN where x is infinite or NaN.
    """
    bits = tirx.reinterpret("int32", x)
    above = tirx.shift_right(bits - tirx.const(SQRT_HALF_BITS, "int32"), tirx.const(23, "int32"))

    def by_exponent(exponent: Any) -> Any:
        mantissa = bits - tirx.shift_left(exponent, tirx.const(23, "int32"))
        rest = tirx.reinterpret("float32", mantissa) - const(1)
        return named(rest, lambda r: r * polynomial(r, LOG2_TERMS) + exponent.astype("float32"))

    return tirx.op.fma(x, const(0), named(above, by_exponent))


def sin_cos(x: Any) -> tuple[Any, Any]:
    """Return sin(x) and cos(x) with an absolute error below 2^-22 for |x| up to 2^17."""
    return _turn(x, 0), _turn(x, 1)


def _turn(x: Any, quarters: int) -> Any:
    """Return sin(x + quarters * pi / 2)."""

    def by_quarter(bits: Any, rest: Any) -> Any:
        def by_square(square: Any) -> Any:
            sine, cosine = rest * polynomial(square, SIN_TERMS), polynomial(square, COS_TERMS)
            odd = tirx.bitwise_and(bits, tirx.const(1, "uint32")) != tirx.const(quarters, "uint32")
            value = tirx.Select(odd, cosine, sine)
            return _negated_if_second_bit(value, bits + tirx.const(quarters, "uint32"))

        return named(rest * rest, by_square)

    def reduce(angle: Any) -> Any:
        def by_bits(bits: Any) -> Any:
            whole = tirx.reinterpret("float32", bits) - const(ROUNDING)
            rest = reduced(angle, whole, QUARTER_PARTS)
            return named(rest, lambda value: by_quarter(bits, value))

        return named(rounded(angle * const(2 / math.pi))[0], by_bits)

    return named(x, reduce)


def named(value: Any, use: Callable[[Any], Any]) -> Any:
    """Return use(value) with value bound to a variable, so that it is computed once."""
    variable = tirx.Var("value", str(value.ty.dtype))
    return tirx.Let(variable, value, use(variable))


def _negated_if_second_bit(x: Any, bits: Any) -> Any:
    two, up = tirx.const(2, "uint32"), tirx.const(30, "uint32")
    sign = tirx.shift_left(tirx.bitwise_and(bits, two), up)
    return tirx.reinterpret("float32", tirx.bitwise_xor(tirx.reinterpret("uint32", x), sign))
