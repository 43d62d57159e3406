# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Tiled prefill attention for CPUs, under the names of the kernels it replaces.

Source: the algorithm is FlashAttention-2's forward pass (Dao, 2023, arXiv:2307.08691); the
interface (names, parameters, meaning of every argument, state left for ``merge_state``) is that of
``_attention_prefill_cpu`` and ``_attention_prefill_ragged_cpu`` in ``_prefill_kernels.py``.

One *row* is one pair (query position, query head of the group which shares a KV head), so that a
tile of ``q_tile`` rows uses every staged K and V row for the whole group. For each tile of rows the
kernel walks over tiles of ``kv_tile`` keys, up to the last key which any of its rows may see:

* ``Q_tile``, ``K_tile``, ``V_tile`` are float32 copies, with RoPE applied and, for Q, the softmax
  scale times log2(e), because the softmax is in base 2; RoPE's cosines and sines come from tables
  filled once per call, as computing them costs many times what they are used for;
* block ``S_gemm``: ``S_tile[i, j] += Q_tile[i, k] * K_tile[j, k]``;
* online softmax on ``S_tile``;
* block ``O_gemm``: ``O_tile[i, c] += S_tile[i, j] * V_tile[j, c]``, whose init rescales ``O_tile``.

Both products have constant bounds and are blocks of their own, so a later pass can tensorize them:
rows and keys beyond the end are staged as zeros, such keys are masked, such rows are not stored.

