# SPDX-License-Identifier: Apache-2.0
# Made from overlays/tvm by tvmdialect; change it there.
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""RoPE inside attention kernels (``rotary_mode == 1``), by tables of cosines and sines.

Upstream's ``_rope`` in ``kv_cache.py`` asks libm for powers, sines and cosines for each element
that it rotates. An angle is a position times a frequency, whatever the kind of scaling: here
frequencies are worked out once a call, by libm, as the power's last bit counts at large positions;
cosines and sines once a position, as arithmetic in vectors.
"""

import math
from typing import Any

from tvm import tir
from tvm.script import tir as T

from ._vector_math import sin_cos
from .position_embedding import switch_rope_freq_func

# Lanes of the vector loops which evaluate sine and cosine.
MOST_LANES = 32
# Kinds of scaling whose frequencies are those of the first half of a head, twice.
REPEATING = (None, "llama3", "longrope")


def _frequency(d_idx, d: int, theta, rope_scaling: dict[str, Any]):
    """Return the angle by which dimension d_idx is turned at position 1."""
    cosine, _, bindings = switch_rope_freq_func(rope_scaling)(T.float32(1), d_idx, d, theta, "float32")
    value = _call(cosine, "tir.cos").args[0]
    for variable, meaning in bindings.items():
        value = tir.Let(variable, meaning, value)
    return value


def _factor(kind: int, angle, d: int, rope_scaling: dict[str, Any]):
    """Return the cosine (kind 0) or sine (kind 1) of an angle, times what the kind of scaling wants."""
    name = ("tir.cos", "tir.sin")[kind]
    factor = switch_rope_freq_func(rope_scaling)(T.float32(1), T.int32(0), d, T.float32(1), "float32")[kind]
    function = _call(factor, name)
    by_arithmetic = sin_cos(angle)[1 - kind]
    return tir.stmt_functor.ir_transform(
        tir.Evaluate(factor), None, lambda node: by_arithmetic if node.same_as(function) else None, ["tir.Call"]
    ).value


def _call(expression, name: str):
    found: list[Any] = []
    tir.stmt_functor.post_order_visit(
        expression, lambda node: found.append(node) if isinstance(node, tir.Call) and node.op.name == name else None
    )
    if len(found) != 1:
        raise ValueError(f"a factor of RoPE has {len(found)} calls of {name}, expected 1: {expression}")
    return found[0]


def rotated_low(x, row, cos, sin, position, d_idx, half: int, dtype: str):
    """Return dimension d_idx < half of a row of x after RoPE, rounded to dtype, as float32."""
    low, high = (T.cast(x[(*row, d_idx + at)], "float32") for at in (0, half))
    rotated = cos[position, d_idx] * low - sin[position, d_idx] * high
    return T.cast(T.cast(rotated, dtype), "float32")


def rotated_high(x, row, cos, sin, position, d_idx, half: int, dtype: str):
    """Return dimension d_idx + half of a row of x after RoPE, rounded to dtype, as float32."""
    low, high = (T.cast(x[(*row, d_idx + at)], "float32") for at in (0, half))
    rotated = cos[position, d_idx + half] * high + sin[position, d_idx + half] * low
    return T.cast(T.cast(rotated, dtype), "float32")


def rope_macros(d: int, rope_scaling: dict[str, Any]) -> tuple:
    """Return fill_frequencies, which fills a table of d frequencies, and fill_rope, which fills one row of the tables of cosines and sines from it."""
    lanes = math.gcd(d, MOST_LANES)
    repeats = rope_scaling.get("rope_type") in REPEATING and d % 2 == 0
    distinct = d // 2 if repeats else d

    @T.macro
    def fill_frequencies(frequencies, theta):
        for c in T.serial(distinct):
            frequencies[c] = _frequency(c, d, theta, rope_scaling)
        for c in T.serial(d - distinct):
            frequencies[distinct + c] = frequencies[c]

    @T.macro
    def fill_rope(cos, sin, row, position, frequencies, scale):
        for co in T.serial(d // lanes):
            for ci in T.vectorized(lanes):
                cos[row, co * lanes + ci] = _factor(0, T.cast(position[0], "float32") * scale * frequencies[co * lanes + ci], d, rope_scaling)
                sin[row, co * lanes + ci] = _factor(1, T.cast(position[0], "float32") * scale * frequencies[co * lanes + ci], d, rope_scaling)

    return fill_frequencies, fill_rope
