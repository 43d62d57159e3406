# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Tiled attention over token trees for CPUs, under the names of the kernels it replaces.

The interface (names, parameters, meaning of every argument, state left for ``merge_state``) is that
of ``tree_attn_cpu`` and ``tree_attn_with_paged_kv_cache_cpu`` in ``tree_attn.py``; the loops are those
of ``_tiled_attention.py``, with the mask of trees: the last keys of a sequence are their nodes.
"""

from typing import Any

from tvm.script import tirx as T

from ._attention_masks import tree_mask
from ._kv_layouts import PagedKeys, RaggedKeys, match_integers, row_of_pages
from ._prefill_tiled_cpu import prefill_tile as tree_tile
from ._rope_tables import rope_table, table_macros
from ._tiled_attention import PrefillTile, attention_macro

__all__ = ["tree_attn_cpu", "tree_attn_with_paged_kv_cache_cpu", "tree_tile"]

PAGE_SIZE = 16


def tree_attn_cpu(h_kv: int, h_q: int, d: int, dtype: str, rope_scaling: dict[str, Any], *, tile: PrefillTile | None = None):
    """Return attention of token trees over their own nodes, given as ragged tensors.

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
    fill_frequencies, fill_table = table_macros(d, rope_scaling)
    attend = attention_macro(tile, h_kv, h_q, d, d, dtype)

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
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = match_integers(var_q_indptr, (num_indptr,))
        k = T.match_buffer(var_k, (total_kv_len, h_kv, d), dtype)
        v = T.match_buffer(var_v, (total_kv_len, h_kv, d), dtype)
        kv_indptr = match_integers(var_kv_indptr, (num_indptr,))
        q_rope_position = match_integers(var_q_rope_position, (total_len,))
        mn_indptr = match_integers(var_mn_indptr, (num_indptr,))
        order = match_integers(var_mask, (total_nodes, 2))
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        keys = T.meta_var(RaggedKeys(k, v, kv_indptr, total_kv_len))

        # One table, as keys are at the positions of the queries.
        frequencies = T.sblock_alloc_buffer((d,), "float32")
        table = T.meta_var(rope_table("", rotary_mode, total_len, d, dtype))
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            fill_table(table, 0, total_len, lambda row: q_rope_position[row], frequencies, rope_scale)
        mask = T.meta_var(tree_mask(keys, mn_indptr, order, num_indptr - 1, tile.q_tile, tile.kv_tile, h_q // h_kv))
        attend(q, q_indptr, num_indptr - 1, keys, mask, output, lse, sm_scale, rotary_mode, table, table)

    return batch_tree_attn


def tree_attn_with_paged_kv_cache_cpu(h_kv: int, h_q: int, d: int, dtype: str, rope_scaling: dict[str, Any], *, tile: PrefillTile | None = None, int8_pages: bool = False):  # noqa: ARG001
    """Return attention of token trees over a paged KV cache, whose last keys are the trees' nodes.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d: head dimension of Q, K and V, in elements.
        dtype: type of Q, the pages unless they are in int8, and the output; sums are float32.
        rope_scaling: not used: as in upstream's kernel, ``rotary_mode`` has to be 0.
        tile: tile sizes; None for the defaults of PrefillTile.
        int8_pages: the pages are in int8, see row_of_pages.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    tile = tile or PrefillTile()
    page_row, page_dtype = row_of_pages(d, dtype, int8_pages)
    attend = attention_macro(tile, h_kv, h_q, d, d, dtype)

    @T.prim_func(s_tir=True)
    def tree_attn_paged_kv_cpu(
        var_q: T.handle,  # [total_len, h_q, d]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, PAGE_SIZE, page_row]
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
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = match_integers(var_q_indptr, (batch_size + 1,))
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, PAGE_SIZE, page_row), page_dtype)
        page_indptr = match_integers(var_page_indptr, (batch_size + 1,))
        page_values = match_integers(var_page_values, (nnz_pages,))
        length_info = match_integers(var_length_info, (batch_size,))
        match_integers(var_k_rope_pos_offset, (batch_size,))
        match_integers(var_q_rope_position, (total_len,))
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        order_indptr = match_integers(tree_order_indptr_handle, (batch_size + 1,))
        order = match_integers(tree_order_handle, (total_nodes, 2))
        keys = T.meta_var(PagedKeys(pages, page_indptr, page_values, length_info, PAGE_SIZE))

        T.Assert(rotary_mode == T.int32(0), "Inline rotary mode is not supported in tree attention.")

        mask = T.meta_var(tree_mask(keys, order_indptr, order, batch_size, tile.q_tile, tile.kv_tile, h_q // h_kv))
        attend(q, q_indptr, batch_size, keys, mask, output, lse, sm_scale)

    return tree_attn_paged_kv_cpu