A row which sees no key at all (an empty KV part, or a causal mask with more queries than keys) has
output 0 and log-sum-exp -5e4, as in the decode kernel: ``merge_state`` then gives it the weight 0.
"""

from inspect import Parameter, signature
from typing import Any

from tvm.script import tirx as T
from tvm.target import Target

from . import _prefill_kernels
from ._kernel_common import (
    _declare_length_info,
    _get_kv_chunk_len,
    _get_seq_offset,
)
from ._prefill_tiled_macros import (
    PrefillTile,
    first_visible,
    lanes_of,
    num_visible,
    product_macros,
    schedule_macros,
    softmax_macros,
    staging_macros,
)
from ._rope_tables import rope_macros, rotated_high, rotated_low

# Upstream's own default where its kernel has the parameter, since TVM 0.27; before, no limit.
_WINDOW = signature(_prefill_kernels._attention_prefill_cpu).parameters.get("sliding_window_size", Parameter("sliding_window_size", Parameter.KEYWORD_ONLY, default=0)).default


def prefill_tile(target: Target, d: int) -> PrefillTile:  # noqa: ARG001
    """Choose the tile sizes for a target.

    A row of ``S_tile`` should fill a vector register, within the sizes for which micro-kernels
    exist (16 and 32 keys). Wider rows than that cost more for what a causal mask throws away.
    16 rows use what is staged of K and V twice as often as the 8 that the kernels take at a time;
    with 16 keys, a causal mask throws no more of them away.
    Measured on RVV, tensorized, causal, instructions of a whole prefill of the bench's model S with
    16 and with 32 keys, all / weighted by LMUL: at 256 bits and 128 tokens 11.89 / 44.04 M and 11.60
    / 44.25 M; at 512 bits and 64 tokens 3.36 / 11.21 M and 3.37 / 11.32 M, 128 tokens 7.11 / 22.81 M
    and 6.95 / 22.94 M. So 32 keys are for 1024 bits, where 16 do not fill a register.

    Args:
        target: the target which the kernel will be compiled for; read is its "vector-width", in
            bits, which is unset for targets of a vector length that LLVM knows by itself.
        d: head dimension of K, in elements; no tile size depends on it so far.

    Returns:
        The sizes to pass as ``tile`` to the kernels of this module.
    """
    lanes = int(target.attrs.get("vector-width", None) or 0) // 32
    return PrefillTile(kv_tile=32 if lanes >= 32 else 16)


def first_tile(kv_first, window: int):
    """Return the first tile of keys, which `kv_first` holds when there is a window."""
    return kv_first[0] if window else 0


def _attention_prefill_cpu(
    h_kv: int,
    h_q: int,
    d: int,
    dtype: str,
    sliding_window: bool,
    rope_scaling: dict[str, Any],
    page_size: int = 16,
    sliding_window_size: int = _WINDOW,
    *,
    tile: PrefillTile | None = None,
):
    """Prefill attention over a paged KV cache.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d: head dimension of Q, K and V, in elements.
        dtype: type of Q, the pages and the output; sums are float32.
        sliding_window: whether length_info is [3, batch] (see the comment at its declaration).
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        page_size: tokens of a page.
        sliding_window_size: with sliding_window and a causal mask, the tokens that a query sees,
            itself and those since the last key among them, as in the kernel of TVM 0.27; 0 for no
            such limit, as in those before. The default is upstream's.
        tile: tile sizes; None for the defaults of PrefillTile.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    tile = tile or PrefillTile()
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    window = sliding_window_size if sliding_window else 0
    group_size = h_q // h_kv
    lanes = lanes_of(d)
    global_symbol = "batch_prefill_paged_kv_cpu"
    if sliding_window:
        global_symbol += "_sliding_window"
    stage_q, _, clear_kv = staging_macros(tile, group_size, d, d, dtype)
    fill_frequencies, fill_rope = rope_macros(d, rope_scaling)
    half, half_lanes = d // 2, lanes_of(d // 2)
    compute_s, compute_o, _, _ = product_macros(tile, d, d)
    init_state, update_softmax, _, store = softmax_macros(tile, group_size, d, dtype, window)
    list_tiles = schedule_macros(tile, group_size)

    @T.prim_func(s_tir=True)
    def batch_prefill_paged_kv_cpu(
        var_q: T.handle,  # [total_len, h_q, d]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, d]
        var_page_indptr: T.handle,  # [batch_size + 1]
        var_page_values: T.handle,  # [nnz_pages]
        var_length_info: T.handle,  # [batch_size], or [3, batch_size] with a sliding window
        var_k_rope_pos_offset: T.handle,  # [batch_size]
        var_q_rope_position: T.handle,  # [total_len]
        var_output: T.handle,  # [total_len, h_q, d]
        var_lse: T.handle,  # [total_len, h_q]
        causal: T.int32,
        rotary_mode: T.int32,
        rope_scale: T.float32,
        rope_theta: T.float32,
        sm_scale: T.float32,
    ):
        T.func_attr({"global_symbol": global_symbol, "tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True})
        batch_size = T.int32()
        total_len = T.int32()
        nnz_pages = T.int32()
        max_num_pages = T.int32()
        q_indptr_elem_offset = T.int32()
        page_indptr_elem_offset = T.int32()
        page_values_elem_offset = T.int32()
        k_rope_pos_offset_elem_offset = T.int32()
        q_rope_position_elem_offset = T.int32()
        length_info_elem_offset = T.int32()
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (batch_size + 1,), "int32", elem_offset=q_indptr_elem_offset)
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, page_size, d), dtype)
        page_indptr = T.match_buffer(var_page_indptr, (batch_size + 1,), "int32", elem_offset=page_indptr_elem_offset)
        page_values = T.match_buffer(var_page_values, (nnz_pages,), "int32", elem_offset=page_values_elem_offset)
        k_rope_pos_offset = T.match_buffer(var_k_rope_pos_offset, (batch_size,), "int32", elem_offset=k_rope_pos_offset_elem_offset)
        q_rope_position = T.match_buffer(var_q_rope_position, (total_len,), "int32", elem_offset=q_rope_position_elem_offset)
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        # Without a sliding window: per sequence the slots used in its last page. With one, three
        # rows: these slots, the window's first slot, and the number of sink tokens kept before it.
        length_info = _declare_length_info(var_length_info, batch_size, sliding_window, length_info_elem_offset)

        # RoPE's factors depend on the position only, so once here, not for every head and tile. Rows
        # of keys are slots of the batch's pages: a sequence never has more keys than slots, as its
        # window begins behind its sink. Empty when RoPE is none of this kernel's business.
        frequencies = T.sblock_alloc_buffer((d,), "float32")
        q_cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d), "float32")
        q_sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d), "float32")
        k_cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, nnz_pages * page_size, 0), d), "float32")
        k_sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, nnz_pages * page_size, 0), d), "float32")
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            for row in T.parallel(total_len):
                with T.sblock("q_rope"):
                    T.reads()
                    T.writes()
                    position = T.sblock_alloc_buffer((1,), "int32")
                    position[0] = q_rope_position[row]
                    fill_rope(q_cos, q_sin, row, position, frequencies, rope_scale)

            for b in T.serial(batch_size):
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, page_size, b, length_info, sliding_window), 0)
                for row in T.parallel(kv_len):
                    with T.sblock("k_rope"):
                        T.reads()
                        T.writes()
                        # In memory, as LLVM code generation fails on float expressions of an index
                        # about whose range it knows something.
                        position = T.sblock_alloc_buffer((1,), "int32")
                        position[0] = k_rope_pos_offset[b] + row
                        fill_rope(k_cos, k_sin, page_begin * page_size + row, position, frequencies, rope_scale)

        tiles = T.sblock_alloc_buffer((T.ceildiv(total_len * group_size, q_tile) + batch_size, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, batch_size)
        # Heads are the slow index: a thread gets whole heads as far as it goes, and these cost
        # the same, whereas causal tiles cost the more the later they are.
        for head_tile in T.parallel(h_kv * num_tiles[0]):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                Q_tile = T.sblock_alloc_buffer((q_tile, d), "float32")
                K_tile = T.sblock_alloc_buffer((kv_tile, d), "float32")
                V_tile = T.sblock_alloc_buffer((kv_tile, d), "float32")
                S_tile = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                O_tile = T.sblock_alloc_buffer((q_tile, d), "float32")
                m_tile = T.sblock_alloc_buffer((q_tile,), "float32")
                m_new = T.sblock_alloc_buffer((q_tile,), "float32")
                scale = T.sblock_alloc_buffer((q_tile,), "float32")
                d_lanes = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                d_sum = T.sblock_alloc_buffer((1,), "float32")
                kv_first = T.sblock_alloc_buffer((1,), "int32")
                by: T.let[T.int32] = head_tile // num_tiles[0]
                b: T.let[T.int32] = tiles[head_tile % num_tiles[0], 0]
                row_begin: T.let[T.int32] = tiles[head_tile % num_tiles[0], 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, page_size, b, length_info, sliding_window), 0)
                stage_q(q, Q_tile, q_cos, q_sin, seq_begin, row_begin, by, q_len, rotary_mode, sm_scale)
                init_state(O_tile, m_tile, d_lanes)
                # In memory: TVM simplifies a loop that begins at such an expression for 20 s.
                if window > 0:
                    kv_first[0] = first_visible(causal, row_begin // group_size, kv_len, window) // kv_tile
                for kv_idx in T.serial(first_tile(kv_first, window), T.ceildiv(num_visible(causal, (row_begin + (q_tile - 1)) // group_size, q_len, kv_len, window), kv_tile)):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    if rotary_mode == 1:
                        for j in T.serial(num_keys):
                            slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                            page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                            for ko in T.serial(half // half_lanes):
                                for ki in T.vectorized(half_lanes):
                                    K_tile[j, ko * half_lanes + ki] = rotated_low(pages, (page, 0, by, slot % page_size), k_cos, k_sin, page_begin * page_size + kv_begin + j, ko * half_lanes + ki, half, dtype)
                                    K_tile[j, half + ko * half_lanes + ki] = rotated_high(pages, (page, 0, by, slot % page_size), k_cos, k_sin, page_begin * page_size + kv_begin + j, ko * half_lanes + ki, half, dtype)
                    else:
                        for j in T.serial(num_keys):
                            slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                            page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                            for ko in T.serial(d // lanes):
                                for ki in T.vectorized(lanes):
                                    K_tile[j, ko * lanes + ki] = T.cast(pages[page, 0, by, slot % page_size, ko * lanes + ki], "float32")
                    for j in T.serial(num_keys):
                        slot: T.let[T.int32] = _get_seq_offset(kv_begin + j, b, length_info, sliding_window)
                        page: T.let[T.int32] = page_values[page_begin + slot // page_size]
                        for co in T.serial(d // lanes):
                            for ci in T.vectorized(lanes):
                                V_tile[j, co * lanes + ci] = T.cast(pages[page, 1, by, slot % page_size, co * lanes + ci], "float32")
                    clear_kv(K_tile, V_tile, num_keys)
                    compute_s(Q_tile, K_tile, S_tile)
                    update_softmax(S_tile, m_tile, m_new, d_lanes, scale, row_begin, kv_begin, q_len, kv_len, causal)
                    compute_o(S_tile, V_tile, O_tile, scale)
                store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, by, q_len)

    return batch_prefill_paged_kv_cpu


def _attention_prefill_ragged_cpu(
    h_kv: int,
    h_q: int,
    d_qk: int,
    d_v: int,
    dtype: str,
    rope_scaling: dict[str, Any],
    *,
    tile: PrefillTile | None = None,
):
    """Prefill attention over K and V given as ragged tensors: the first prefill of a sequence.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d_qk: head dimension of Q and K, in elements.
        d_v: head dimension of V and the output, in elements.
        dtype: type of Q, K, V and the output; sums are float32.
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        tile: tile sizes; None for the defaults of PrefillTile.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    tile = tile or PrefillTile()
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    group_size = h_q // h_kv
    stage_q, stage_kv, clear_kv = staging_macros(tile, group_size, d_qk, d_v, dtype)
    fill_frequencies, fill_rope = rope_macros(d_qk, rope_scaling)
    compute_s, compute_o, compute_s_in_place, compute_o_in_place = product_macros(tile, d_qk, d_v)
    init_state, update_softmax, _, store = softmax_macros(tile, group_size, d_v, dtype)
    list_tiles = schedule_macros(tile, group_size)
    # Whole tiles of keys that need neither RoPE nor a conversion are read where they lie.
    in_place = dtype == "float32"

    @T.macro
    def attend_copies(k, v, Q_tile, K_tile, V_tile, S_tile, O_tile, m_tile, m_new, d_lanes, scale, k_cos, k_sin, kv_row, by, num_keys, row_begin, kv_begin, q_len, kv_len, causal, rotary_mode):
        stage_kv(k, v, K_tile, V_tile, k_cos, k_sin, kv_row, by, num_keys, rotary_mode)
        clear_kv(K_tile, V_tile, num_keys)
        compute_s(Q_tile, K_tile, S_tile)
        update_softmax(S_tile, m_tile, m_new, d_lanes, scale, row_begin, kv_begin, q_len, kv_len, causal)
        compute_o(S_tile, V_tile, O_tile, scale)

    @T.prim_func(s_tir=True)
    def batch_prefill_ragged_kv(
        var_q: T.handle,  # [total_len, h_q, d_qk]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_k: T.handle,  # [total_kv_len, h_kv, d_qk]
        var_v: T.handle,  # [total_kv_len, h_kv, d_v]
        var_kv_indptr: T.handle,  # [batch_size + 1]
        var_q_rope_position: T.handle,  # [total_len]
        var_k_rope_pos_offset: T.handle,  # [batch_size]
        var_output: T.handle,  # [total_len, h_q, d_v]
        var_lse: T.handle,  # [total_len, h_q]
        causal: T.int32,
        rotary_mode: T.int32,
        rope_scale: T.float32,
        rope_theta: T.float32,
        sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True})
        batch_size = T.int32()
        total_len = T.int32()
        total_kv_len = T.int32()
        q_indptr_elem_offset = T.int32()
        kv_indptr_elem_offset = T.int32()
        q_rope_position_elem_offset = T.int32()
        k_rope_pos_offset_elem_offset = T.int32()
        q = T.match_buffer(var_q, (total_len, h_q, d_qk), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (batch_size + 1,), "int32", elem_offset=q_indptr_elem_offset)
        k = T.match_buffer(var_k, (total_kv_len, h_kv, d_qk), dtype)
        v = T.match_buffer(var_v, (total_kv_len, h_kv, d_v), dtype)
        kv_indptr = T.match_buffer(var_kv_indptr, (batch_size + 1,), "int32", elem_offset=kv_indptr_elem_offset)
        q_rope_position = T.match_buffer(var_q_rope_position, (total_len,), "int32", elem_offset=q_rope_position_elem_offset)
        k_rope_pos_offset = T.match_buffer(var_k_rope_pos_offset, (batch_size,), "int32", elem_offset=k_rope_pos_offset_elem_offset)
        output = T.match_buffer(var_output, (total_len, h_q, d_v), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")

        # As in the paged kernel: the factors of RoPE, per position.
        frequencies = T.sblock_alloc_buffer((d_qk,), "float32")
        q_cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d_qk), "float32")
        q_sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d_qk), "float32")
        k_cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_kv_len, 0), d_qk), "float32")
        k_sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_kv_len, 0), d_qk), "float32")
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            for row in T.parallel(total_len):
                with T.sblock("q_rope"):
                    T.reads()
                    T.writes()
                    position = T.sblock_alloc_buffer((1,), "int32")
                    position[0] = q_rope_position[row]
                    fill_rope(q_cos, q_sin, row, position, frequencies, rope_scale)

            for b in T.serial(batch_size):
                kv_seq_begin: T.let[T.int32] = kv_indptr[b]
                kv_len: T.let[T.int32] = kv_indptr[b + 1] - kv_seq_begin
                for row in T.parallel(kv_len):
                    with T.sblock("k_rope"):
                        T.reads()
                        T.writes()
                        position = T.sblock_alloc_buffer((1,), "int32")
                        position[0] = k_rope_pos_offset[b] + row
                        fill_rope(k_cos, k_sin, kv_seq_begin + row, position, frequencies, rope_scale)

        tiles = T.sblock_alloc_buffer((T.ceildiv(total_len * group_size, q_tile) + batch_size, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, batch_size)
        # Heads are the slow index, as in the paged kernel.
        for head_tile in T.parallel(h_kv * num_tiles[0]):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                Q_tile = T.sblock_alloc_buffer((q_tile, d_qk), "float32")
                K_tile = T.sblock_alloc_buffer((kv_tile, d_qk), "float32")
                V_tile = T.sblock_alloc_buffer((kv_tile, d_v), "float32")
                S_tile = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                O_tile = T.sblock_alloc_buffer((q_tile, d_v), "float32")
                m_tile = T.sblock_alloc_buffer((q_tile,), "float32")
                m_new = T.sblock_alloc_buffer((q_tile,), "float32")
                scale = T.sblock_alloc_buffer((q_tile,), "float32")
                d_lanes = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                d_sum = T.sblock_alloc_buffer((1,), "float32")
                k_rows = T.decl_buffer((total_kv_len, h_kv * d_qk), dtype, data=k.data)
                v_rows = T.decl_buffer((total_kv_len, h_kv * d_v), dtype, data=v.data)
                by: T.let[T.int32] = head_tile // num_tiles[0]
                b: T.let[T.int32] = tiles[head_tile % num_tiles[0], 0]
                row_begin: T.let[T.int32] = tiles[head_tile % num_tiles[0], 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                kv_seq_begin: T.let[T.int32] = kv_indptr[b]
                kv_len: T.let[T.int32] = kv_indptr[b + 1] - kv_seq_begin
                stage_q(q, Q_tile, q_cos, q_sin, seq_begin, row_begin, by, q_len, rotary_mode, sm_scale)
                init_state(O_tile, m_tile, d_lanes)
                for kv_idx in T.serial(T.ceildiv(num_visible(causal, (row_begin + (q_tile - 1)) // group_size, q_len, kv_len), kv_tile)):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    kv_row: T.let[T.int32] = kv_seq_begin + kv_begin
                    if in_place:
                        if rotary_mode != 1 and num_keys == kv_tile:
                            compute_s_in_place(Q_tile, k_rows, S_tile, kv_row, by * d_qk)
                            update_softmax(S_tile, m_tile, m_new, d_lanes, scale, row_begin, kv_begin, q_len, kv_len, causal)
                            compute_o_in_place(S_tile, v_rows, O_tile, scale, kv_row, by * d_v)
                        else:
                            attend_copies(k, v, Q_tile, K_tile, V_tile, S_tile, O_tile, m_tile, m_new, d_lanes, scale, k_cos, k_sin, kv_row, by, num_keys, row_begin, kv_begin, q_len, kv_len, causal, rotary_mode)
                    else:
                        attend_copies(k, v, Q_tile, K_tile, V_tile, S_tile, O_tile, m_tile, m_new, d_lanes, scale, k_cos, k_sin, kv_row, by, num_keys, row_begin, kv_begin, q_len, kv_len, causal, rotary_mode)
                store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, by, q_len)

    return batch_prefill_ragged_kv
