# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32 as arithmetic, beside those that attention kernels need too.

Those are in ``_vector_math.py`` of the TVM tree. Every function takes and gives a TIR expression.
Bounds are those that test_vector_math.py (tests/passes) holds them to, against float64.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn.llm._vector_math import const, polynomial, reduced, rounded, sin_cos

__all__ = ["exp", "sigmoid", "sin_cos"]

# exp: e^x = 2^n * e^r with |r| <= ln(2) / 2, ln(2) being in two parts. The polynomial is minimax
# in e^r: relative error 2^-23.2.
LN2_PARTS = [0.6931471824645996, -1.904654299957768e-09]
EXP_TERMS = [1, 1, 0.4999923149, 0.1666711465, 0.0418901572, 0.00831252025]
# Beyond these, the result is 0 (it would be below 2^-126) or infinite.
EXP_LEAST, EXP_MOST = -87.33, 88.7228


def exp(x: Any) -> Any:
    """e^x, with a relative error below 2^-22; 0 where the result is below 2^-126."""
    large, small = x > const(EXP_MOST), x < const(EXP_LEAST)
    # Selections, unlike min and max, let a NaN through.
    clamped = tirx.Select(large, const(EXP_MOST), tirx.Select(small, const(EXP_LEAST), x))
    bits, whole = rounded(clamped * const(1 / math.log(2)))
    rest = reduced(clamped, whole, LN2_PARTS)
    exponent = tirx.shift_left(bits, tirx.const(23, "uint32"))
    power = tirx.reinterpret("uint32", polynomial(rest, EXP_TERMS))
    value = tirx.reinterpret("float32", power + exponent)
    value = tirx.op.fma(clamped, const(0), value)  # NaN if x is
    return tirx.Select(large, const(math.inf), tirx.Select(small, const(0), value))


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return const(1) / (const(1) + exp(const(0) - x))
