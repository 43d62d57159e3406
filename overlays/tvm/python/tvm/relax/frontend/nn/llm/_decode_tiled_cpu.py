# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# A lambda in a loop of TVMScript is called before the loop's variable means anything else (B023).
# ruff: noqa: B023, E501
# fmt: off
"""Decode attention for CPUs in vectors, under the name of the kernel it replaces.

The interface (name, parameters, meaning of every argument, state left for ``merge_state``) is that
of ``_attention_decode_cpu`` in ``_decode_kernels.py``, which walks over keys one element at a time
and asks libm for four powers a key. Here a task is one KV head of one part of a sequence; it takes
keys in tiles, each key once for all query heads of the group: scores as dot products over vectors
of the head, one online-softmax step a tile (in base 2), values added up in vectors. Every loop keeps
its sums in registers and works on several, as in-order cores wait for the sum before.

With queries in halves the factors of all products are halves, and their sums float32: cores with
Zvfh have one instruction for both. Where a target has none, a pass makes everything float32.

Over pages in int8 all products are of integers, so that no key or value is converted to a float.
Queries are rounded to int16, and so are a tile's weights times the factors of its values: by a
65,534th of the largest at most, less than halves round. Sums have 32 bits.

Parts have the same number of keys whatever the threads, so that the result does not depend on them.
What a long sequence's parts give is merged once all tasks are done.

A sequence without keys has output 0 and log-sum-exp ``EMPTY_LSE``, as upstream's kernel gives.
"""

from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target

from ._int8_pages_cpu import INT16_MOST, largest_of, quantise_row
from ._kv_layouts import PagedKeys, match_integers, row_of_pages
from ._rope_tables import RopeTable, rope_macros, rope_table
from ._tiled_attention import EMPTY_LSE, LOG2_E, LOWEST_SCORE, row_max
from ._vector_math import exp2, log2, rounded
from ._vector_rows import MOST_LANES, copy_row, fill_row, lanes_of, register_bits, zero_row

# Keys of a tile: how many share one step of the softmax, whose instructions wait for each other.
KV_TILE = 32
# Keys of a block of a tile, which lies in one page.
BLOCK = 16
# Lanes of a sum of products: they are added up in order, and cores take a cycle and more for each.
SUM_LANES = 8
# Most sums of products that are computed at once, each in registers: its steps wait for each other.
MOST_SUMS = 12
# Most elements of the outputs that are worked out at once, in registers at a VLEN of 256 bits.
MOST_OUTPUTS = 96
# Values in a row whose loads may pass the sums of those before.
V_ABREAST = 4
# Keys of a part of a sequence, a task for each KV head.
PART = 256


def _power_of_two(most: int) -> int:
    """Return the largest power of 2 that is at most ``most``."""
    return 1 << most.bit_length() - 1


def _sum(x, row, lanes: int):
    """Return the sum of the first ``lanes`` elements of a row of float32 or uint32."""
    vector = x[row, T.ramp(0, 1, lanes)]
    if x.dtype == "uint32":
        return T.call_llvm_pure_intrin("uint32", "llvm.vector.reduce.add", vector)
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fadd", T.float32(0), vector)


def _elements(x, row: tuple, first, lanes: int):
    """Load ``lanes`` elements of a row, from column ``first`` on."""
    return x[(*row, T.ramp(first, 1, lanes))]


def _widened(vector, lanes: int, dtype: str, zero):
    """Convert a vector to a vector of ``dtype``; ``zero`` is 0, as below."""
    if str(vector.ty.dtype) == f"int8x{lanes}":
        # The addition of a scalar that widens, vwadd.vx, takes half the cycles of vsext.vf2.
        scalar = T.cast(T.cast(zero, "int8"), "int16")
        vector = T.cast(vector, f"int16x{lanes}") + T.Broadcast(scalar, lanes)
    return T.cast(vector, f"{dtype}x{lanes}")


