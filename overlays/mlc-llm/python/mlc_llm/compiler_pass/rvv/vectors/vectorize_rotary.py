# SPDX-License-Identifier: Apache-2.0
"""VectorizeRotary: rotary embeddings with the angles of a position worked out once, in vectors.

TVM's ``fused_rope`` (``llama_rope_with_position_map``) asks libm for a power, a sine and a cosine
for every element of every head, although they depend on nothing but position and feature.
The pass works out the powers at compile time, sine and cosine once a position as arithmetic, and
rotates the heads in vectors. Scalings of the frequency are kept, whatever they are (llama3, yarn),
as long as they do not depend on the position nor, as longrope's, on a table at run time; pairs are
halves of a head apart, or neighbours (gptj).
"""

from __future__ import annotations

import logging
import math

import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from ..functions import Rewrite, function_pass
from ..half.dtypes import SINGLE, as_type
from ..targets import vectors_of
from ..tir import PatternMismatch, blocks_named
from .elementary import sin_cos
from .rotary_match import BLOCK, Rotary, read_rotary

logger = logging.getLogger(__name__)


@function_pass
def VectorizeRotary(target: Target) -> Rewrite | None:
    """Pass that rewrites rotary embeddings for CPUs with vectors."""
    vectors = vectors_of(target)

    def rewrite(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        if not blocks_named(func, BLOCK):
            return None
        try:
            return vectorize_rotary(func, vectors.most_with_math)
        except PatternMismatch as mismatch:
            logger.warning("%s is left as it is: %s", name, mismatch)
            return None

    return None if vectors is None else rewrite


def vectorize_rotary(func: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    """Rewrite fused_rope in vectors, with the angles of a position computed once.

    Args:
        func: TVM's fused_rope.
        most: elements that a vector may have.

    Raises:
        PatternMismatch: see :func:`read_rotary`.
    """
    rotary = read_rotary(func)
    attrs = {**dict(func.attrs or {}), "tirx.is_scheduled": True}
    made = make_rotary(rotary, math.gcd(rotary.rotary_dim // 2, most))
    *buffers, number = made.params
    # A model that calls the function itself has the number before the outputs.
    place = [isinstance(param.ty, tvm.ir.PrimType) for param in func.params].index(True)
    params = [*buffers[:place], number, *buffers[place:]]
    return tirx.PrimFunc(params, made.body, made.ret_type).with_attrs(attrs)


def make_rotary(rotary: Rotary, lanes: int) -> tirx.PrimFunc:
    """Return fused_rope in vectors of ``lanes`` lanes, a divisor of half the rotated features."""
    q_heads, kv_heads, dim, dtype = rotary.q_heads, rotary.kv_heads, rotary.dim, rotary.dtype
    half, heads = rotary.rotary_dim // 2, rotary.q_heads + 2 * rotary.kv_heads
    rest = dim - 2 * half
    # Where the angles of the second features of pairs begin.
    entries = len(rotary.table)
    second = entries - half
    copied = max(math.gcd(dim, rest or dim, 2 * lanes), 1)

    def fill(table):
        for index, entry in enumerate(rotary.table):
            T.buffer_store(table, T.float32(float(entry)), [index])

    def sin_at(position, entry):
        return sin_cos(rotary.angle(position, entry))[0]

    def single(value):
        return value if dtype == SINGLE else T.Cast(as_type(SINGLE, value), value)

    def stored(value):
        return value if dtype == SINGLE else T.Cast(as_type(dtype, value), value)

    def cos_at(position, entry):
        return sin_cos(rotary.angle(position, entry))[1]

    @T.macro
    def copy(x, out, s, h_in, h_out, first):
        for io in T.serial((dim - first) // copied):
            for i in T.vectorized(copied):
                out[s, h_out, first + io * copied + i] = x[s, h_in, first + io * copied + i]

    @T.macro
    def turn_neighbours(x, out, cos, sin, s, h_in, h_out):
        # No vectors of every other element in TVM: LLVM makes what it can of these.
        for i in T.serial(half):
            out[s, h_out, 2 * i] = stored(
                cos[i] * single(x[s, h_in, 2 * i]) - sin[i] * single(x[s, h_in, 2 * i + 1])
            )
            out[s, h_out, 2 * i + 1] = stored(
                cos[i] * single(x[s, h_in, 2 * i + 1]) + sin[i] * single(x[s, h_in, 2 * i])
            )
        copy(x, out, s, h_in, h_out, 2 * half)

    @T.macro
    def turn_halves(x, out, cos, sin, s, h_in, h_out):
        for io in T.serial(half // lanes):
            for i in T.vectorized(lanes):
                out[s, h_out, io * lanes + i] = stored(
                    cos[io * lanes + i] * single(x[s, h_in, io * lanes + i])
                    - sin[io * lanes + i] * single(x[s, h_in, half + io * lanes + i])
                )
                out[s, h_out, half + io * lanes + i] = stored(
                    cos[second + io * lanes + i] * single(x[s, h_in, half + io * lanes + i])
                    + sin[second + io * lanes + i] * single(x[s, h_in, io * lanes + i])
                )
        copy(x, out, s, h_in, h_out, 2 * half)

    turn = turn_neighbours if rotary.neighbours else turn_halves

    @T.prim_func(s_tir=True)
    def fused_rope(
        var_qkv: T.handle,
        var_position_map: T.handle,
        var_q: T.handle,
        var_k: T.handle,
        var_v: T.handle,
        apply_rope: T.int64,
    ):
        seq_len = T.int32()
        position_map_elem_offset = T.int32()
        qkv = T.match_buffer(var_qkv, (seq_len, heads, dim), dtype)
        q = T.match_buffer(var_q, (seq_len, q_heads, dim), dtype)
        k = T.match_buffer(var_k, (seq_len, kv_heads, dim), dtype)
        v = T.match_buffer(var_v, (seq_len, kv_heads, dim), dtype)
        position_map = T.match_buffer(
            var_position_map, (seq_len,), "int32", elem_offset=position_map_elem_offset
        )
        for s in T.parallel(seq_len):
            with T.sblock(BLOCK):
                T.reads()
                T.writes()
                table = T.sblock_alloc_buffer((entries,), "float32")
                cos = T.sblock_alloc_buffer((entries,), "float32")
                sin = T.sblock_alloc_buffer((entries,), "float32")
                if apply_rope > T.int64(0):
                    fill(table)
                    for io in T.serial(entries // lanes):
                        for i in T.vectorized(lanes):
                            sin[io * lanes + i] = sin_at(position_map[s], table[io * lanes + i])
                            cos[io * lanes + i] = cos_at(position_map[s], table[io * lanes + i])
                    for h in T.serial(q_heads):
                        turn(qkv, q, cos, sin, s, h, h)
                    for h in T.serial(kv_heads):
                        turn(qkv, k, cos, sin, s, q_heads + h, h)
                else:
                    for h in T.serial(q_heads):
                        copy(qkv, q, s, h, h, 0)
                    for h in T.serial(kv_heads):
                        copy(qkv, k, s, q_heads + h, h, 0)
                for h in T.serial(kv_heads):
                    copy(qkv, v, s, q_heads + kv_heads + h, h, 0)

    return fused_rope
