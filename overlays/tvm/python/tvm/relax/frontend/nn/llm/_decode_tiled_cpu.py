# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Decode attention for CPUs in vectors, under the name of the kernel it replaces.

The interface (name, parameters, meaning of every argument, state left for ``merge_state``) is that
of ``_attention_decode_cpu`` in ``_decode_kernels.py``, which walks over keys one element at a time
and asks libm for four powers a key. Here a task is one KV head of one sequence; it takes keys in
tiles, each key once for all query heads of the group: scores as dot products over vectors of the
head, one online-softmax step a tile (in base 2), values added up in vectors.

A sequence without keys has output 0 and log-sum-exp ``EMPTY_LSE``, as upstream's kernel gives.
"""

import math
from typing import Any

from tvm.script import tirx as T

from ._kernel_common import _declare_length_info, _get_kv_chunk_len, _get_seq_offset
from ._rope_tables import rope_macros, rotated_high, rotated_low
from ._vector_math import exp2, log2

LOG2_E = math.log2(math.e)
EMPTY_LSE = -5e4
# Score of a slot behind the last key, and start of the running maximum: below every score which
# occurs, and finite, so that the difference of two of them is not NaN.
LOWEST_SCORE = -1e30
# Keys of a tile: how many share one step of the softmax.
KV_TILE = 16
# Most elements of a vector: register groups of eight at a VLEN of 256 bits.
MOST_LANES = 64
# Most elements which are summed in order when a score's products are added up: cores take a cycle
# and more for each, so that few are left by adding up vectors.
MOST_SUMMED = 8


def _dot(left, left_row, right, right_row: tuple, d: int):
    """Return the dot product of a row of a matrix and a row of another buffer, of d elements."""
    lanes = math.gcd(d, MOST_SUMMED)
    total = None
    for at in range(0, d, lanes):
        part = T.ramp(at, 1, lanes)
        product = left[left_row, part] * T.cast(right[(*right_row, part)], f"float32x{lanes}")
        total = product if total is None else total + product
    return _sum(total)


def _sum(vector):
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fadd", T.float32(0), vector)


def _attention_decode_cpu(num_kv_heads, num_qo_heads, head_dim, qkv_dtype, sliding_window: bool, rope_scaling: dict[str, Any], page_size: int = 16):
    """Decode attention, one query a sequence, over a paged KV cache.

    Args:
        num_kv_heads: number of KV heads.
        num_qo_heads: number of query heads, a multiple of num_kv_heads.
        head_dim: head dimension of Q, K and V, in elements.
        qkv_dtype: type of Q, the pages and the output; sums are float32.
        sliding_window: whether length_info is [3, batch] (see the comment at its declaration).
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        page_size: tokens of a page.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    h_kv, h_q, d, dtype = num_kv_heads, num_qo_heads, head_dim, qkv_dtype
    group = h_q // h_kv
    # Queries stay in registers, and are written in the vectors in which they are read.
    lanes, q_lanes = math.gcd(d, MOST_LANES), math.gcd(d, MOST_SUMMED)
    half, half_lanes = d // 2, math.gcd(d // 2, MOST_LANES // 2)
    fill_frequencies, fill_rope = rope_macros(d, rope_scaling)
    global_symbol = "batch_decode_paged_kv_cpu"
    if sliding_window:
        global_symbol += "_sliding_window"

    @T.prim_func(s_tir=True)
    def batch_decode_paged_kv(
        var_q: T.handle,  # [batch_size, h_q, d]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, d]
        var_page_indptr: T.handle,  # [batch_size + 1]
        var_page_values: T.handle,  # [nnz_pages]
        var_length_info: T.handle,  # [batch_size], or [3, batch_size] with a sliding window
        var_k_rope_pos_offset: T.handle,  # [batch_size]
        var_q_rope_position: T.handle,  # [batch_size]
        var_output: T.handle,  # [batch_size, h_q, d]
        var_lse: T.handle,  # [batch_size, h_q]
        rotary_mode: T.int32,
        rope_scale: T.float32,
        rope_theta: T.float32,
        sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True, "global_symbol": global_symbol})
        batch_size = T.int32()
        nnz_pages = T.int32()
        max_num_pages = T.int32()
        page_indptr_elem_offset = T.int32()
        page_values_elem_offset = T.int32()
        k_rope_pos_offset_elem_offset = T.int32()
        q_rope_position_elem_offset = T.int32()
        length_info_elem_offset = T.int32()
        q = T.match_buffer(var_q, (batch_size, h_q, d), dtype)
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, page_size, d), dtype)
        page_indptr = T.match_buffer(var_page_indptr, (batch_size + 1,), "int32", elem_offset=page_indptr_elem_offset)
        page_values = T.match_buffer(var_page_values, (nnz_pages,), "int32", elem_offset=page_values_elem_offset)
        k_rope_pos_offset = T.match_buffer(var_k_rope_pos_offset, (batch_size,), "int32", elem_offset=k_rope_pos_offset_elem_offset)
        q_rope_position = T.match_buffer(var_q_rope_position, (batch_size,), "int32", elem_offset=q_rope_position_elem_offset)
        output = T.match_buffer(var_output, (batch_size, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (batch_size, h_q), "float32")
        # Without a sliding window: per sequence the slots used in its last page. With one, three
        # rows: these slots, the window's first slot, and the number of sink tokens kept before it.
        length_info = _declare_length_info(var_length_info, batch_size, sliding_window, length_info_elem_offset)

        # RoPE: turned queries, and tables of the keys' factors as in prefill, whose rows are slots of
        # the batch's pages.
        frequencies = T.sblock_alloc_buffer((d,), "float32")
        q_turned = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, batch_size, 0), h_q, d), "float32")
        k_cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, nnz_pages * page_size, 0), d), "float32")
        k_sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, nnz_pages * page_size, 0), d), "float32")
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            for b in T.serial(batch_size):
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, page_size, b, length_info, sliding_window), 0)
                # The row behind the last key is the query's.
                for row in T.parallel(kv_len + 1):
                    with T.sblock("rope"):
                        T.reads()
                        T.writes()
                        # In memory, as LLVM code generation fails on float expressions of an index
                        # about whose range it knows something.
                        position = T.sblock_alloc_buffer((1,), "int32")
                        q_cos = T.sblock_alloc_buffer((1, d), "float32")
                        q_sin = T.sblock_alloc_buffer((1, d), "float32")
                        if row < kv_len:
                            position[0] = k_rope_pos_offset[b] + row
                            fill_rope(k_cos, k_sin, page_begin * page_size + row, position, frequencies, rope_scale)
                        else:
                            position[0] = q_rope_position[b]
                            fill_rope(q_cos, q_sin, 0, position, frequencies, rope_scale)
                            for head in T.serial(h_q):
                                for co in T.serial(half // half_lanes):
                                    for ci in T.vectorized(half_lanes):
                                        q_turned[b, head, co * half_lanes + ci] = rotated_low(q, (b, head), q_cos, q_sin, 0, co * half_lanes + ci, half, dtype)
                                        q_turned[b, head, half + co * half_lanes + ci] = rotated_high(q, (b, head), q_cos, q_sin, 0, co * half_lanes + ci, half, dtype)

        for task in T.parallel(batch_size * h_kv):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                Q_tile = T.sblock_alloc_buffer((group, d), "float32")
                K_tile = T.sblock_alloc_buffer((KV_TILE, d), "float32")
                S_tile = T.sblock_alloc_buffer((group, KV_TILE), "float32")
                O_tile = T.sblock_alloc_buffer((group, d), "float32")
                m_val = T.sblock_alloc_buffer((group,), "float32")
                m_new = T.sblock_alloc_buffer((1,), "float32")
                d_val = T.sblock_alloc_buffer((group,), "float32")
                scale = T.sblock_alloc_buffer((1,), "float32")

                b: T.let[T.int32] = task // h_kv
                h: T.let[T.int32] = task % h_kv
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, page_size, b, length_info, sliding_window), 0)

                for g in T.unroll(group):
                    m_val[g] = T.float32(LOWEST_SCORE)
                    d_val[g] = T.float32(0)
                    for co in T.unroll(d // lanes):
                        for ci in T.vectorized(lanes):
                            O_tile[g, co * lanes + ci] = T.float32(0)
                    if rotary_mode == 1:
                        for co in T.unroll(d // q_lanes):
                            for ci in T.vectorized(q_lanes):
                                Q_tile[g, co * q_lanes + ci] = q_turned[b, h * group + g, co * q_lanes + ci] * (sm_scale * T.float32(LOG2_E))
                    else:
                        for co in T.unroll(d // q_lanes):
                            for ci in T.vectorized(q_lanes):
                                Q_tile[g, co * q_lanes + ci] = T.cast(q[b, h * group + g, co * q_lanes + ci], "float32") * (sm_scale * T.float32(LOG2_E))

                for tile in T.serial(T.ceildiv(kv_len, KV_TILE)):
                    kv_begin: T.let[T.int32] = tile * KV_TILE
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, KV_TILE)
                    if rotary_mode == 1:
                        for j in T.serial(num_keys):
                            slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                            page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                            for co in T.serial(half // half_lanes):
                                for ci in T.vectorized(half_lanes):
                                    K_tile[j, co * half_lanes + ci] = rotated_low(pages, (page, 0, h, slot % page_size), k_cos, k_sin, page_begin * page_size + kv_begin + j, co * half_lanes + ci, half, dtype)
                                    K_tile[j, half + co * half_lanes + ci] = rotated_high(pages, (page, 0, h, slot % page_size), k_cos, k_sin, page_begin * page_size + kv_begin + j, co * half_lanes + ci, half, dtype)
                        # A loop of its own: LLVM 22 makes invalid code of rows that it keeps in
                        # registers, in vectors of other lengths than they are read in.
                        for j in T.serial(num_keys):
                            for g in T.unroll(group):
                                S_tile[g, j] = _dot(Q_tile, g, K_tile, (j,), d)
                    else:
                        for j in T.serial(num_keys):
                            slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                            page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                            for g in T.unroll(group):
                                S_tile[g, j] = _dot(Q_tile, g, pages, (page, 0, h, slot % page_size), d)
                    for g in T.unroll(group):
                        for j in T.vectorized(KV_TILE):
                            S_tile[g, j] = T.Select(j < num_keys, S_tile[g, j], T.float32(LOWEST_SCORE))
                        m_new[0] = T.max(m_val[g], T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", S_tile[g, T.ramp(0, 1, KV_TILE)]))
                        scale[0] = exp2(m_val[g] - m_new[0])
                        m_val[g] = m_new[0]
                        for j in T.vectorized(KV_TILE):
                            S_tile[g, j] = exp2(S_tile[g, j] - m_new[0])
                        d_val[g] = d_val[g] * scale[0] + _sum(S_tile[g, T.ramp(0, 1, KV_TILE)])
                        for co in T.unroll(d // lanes):
                            for ci in T.vectorized(lanes):
                                O_tile[g, co * lanes + ci] = O_tile[g, co * lanes + ci] * scale[0]
                    for j in T.serial(num_keys):
                        slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                        page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                        for g in T.unroll(group):
                            for co in T.unroll(d // lanes):
                                for ci in T.vectorized(lanes):
                                    O_tile[g, co * lanes + ci] = O_tile[g, co * lanes + ci] + S_tile[g, j] * T.cast(pages[page, 1, h, slot % page_size, co * lanes + ci], "float32")

                for g in T.unroll(group):
                    # The sum is 0 only without keys; else it has its maximum's 1 in it.
                    lse[b, h * group + g] = T.if_then_else(kv_len > 0, m_val[g] + log2(d_val[g]), T.float32(EMPTY_LSE))
                    scale[0] = T.if_then_else(kv_len > 0, T.float32(1) / d_val[g], T.float32(0))
                    for co in T.unroll(d // lanes):
                        for ci in T.vectorized(lanes):
                            output[b, h * group + g, co * lanes + ci] = T.cast(O_tile[g, co * lanes + ci] * scale[0], dtype)

    return batch_decode_paged_kv
