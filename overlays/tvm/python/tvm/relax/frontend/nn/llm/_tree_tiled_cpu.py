# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Tiled attention over token trees for CPUs, under the names of the kernels it replaces.

The interface (names, parameters, meaning of every argument, state left for ``merge_state``) is that
of ``tree_attn_cpu`` and ``tree_attn_with_paged_kv_cache_cpu`` in ``tree_attn.py``; the algorithm is
that of ``_prefill_tiled_cpu.py``, with another mask.

The last keys of a sequence are the nodes of its trees. A node has its place in the trees' pre-order
and the place behind its last descendant; a query, which is a node too, sees a node from whose place
on, and before whose end, its own place is. So for every key a range of places is written down once a
call (all places, for a key before the trees), and the mask of a tile is two comparisons in vectors.

A query that sees no key has output 0 and log-sum-exp -5e4, as in prefill attention.
"""

from typing import Any

from tvm.script import tirx as T

from ._kernel_common import _declare_length_info, _get_kv_chunk_len
from ._prefill_tiled_cpu import prefill_tile as tree_tile
from ._prefill_tiled_macros import (
    PrefillTile,
    lanes_of,
    product_macros,
    schedule_macros,
    softmax_macros,
    staging_macros,
)
from ._rope_tables import rope_macros

__all__ = ["tree_attn_cpu", "tree_attn_with_paged_kv_cache_cpu", "tree_tile"]

PAGE_SIZE = 16
# Range of places from which a key before the trees is seen: all of them, and that of a query which
# is no node, too.
FIRST_PLACE, BEHIND_LAST_PLACE = -1, 2**31 - 1
# Place of a query that is no node of a tree.
NO_NODE = -1


def _tree_macros(tile: PrefillTile, group_size: int) -> tuple:
    """Return note_key, which writes down from where a key is seen, and note_places, which does where the rows of a tile are."""
    q_tile = tile.q_tile

    @T.macro
    def note_key(first, behind, index, key, tree_begin, nodes, kv_len, order):
        # No read for a key before the tree, where there is no order.
        if key < kv_len - nodes:
            first[index] = FIRST_PLACE
            behind[index] = BEHIND_LAST_PLACE
        else:
            first[index] = order[tree_begin + key - (kv_len - nodes), 0]
            behind[index] = order[tree_begin + key - (kv_len - nodes), 1]

    @T.macro
    def note_places(place, row_begin, q_len, tree_begin, nodes, order):
        for i in T.serial(q_tile):
            node: T.let[T.int32] = (row_begin + i) // group_size + nodes - q_len
            if node >= 0 and node < nodes:
                place[i] = order[tree_begin + node, 0]
            else:
                place[i] = NO_NODE

    return note_key, note_places


def tree_attn_cpu(h_kv: int, h_q: int, d: int, dtype: str, rope_scaling: dict[str, Any], *, tile: PrefillTile | None = None):
    """Attention of trees over their own nodes, given as ragged tensors.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d: head dimension of Q, K and V, in elements.
        dtype: type of Q, K, V and the output; sums are float32.
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        tile: tile sizes; None for the defaults of PrefillTile.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    tile = tile or PrefillTile()
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    group_size = h_q // h_kv
    stage_q, stage_kv, clear_kv = staging_macros(tile, group_size, d, d, dtype)
    fill_frequencies, fill_rope = rope_macros(d, rope_scaling)
    compute_s, compute_o, _, _ = product_macros(tile, d, d)
    init_state, _, update_tree_softmax, store = softmax_macros(tile, group_size, d, dtype)
    list_tiles = schedule_macros(tile, group_size)
    note_key, note_places = _tree_macros(tile, group_size)

    @T.prim_func(s_tir=True)
    def batch_tree_attn(
        var_q: T.handle,  # [total_len, h_q, d]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_k: T.handle,  # [total_kv_len, h_kv, d]
        var_v: T.handle,  # [total_kv_len, h_kv, d]
        var_kv_indptr: T.handle,  # [batch_size + 1]
        var_q_rope_position: T.handle,  # [total_len], of keys as well
        var_mn_indptr: T.handle,  # [batch_size + 1], where a sequence's nodes begin in the order
        var_mask: T.handle,  # [nodes, 2], place of a node and place behind its last descendant
        var_output: T.handle,  # [total_len, h_q, d]
        var_lse: T.handle,  # [total_len, h_q]
        rotary_mode: T.int32,
        rope_scale: T.float32,
        rope_theta: T.float32,
        sm_scale: T.float32,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True})
        num_indptr = T.int32()  # batch_size + 1
        total_len = T.int32()
        total_kv_len = T.int32()
        total_nodes = T.int32()
        q_indptr_elem_offset = T.int32()
        kv_indptr_elem_offset = T.int32()
        q_rope_position_elem_offset = T.int32()
        mn_indptr_elem_offset = T.int32()
        mask_elem_offset = T.int32()
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (num_indptr,), "int32", elem_offset=q_indptr_elem_offset)
        k = T.match_buffer(var_k, (total_kv_len, h_kv, d), dtype)
        v = T.match_buffer(var_v, (total_kv_len, h_kv, d), dtype)
        kv_indptr = T.match_buffer(var_kv_indptr, (num_indptr,), "int32", elem_offset=kv_indptr_elem_offset)
        q_rope_position = T.match_buffer(var_q_rope_position, (total_len,), "int32", elem_offset=q_rope_position_elem_offset)
        mn_indptr = T.match_buffer(var_mn_indptr, (num_indptr,), "int32", elem_offset=mn_indptr_elem_offset)
        mask = T.match_buffer(var_mask, (total_nodes, 2), "int32", elem_offset=mask_elem_offset)
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")

        # The factors of RoPE, per position: of queries, and of keys, which are at the same positions.
        frequencies = T.sblock_alloc_buffer((d,), "float32")
        cos = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d), "float32")
        sin = T.sblock_alloc_buffer((T.if_then_else(rotary_mode == 1, total_len, 0), d), "float32")
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            for row in T.parallel(total_len):
                with T.sblock("rope"):
                    T.reads()
                    T.writes()
                    position = T.sblock_alloc_buffer((1,), "int32")
                    position[0] = q_rope_position[row]
                    fill_rope(cos, sin, row, position, frequencies, rope_scale)

        # A tile may reach behind the last key, where the ranges do not matter.
        first = T.sblock_alloc_buffer((total_kv_len + kv_tile,), "int32")
        behind = T.sblock_alloc_buffer((total_kv_len + kv_tile,), "int32")
        for b in T.serial(num_indptr - 1):
            for key in T.serial(kv_indptr[b + 1] - kv_indptr[b]):
                note_key(first, behind, kv_indptr[b] + key, key, mn_indptr[b], mn_indptr[b + 1] - mn_indptr[b], kv_indptr[b + 1] - kv_indptr[b], mask)
        tiles = T.sblock_alloc_buffer((T.ceildiv(total_len * group_size, q_tile) + num_indptr, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, num_indptr - 1)
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
                place = T.sblock_alloc_buffer((q_tile,), "int32")
                by: T.let[T.int32] = head_tile // num_tiles[0]
                b: T.let[T.int32] = tiles[head_tile % num_tiles[0], 0]
                row_begin: T.let[T.int32] = tiles[head_tile % num_tiles[0], 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                kv_seq_begin: T.let[T.int32] = kv_indptr[b]
                kv_len: T.let[T.int32] = kv_indptr[b + 1] - kv_seq_begin
                stage_q(q, Q_tile, cos, sin, seq_begin, row_begin, by, q_len, rotary_mode, sm_scale)
                init_state(O_tile, m_tile, d_lanes)
                note_places(place, row_begin, q_len, mn_indptr[b], mn_indptr[b + 1] - mn_indptr[b], mask)
                for kv_idx in T.serial(T.ceildiv(kv_len, kv_tile)):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    kv_row: T.let[T.int32] = kv_seq_begin + kv_begin
                    stage_kv(k, v, K_tile, V_tile, cos, sin, kv_row, by, num_keys, rotary_mode)
                    clear_kv(K_tile, V_tile, num_keys)
                    compute_s(Q_tile, K_tile, S_tile)
                    update_tree_softmax(S_tile, m_tile, m_new, d_lanes, scale, place, first, behind, kv_row, num_keys)
                    compute_o(S_tile, V_tile, O_tile, scale)
                store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, by, q_len)

    return batch_tree_attn


def tree_attn_with_paged_kv_cache_cpu(h_kv: int, h_q: int, d: int, dtype: str, rope_scaling: dict[str, Any], *, tile: PrefillTile | None = None):  # noqa: ARG001
    """Attention of trees over a paged KV cache, whose last keys are the trees' nodes.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d: head dimension of Q, K and V, in elements.
        dtype: type of Q, the pages and the output; sums are float32.
        rope_scaling: not used: as in upstream's kernel, ``rotary_mode`` has to be 0.
        tile: tile sizes; None for the defaults of PrefillTile.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    tile = tile or PrefillTile()
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    group_size = h_q // h_kv
    lanes = lanes_of(d)
    stage_q, _, clear_kv = staging_macros(tile, group_size, d, d, dtype)
    compute_s, compute_o, _, _ = product_macros(tile, d, d)
    init_state, _, update_tree_softmax, store = softmax_macros(tile, group_size, d, dtype)
    list_tiles = schedule_macros(tile, group_size)
    note_key, note_places = _tree_macros(tile, group_size)

    @T.prim_func(s_tir=True)
    def tree_attn_paged_kv_cpu(
        var_q: T.handle,  # [total_len, h_q, d]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, PAGE_SIZE, d]
        var_page_indptr: T.handle,  # [batch_size + 1]
        var_page_values: T.handle,  # [nnz_pages]
        var_length_info: T.handle,  # [batch_size], slots used in a sequence's last page
        var_k_rope_pos_offset: T.handle,  # [batch_size]
        var_q_rope_position: T.handle,  # [total_len]
        var_output: T.handle,  # [total_len, h_q, d]
        var_lse: T.handle,  # [total_len, h_q]
        rotary_mode: T.int32,
        rope_scale: T.float32,  # noqa: ARG001
        rope_theta: T.float32,  # noqa: ARG001
        sm_scale: T.float32,
        tree_order_indptr_handle: T.handle,  # [batch_size + 1]
        tree_order_handle: T.handle,  # [nodes, 2]
    ):
        T.func_attr({"global_symbol": "tree_attn_paged_kv_cpu", "tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True})
        batch_size = T.int32()
        total_len = T.int32()
        nnz_pages = T.int32()
        max_num_pages = T.int32()
        total_nodes = T.int32()
        q_indptr_elem_offset = T.int32()
        page_indptr_elem_offset = T.int32()
        page_values_elem_offset = T.int32()
        k_rope_pos_offset_elem_offset = T.int32()
        q_rope_position_elem_offset = T.int32()
        length_info_elem_offset = T.int32()
        tree_order_elem_offset = T.int32()
        tree_order_indptr_elem_offset = T.int32()
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (batch_size + 1,), "int32", elem_offset=q_indptr_elem_offset)
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, PAGE_SIZE, d), dtype)
        page_indptr = T.match_buffer(var_page_indptr, (batch_size + 1,), "int32", elem_offset=page_indptr_elem_offset)
        page_values = T.match_buffer(var_page_values, (nnz_pages,), "int32", elem_offset=page_values_elem_offset)
        T.match_buffer(var_k_rope_pos_offset, (batch_size,), "int32", elem_offset=k_rope_pos_offset_elem_offset)
        q_rope_position = T.match_buffer(var_q_rope_position, (total_len,), "int32", elem_offset=q_rope_position_elem_offset)  # noqa: F841
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        tree_order_indptr = T.match_buffer(tree_order_indptr_handle, (batch_size + 1,), "int32", elem_offset=tree_order_indptr_elem_offset)
        tree_order = T.match_buffer(tree_order_handle, (total_nodes, 2), "int32", elem_offset=tree_order_elem_offset)
        length_info = _declare_length_info(var_length_info, batch_size, False, length_info_elem_offset)

        T.Assert(rotary_mode == T.int32(0), "Inline rotary mode is not supported in tree attention.")

        # Rows are slots of the batch's pages; a tile may reach behind the last key.
        first = T.sblock_alloc_buffer((nnz_pages * PAGE_SIZE + kv_tile,), "int32")
        behind = T.sblock_alloc_buffer((nnz_pages * PAGE_SIZE + kv_tile,), "int32")
        for b in T.serial(batch_size):
            page_begin: T.let[T.int32] = page_indptr[b]
            num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
            kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, PAGE_SIZE, b, length_info, False), 0)
            for key in T.serial(kv_len):
                note_key(first, behind, page_begin * PAGE_SIZE + key, key, tree_order_indptr[b], tree_order_indptr[b + 1] - tree_order_indptr[b], kv_len, tree_order)
        tiles = T.sblock_alloc_buffer((T.ceildiv(total_len * group_size, q_tile) + batch_size, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, batch_size)
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
                place = T.sblock_alloc_buffer((q_tile,), "int32")
                no_table = T.sblock_alloc_buffer((1, d), "float32")
                by: T.let[T.int32] = head_tile // num_tiles[0]
                b: T.let[T.int32] = tiles[head_tile % num_tiles[0], 0]
                row_begin: T.let[T.int32] = tiles[head_tile % num_tiles[0], 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, PAGE_SIZE, b, length_info, False), 0)
                stage_q(q, Q_tile, no_table, no_table, seq_begin, row_begin, by, q_len, 0, sm_scale)
                init_state(O_tile, m_tile, d_lanes)
                note_places(place, row_begin, q_len, tree_order_indptr[b], tree_order_indptr[b + 1] - tree_order_indptr[b], tree_order)
                for kv_idx in T.serial(T.ceildiv(kv_len, kv_tile)):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    for j in T.serial(num_keys):
                        page: T.let[T.int32] = page_values[page_begin + (kv_begin + j) // PAGE_SIZE]
                        for ko in T.serial(d // lanes):
                            for ki in T.vectorized(lanes):
                                K_tile[j, ko * lanes + ki] = T.cast(pages[page, 0, by, (kv_begin + j) % PAGE_SIZE, ko * lanes + ki], "float32")
                                V_tile[j, ko * lanes + ki] = T.cast(pages[page, 1, by, (kv_begin + j) % PAGE_SIZE, ko * lanes + ki], "float32")
                    clear_kv(K_tile, V_tile, num_keys)
                    compute_s(Q_tile, K_tile, S_tile)
                    update_tree_softmax(S_tile, m_tile, m_new, d_lanes, scale, place, first, behind, page_begin * PAGE_SIZE + kv_begin, num_keys)
                    compute_o(S_tile, V_tile, O_tile, scale)
                store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, by, q_len)

    return tree_attn_paged_kv_cpu