def _store_scores(S_tile, first, queries, keys, rows: list, sums, zero) -> None:
    """Write the scores of some keys for all queries, each a dot product.

    Sums in uint32 continue those of the keys before, modulo 2^32, as setting them to zero costs as
    much as two blocks of products. So a score is the difference of two columns that are
    ``len(rows)`` apart.

    Args:
        S_tile: [group, KV_TILE], the scores; [group, len(rows) + KV_TILE] of uint32.
        first: the column of the first key.
        queries: [group, d].
        keys: the buffer of the keys.
        rows: the row of each key there, all indices but the last.
        sums: [len(rows) * group, lanes] of float32 or uint32, which stays in registers.
        zero: an int32 that is 0, which LLVM cannot see: else it unrolls the loop and spills.
    """
    (group, d), lanes, dtype = map(int, queries.shape), int(sums.shape[1]), str(sums.dtype)
    lane = T.ramp(0, 1, lanes)
    scores = [(g, j) for j in range(len(rows)) for g in range(group)]
    factor = "int32" if dtype == "uint32" else dtype

    def add(at: Any, *, begin: bool) -> None:
        # All loads before the products, which wait for them.
        wide = [T.Bind(_widened(_elements(keys, row, at, lanes), lanes, factor, zero)) for row in rows]
        for i, (g, j) in enumerate(scores):
            query = T.cast(_elements(queries, (g,), at, lanes), f"{factor}x{lanes}")
            product = T.cast(query * wide[j], f"{dtype}x{lanes}")
            T.buffer_store(sums, product if begin else sums[i, lane] + product, [i, lane])

    begin = dtype != "uint32"
    if begin:
        add(0, begin=True)
    with T.serial(int(begin), T.max(d // lanes + zero, 1)) as block:
        IRBuilder.name("block", block)
        add(block * lanes, begin=False)
    results = [T.Bind(_sum(sums, i, lanes)) for i in range(len(scores))]
    for (g, j), result in zip(scores, results, strict=True):
        T.buffer_store(S_tile, result, [g, first + j])


def _add_value(parts, weights, j, values, row, first, zero) -> None:
    """Add a part of a value vector, times each query's weight, to the outputs' partial sums.

    Args:
        parts: [group, lanes], which stays in registers.
        weights: [group, KV_TILE].
        j: the value's column of the weights.
        values: the buffer of the values.
        row: its row there, all indices but the last.
        first: the first column of the part.
        zero: as for _store_scores.
    """
    group, lanes = map(int, parts.shape)
    dtype = str(parts.dtype)
    lane = T.ramp(0, 1, lanes)
    value = T.Bind(_widened(_elements(values, row, first, lanes), lanes, dtype, zero))
    for g in range(group):
        weight = T.Broadcast(T.cast(weights[g, j], dtype), lanes)
        T.buffer_store(parts, parts[g, lane] + weight * value, [g, lane])


def _attention_decode_cpu(num_kv_heads, num_qo_heads, head_dim, qkv_dtype, sliding_window: bool, rope_scaling: dict[str, Any], page_size: int = 16, *, int8_pages: bool = False):
    """Return decode attention, one query per sequence, over a paged KV cache.

    Args:
        num_kv_heads: number of KV heads.
        num_qo_heads: number of query heads, a multiple of num_kv_heads.
        head_dim: head dimension of Q, K and V, in elements.
        qkv_dtype: type of Q, the pages unless they are in int8, and the output; sums are float32.
        sliding_window: whether length_info is [3, batch] (see PagedKeys).
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        page_size: tokens of a page.
        int8_pages: the pages are in int8, see row_of_pages.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    h_kv, h_q, d, dtype = num_kv_heads, num_qo_heads, head_dim, qkv_dtype
    page_row, page_dtype = row_of_pages(d, dtype, int8_pages)
    near = dtype if dtype == "float16" else "float32"
    group = h_q // h_kv
    # Sums of integers are added up in a tree, so that more lanes cost less.
    wider = 2 if int8_pages else 1
    most_sums, most_outputs = MOST_SUMS // wider, MOST_OUTPUTS
    if int8_pages and register_bits(Target.current(allow_none=True)) >= 256:
        most_sums, most_outputs = 8, 128  # each take 16 registers
    abreast = lanes_of(BLOCK, _power_of_two(max(1, most_sums // group)))  # keys
    lanes = lanes_of(d, wider * SUM_LANES)
    v_lanes = lanes_of(d, _power_of_two(max(SUM_LANES, most_outputs // group)))
    nothing = tirx.const(0, "int32" if int8_pages else "float32")
    in_vectors = {"lanes": lanes_of(d, MOST_LANES), "blocks": T.unroll}
    pages_of_part = max(1, PART // page_size)
    part_keys = pages_of_part * page_size
    fill_frequencies, fill_rope = rope_macros(d, rope_scaling)
    global_symbol = "batch_decode_paged_kv_cpu"
    if sliding_window:
        global_symbol += "_sliding_window"

    @T.prim_func(s_tir=True)
    def batch_decode_paged_kv(
        var_q: T.handle,  # [batch_size, h_q, d]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, page_row]
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
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True, "mlc_rvv.halves": True, "global_symbol": global_symbol})
        batch_size = T.int32()
        nnz_pages = T.int32()
        max_num_pages = T.int32()
        q = T.match_buffer(var_q, (batch_size, h_q, d), dtype)
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, page_size, page_row), page_dtype)
        page_indptr = match_integers(var_page_indptr, (batch_size + 1,))
        page_values = match_integers(var_page_values, (nnz_pages,))
        length_info = match_integers(var_length_info, (3, batch_size) if sliding_window else (batch_size,))
        k_rope_pos_offset = match_integers(var_k_rope_pos_offset, (batch_size,))
        q_rope_position = match_integers(var_q_rope_position, (batch_size,))
        output = T.match_buffer(var_output, (batch_size, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (batch_size, h_q), "float32")
        keys = T.meta_var(PagedKeys(pages, page_indptr, page_values, length_info, page_size, sliding_window))

        # RoPE: turned queries, and tables of the keys' factors as in prefill.
        frequencies = T.sblock_alloc_buffer((d,), "float32")
        q_turned = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, batch_size, 0), h_q, d), "float32")
        k_table = T.meta_var(rope_table("k_", rotary_mode, keys.rows, d, dtype))
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            for b in T.serial(batch_size):
                page_begin, kv_len = keys.locate(b)
                # The row behind the last key is the query's.
                for row in T.parallel(kv_len + 1):
                    with T.sblock("rope"):
                        T.reads()
                        T.writes()
                        # In memory, as in fill_table.
                        position = T.sblock_alloc_buffer((1,), "int32")
                        q_cos = T.sblock_alloc_buffer((1, d), "float32")
                        q_sin = T.sblock_alloc_buffer((1, d), "float32")
                        if row < kv_len:
                            position[0] = k_rope_pos_offset[b] + row
                            fill_rope(k_table.cos, k_table.sin, keys.row(page_begin, row), position, frequencies, rope_scale)
                        else:
                            position[0] = q_rope_position[b]
                            fill_rope(q_cos, q_sin, 0, position, frequencies, rope_scale)
                            for head in T.serial(h_q):
                                RopeTable(q_cos, q_sin, d, dtype).turn_row(q_turned, (b, head), q, (b, head), 0)

        # Sequence b's parts are the rows from page_indptr[b] // pages_of_part + b on, the last of
        # which may have no keys. Without a sequence of two parts there is nothing to merge.
        rows = T.meta_var(nnz_pages // pages_of_part + batch_size)
        kept = T.meta_var(T.if_then_else(nnz_pages > pages_of_part, rows, 0))
        O_parts = T.sblock_alloc_buffer((kept, h_q, d), "float32")
        lse_parts = T.sblock_alloc_buffer((kept, h_q), "float32")

        for task in T.parallel(rows * h_kv):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                sequence = T.sblock_alloc_buffer((1,), "int32")
                Q_tile = T.sblock_alloc_buffer((group, d), near)
                K_tile = T.sblock_alloc_buffer((KV_TILE, d), "float32")
                S_tile = T.sblock_alloc_buffer((group, KV_TILE), "float32")
                P_tile = T.sblock_alloc_buffer((group, KV_TILE), "int16" if int8_pages else near)
                sums = T.sblock_alloc_buffer((abreast * group, lanes), "float32")
                O_tile = T.sblock_alloc_buffer((group, d), "float32")
                O_part = T.sblock_alloc_buffer((group, v_lanes), "int32" if int8_pages else "float32")
                m_val = T.sblock_alloc_buffer((group,), "float32")
                m_new = T.sblock_alloc_buffer((group,), "float32")
                d_lanes = T.sblock_alloc_buffer((group, KV_TILE), "float32")
                scale = T.sblock_alloc_buffer((group,), "float32")
                # Over pages in int8.
                Q_whole = T.sblock_alloc_buffer((group, d), "int16")
                whole_sums = T.sblock_alloc_buffer((abreast * group, lanes), "uint32")
                S_whole = T.sblock_alloc_buffer((group, abreast + KV_TILE), "uint32")
                q_factors = T.sblock_alloc_buffer((group,), "float32")
                k_factors = T.sblock_alloc_buffer((KV_TILE,), "float32")
                v_factors = T.sblock_alloc_buffer((1, KV_TILE), "float32")
                v_factor = T.sblock_alloc_buffer((1,), "float32")
                largest_of_query = T.sblock_alloc_buffer((lanes_of(d),), "int32")
                largest_factor = T.sblock_alloc_buffer((KV_TILE,), "int32")

                row: T.let[T.int32] = task // h_kv
                h: T.let[T.int32] = task % h_kv
                for i in T.serial(batch_size):
                    if page_indptr[i] // pages_of_part + i <= row:
                        sequence[0] = i
                b: T.let[T.int32] = sequence[0]
                page_begin, kv_len = keys.locate(b)
                part_begin: T.let[T.int32] = (row - page_begin // pages_of_part - b) * part_keys
                part_len: T.let[T.int32] = T.max(T.min(kv_len - part_begin, part_keys), 0)
                # LLVM cannot see that this is 0.
                zero: T.let[T.int32] = T.min(page_begin, 0)

                for g in T.unroll(group):
                    m_val[g] = T.float32(LOWEST_SCORE)
                    zero_row(d_lanes, (g,), KV_TILE)
                    zero_row(O_tile, (g,), d, **in_vectors)
                    # Written outside of the loop, it shares no memory with `sums`: both stay in registers.
                    fill_row(O_part, (g,), v_lanes, lambda _: nothing)
                    if rotary_mode == 1:
                        copy_row(Q_tile, (g,), d, q_turned, (b, h * group + g), **in_vectors)
                    elif int8_pages:
                        q_factors[g] = quantise_row(Q_whole, (g,), d, q, (b, h * group + g), largest_of_query)
                    else:
                        copy_row(Q_tile, (g,), d, q, (b, h * group + g), **in_vectors)

                for tile in T.serial(T.ceildiv(part_len, KV_TILE)):
                    kv_begin: T.let[T.int32] = part_begin + tile * KV_TILE
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, KV_TILE)
                    kv_row = T.meta_var(keys.row(page_begin, kv_begin))
                    places = T.meta_var(lambda block: keys.places_of_tile(b, page_begin, h, kv_begin + block * BLOCK, BLOCK))
                    keys_of = T.meta_var(lambda block: T.min(num_keys - block * BLOCK, BLOCK))
                    if int8_pages:
                        # Once a row, not once an element of it.
                        zero_row(v_factors, (0,), KV_TILE)
                        for block in T.serial(T.ceildiv(num_keys, BLOCK)):
                            place = T.meta_var(places(block))
                            for j in T.serial(keys_of(block)):
                                k_factors[block * BLOCK + j] = keys.factor(place(j)[0])
                                v_factors[0, block * BLOCK + j] = keys.factor(place(j)[1])
                        top, inverse = largest_of(v_factors, (0,), KV_TILE, largest_factor, INT16_MOST)
                        v_factor[0] = top * T.float32(1 / INT16_MOST)
                        fill_row(v_factors, (0,), KV_TILE, lambda j: v_factors[0, j] * inverse)
                    if rotary_mode == 1:
                        for block in T.serial(T.ceildiv(num_keys, BLOCK)):
                            place = T.meta_var(places(block))
                            for j in T.serial(keys_of(block)):
                                key = T.meta_var(place(j)[0])
                                k_table.turn_row(K_tile, (block * BLOCK + j,), pages, key, kv_row + block * BLOCK + j, keys.factor(key))
                        # A loop of its own: LLVM 22 makes invalid code of rows that it keeps in
                        # registers, in vectors of other lengths than they are read in.
                        for some in T.serial(T.ceildiv(num_keys, abreast)):
                            # Those behind the last key are masked below.
                            _store_scores(S_tile, some * abreast, Q_tile, K_tile, [(some * abreast + j,) for j in range(abreast)], sums, zero)
                    else:
                        scores, queries, some_sums = T.meta_var((S_whole, Q_whole, whole_sums) if int8_pages else (S_tile, Q_tile, sums))
                        if int8_pages:
                            for i in T.unroll(abreast * group):
                                fill_row(whole_sums, (i,), lanes, lambda _: T.uint32(0))
                            for g in T.unroll(group):
                                for j in T.vectorized(abreast):
                                    S_whole[g, j] = T.uint32(0)
                        for block in T.serial(T.ceildiv(num_keys, BLOCK)):
                            count = T.meta_var(keys_of(block))
                            place = T.meta_var(places(block))
                            for some in T.serial(T.ceildiv(count, abreast)):
                                _store_scores(scores, block * BLOCK + some * abreast + (abreast if int8_pages else 0), queries, pages, [place(keys.readable(some * abreast + j, count, BLOCK))[0] for j in range(abreast)], some_sums, zero)
                        if int8_pages:
                            for g in T.unroll(group):
                                fill_row(S_tile, (g,), KV_TILE, lambda j: T.cast(T.cast(S_whole[g, abreast + j] - S_whole[g, j], "int32"), "float32") * (k_factors[j] * q_factors[g]))
                    for g in T.unroll(group):
                        for j in T.vectorized(KV_TILE):
                            S_tile[g, j] = T.Select(j < num_keys, S_tile[g, j] * (sm_scale * T.float32(LOG2_E)), T.float32(LOWEST_SCORE))
                        m_new[g] = row_max(S_tile, g, KV_TILE)
                    for g in T.vectorized(group):
                        m_new[g] = T.max(m_val[g], m_new[g])
                    for g in T.vectorized(group):
                        scale[g] = exp2(m_val[g] - m_new[g])
                    for g in T.vectorized(group):
                        m_val[g] = m_new[g]
                    for g in T.unroll(group):
                        for j in T.vectorized(KV_TILE):
                            S_tile[g, j] = exp2(S_tile[g, j] - m_new[g])
                        for j in T.vectorized(KV_TILE):
                            d_lanes[g, j] = d_lanes[g, j] * scale[g] + S_tile[g, j]
                    for g in T.unroll(group):
                        if int8_pages:
                            # No weight is above 1.
                            fill_row(P_tile, (g,), KV_TILE, lambda j: T.cast(rounded(S_tile[g, j] * v_factors[0, j])[0], "int16"))
                        else:
                            fill_row(P_tile, (g,), KV_TILE, lambda j: T.cast(S_tile[g, j], near))
                    for column in T.serial(T.max(d // v_lanes + zero, 1)):
                        for g in T.unroll(group):
                            for c in T.vectorized(v_lanes):
                                if int8_pages:
                                    O_part[g, c] = T.int32(0)
                                else:
                                    O_part[g, c] = O_tile[g, column * v_lanes + c] * scale[g]
                        for block in T.serial(T.ceildiv(num_keys, BLOCK)):
                            count = T.meta_var(keys_of(block))
                            place = T.meta_var(places(block))
                            for some in T.serial(count // V_ABREAST):
                                for one in T.unroll(V_ABREAST):
                                    _add_value(O_part, P_tile, block * BLOCK + some * V_ABREAST + one, pages, place(some * V_ABREAST + one)[1], column * v_lanes, zero)
                            for j in T.serial(count % V_ABREAST):
                                _add_value(O_part, P_tile, block * BLOCK + count - 1 - j, pages, place(count - 1 - j)[1], column * v_lanes, zero)
                        for g in T.unroll(group):
                            for c in T.vectorized(v_lanes):
                                if int8_pages:
                                    O_tile[g, column * v_lanes + c] = O_tile[g, column * v_lanes + c] * scale[g] + T.cast(O_part[g, c], "float32") * v_factor[0]
                                else:
                                    O_tile[g, column * v_lanes + c] = O_part[g, c]

                for g in T.unroll(group):
                    # The sum is 0 only without keys; else it has its maximum's 1 in it.
                    total: T.let[T.float32] = _sum(d_lanes, g, KV_TILE)
                    m_new[g] = T.if_then_else(kv_len > 0, m_val[g] + log2(total), T.float32(EMPTY_LSE))
                    scale[g] = T.if_then_else(kv_len > 0, T.float32(1) / total, T.float32(0))
                    if kv_len > part_keys:
                        lse_parts[row, h * group + g] = m_new[g]
                        fill_row(O_parts, (row, h * group + g), d, lambda c: O_tile[g, c] * scale[g], **in_vectors)
                    elif part_begin == 0:
                        lse[b, h * group + g] = m_new[g]
                        fill_row(output, (b, h * group + g), d, lambda c: T.cast(O_tile[g, c] * scale[g], dtype), **in_vectors)

        if nnz_pages > pages_of_part:
            for task in T.parallel(batch_size * h_q):
                with T.sblock("merge"):
                    T.reads()
                    T.writes()
                    O_sum = T.sblock_alloc_buffer((1, d), "float32")
                    top = T.sblock_alloc_buffer((1,), "float32")
                    weight = T.sblock_alloc_buffer((1,), "float32")
                    total = T.sblock_alloc_buffer((1,), "float32")

                    b: T.let[T.int32] = task // h_q
                    head: T.let[T.int32] = task % h_q
                    page_begin, kv_len = keys.locate(b)
                    first: T.let[T.int32] = page_begin // pages_of_part + b
                    if kv_len > part_keys:
                        top[0] = lse_parts[first, head]
                        for part in T.serial(1, T.ceildiv(kv_len, part_keys)):
                            top[0] = T.max(top[0], lse_parts[first + part, head])
                        total[0] = T.float32(0)
                        zero_row(O_sum, (0,), d, **in_vectors)
                        for part in T.serial(T.ceildiv(kv_len, part_keys)):
                            weight[0] = exp2(lse_parts[first + part, head] - top[0])
                            total[0] = total[0] + weight[0]
                            fill_row(O_sum, (0,), d, lambda c: O_sum[0, c] + weight[0] * O_parts[first + part, head, c], **in_vectors)
                        lse[b, head] = top[0] + log2(total[0])
                        weight[0] = T.float32(1) / total[0]
                        fill_row(output, (b, head), d, lambda c: T.cast(O_sum[0, c] * weight[0], dtype), **in_vectors)

    return batch_decode_paged_kv
