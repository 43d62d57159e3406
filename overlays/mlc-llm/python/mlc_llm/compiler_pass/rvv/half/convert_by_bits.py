# SPDX-License-Identifier: Apache-2.0
"""ConvertByBits: conversions of halves as arithmetic of integers.

Exact to the bit and good for vectors, where the target has no instruction for them.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn.llm._vector_math import named
from tvm.target import Target

from ..functions import Rewrite, function_pass
from ..tir import nodes_of
from .dtypes import HALF, SINGLE, as_type, dtype_of, lacks_conversions, where_halves, whole_dtype


@function_pass
def ConvertByBits(target: Target) -> Rewrite | None:
    """Pass that converts halves by integer arithmetic if the target has no such instructions.

    It raises RuntimeError if a function still computes in float16.
    """
    return where_halves(convert_by_bits) if lacks_conversions(target) else None


def convert_by_bits(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function that converts halves by integer arithmetic.

    Raises:
        RuntimeError: the function does more with halves than load, convert and store them.
    """

    def replace(node: Any) -> Any:
        if dtype_of(node) == SINGLE and dtype_of(node.value) == HALF:
            return widen(tirx.reinterpret(as_type("uint16", node), node.value))
        if dtype_of(node) == HALF and dtype_of(node.value) == SINGLE:
            return tirx.reinterpret(as_type(HALF, node), narrow(node.value))
        return None

    body = tirx.stmt_functor.ir_transform(func.body, None, replace, ["tirx.Cast"])
    if left := _computed_halves(body):
        raise RuntimeError(
            f"{name} computes in float16 ({left[0]}), for which the target has no instructions"
        )
    # No default schedule: vectors that one gathers of single halves come out wrong of LLVM, which
    # has no such type here. Loads of halves side by side, as VectorizeLoops makes them, are right.
    return func.with_body(body).with_attr("tirx.is_scheduled", True)


def _computed_halves(body: Any) -> list[Any]:
    """Return the float16 expressions that are neither loads nor reinterpreted bits."""
    return [
        node
        for node in nodes_of(body, object)
        if dtype_of(node) == HALF
        and not isinstance(node, tirx.BufferLoad)
        and getattr(getattr(node, "op", None), "name", "") != "tirx.reinterpret"
    ]


def _constant(value: float, dtype: str, like: Any) -> Any:
    """Return a constant with as many elements as another value."""
    scalar, lanes = tirx.const(value, dtype), whole_dtype(like).partition("x")[2]
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def widen(half: Any) -> Any:
    """Convert a half, given by its bits (uint16), to float32; exact for all values."""
    single, uint32 = as_type(SINGLE, half), as_type("uint32", half)

    def word(value: int) -> Any:
        return _constant(value, "uint32", half)

    def by_word(given: Any) -> Any:
        size = tirx.bitwise_and(given, word(0x7FFF))
        # The exponents differ by 112; a multiplication also normalises what is subnormal.
        scaled = tirx.reinterpret(single, tirx.shift_left(size, word(13)))
        bits = tirx.reinterpret(uint32, scaled * _constant(2.0**112, SINGLE, half))
        special = tirx.Select(size >= word(0x7C00), word(0x7F800000), word(0))
        sign = tirx.shift_left(tirx.bitwise_and(given, word(0x8000)), word(16))
        return tirx.reinterpret(single, tirx.bitwise_or(tirx.bitwise_or(bits, special), sign))

    return named(tirx.Cast(uint32, half), by_word)


def narrow(value: Any) -> Any:
    """Round a float32 to a half, as its bits (uint16): ties to even, NaN stays NaN."""
    single, uint32 = as_type(SINGLE, value), as_type("uint32", value)

    def word(number: int) -> Any:
        return _constant(number, "uint32", value)

    def by_bits(bits: Any) -> Any:
        size = tirx.bitwise_and(bits, word(0x7FFFFFFF))
        odd = tirx.bitwise_and(tirx.shift_right(bits, word(13)), word(1))
        # Below 2^31 + 2^13, so that nothing wraps; the exponents differ by 112.
        normal = tirx.shift_right(size + odd + word(0xFFF), word(13)) - word(112 << 10)
        # Added to 1/2, the last bit of a float32 weighs what a half's last subnormal bit does.
        lifted = tirx.reinterpret(single, size) + _constant(0.5, SINGLE, value)
        subnormal = tirx.reinterpret(uint32, lifted) - word(0x3F000000)
        finite = tirx.Select(size < word(0x38800000), subnormal, normal)
        special = tirx.Select(size > word(0x7F800000), word(0x7E00), word(0x7C00))
        whole = tirx.Select(size >= word(0x47800000), special, finite)
        sign = tirx.bitwise_and(tirx.shift_right(bits, word(16)), word(0x8000))
        return tirx.Cast(as_type("uint16", value), tirx.bitwise_or(whole, sign))

    return named(tirx.reinterpret(uint32, value), by_bits)
