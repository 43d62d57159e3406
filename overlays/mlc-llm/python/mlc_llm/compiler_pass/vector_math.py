# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as arithmetic, which vectorizes where a call of libm does not.

Every function takes and gives a TIR expression. Bounds are those that
tests/passes/test_vector_math.py holds them to, against float64.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

# Adding it rounds a float32 of magnitude below 2^22 to an integer, in the lowest bits.
ROUNDING = 1.5 * 2.0**23

# exp: e^x = 2^n * e^r with |r| <= ln(2) / 2, ln(2) being in two parts. The polynomials are
# minimax: in e^r (relative error 2^-23.2), sin (absolute, 2^-29.0) and cos (2^-34.1).
LN2_PARTS = [0.6931471824645996, -1.904654299957768e-09]
EXP_TERMS = [1, 1, 0.4999923149, 0.1666711465, 0.0418901572, 0.00831252025]
# Beyond these, the result is 0 (it would be below 2^-126) or infinite.
EXP_LEAST, EXP_MOST = -87.33, 88.7228

# sin and cos: a quarter turn in three parts, so that nothing is lost as whole ones are taken off.
QUARTER_PARTS = [1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15]
SIN_TERMS = [1, -0.1666665065968, 0.0083319781214, -0.00019495567319959]
COS_TERMS = [1, -0.49999999725, 0.041666623298, -0.00138867629451, 2.43903687576e-05]


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(x: Any, terms: list[float]) -> Any:
    result = _float(terms[-1])
    for term in reversed(terms[:-1]):
        result = tirx.op.fma(result, x, _float(term))
    return result


def _rounded(x: Any) -> tuple[Any, Any]:
    """The integer next to x, as uint32 modulo 2^22 and as float32."""
    bits = tirx.reinterpret("uint32", x + _float(ROUNDING))
    # By way of the bits, as TVM would simplify x + c - c although that is not x in float32.
    return bits, tirx.reinterpret("float32", bits) - _float(ROUNDING)


def _reduced(x: Any, count: Any, parts: list[float]) -> Any:
    """X minus `count` times a number that is the sum of parts."""
    for part in parts:
        x = tirx.op.fma(count, _float(-part), x)
    return x


def exp(x: Any) -> Any:
    """e^x, with a relative error below 2^-22; 0 where the result is below 2^-126."""
    large, small = x > _float(EXP_MOST), x < _float(EXP_LEAST)
    # Selections, unlike min and max, let a NaN through.
    clamped = tirx.Select(large, _float(EXP_MOST), tirx.Select(small, _float(EXP_LEAST), x))
    bits, whole = _rounded(clamped * _float(1 / math.log(2)))
    rest = _reduced(clamped, whole, LN2_PARTS)
    exponent = tirx.shift_left(bits, tirx.const(23, "uint32"))
    power = tirx.reinterpret("uint32", _polynomial(rest, EXP_TERMS))
    value = tirx.reinterpret("float32", power + exponent)
    value = tirx.op.fma(clamped, _float(0), value)  # NaN if x is
    return tirx.Select(large, _float(math.inf), tirx.Select(small, _float(0), value))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return _float(1) / (_float(1) + exp(_float(0) - x))


def sin_cos(x: Any) -> tuple[Any, Any]:
    """sin(x) and cos(x) with an absolute error below 2^-22, for |x| up to 2^17."""
    bits, whole = _rounded(x * _float(2 / math.pi))
    rest = _reduced(x, whole, QUARTER_PARTS)
    square = rest * rest
    sine, cosine = rest * _polynomial(square, SIN_TERMS), _polynomial(square, COS_TERMS)
    odd = tirx.bitwise_and(bits, tirx.const(1, "uint32")) != tirx.const(0, "uint32")
    return (
        _negated_if_second_bit(tirx.Select(odd, cosine, sine), bits),
        _negated_if_second_bit(tirx.Select(odd, sine, cosine), bits + tirx.const(1, "uint32")),
    )


def _negated_if_second_bit(x: Any, bits: Any) -> Any:
    two, up = tirx.const(2, "uint32"), tirx.const(30, "uint32")
    sign = tirx.shift_left(tirx.bitwise_and(bits, two), up)
    return tirx.reinterpret("float32", tirx.bitwise_xor(tirx.reinterpret("uint32", x), sign))
