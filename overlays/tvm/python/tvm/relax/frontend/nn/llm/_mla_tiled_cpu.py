# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Multi-head latent attention for CPUs, over a paged KV cache of latent vectors.

``_attention_prefill_mla`` in ``_prefill_kernels.py`` and ``_copy_single_page_mla`` in
``_page_kernels.py`` bind their loops to the threads of a GPU; TVM has neither for CPUs. A slot of the
cache holds one vector of ``d_latent + d_rope`` elements, which is the key of all query heads, and whose
first ``d_latent`` elements are their value (DeepSeek-V2, arXiv 2405.04434, section 2.1). So the queries of
all heads of a token are neighbouring rows of one tile, in decoding as well. The loops are those of
``_prefill_tiled_cpu.py``, and call the same micro-kernels.
"""

from typing import Any

from tvm import relax as rx
from tvm.script import tirx as T
from tvm.target import Target

from ._kernel_common import _declare_length_info, _get_kv_chunk_len
from ._merge_state_vector_cpu import _merge_state_inplace_cpu
from ._prefill_tiled_cpu import _attention_prefill_ragged_cpu, prefill_tile
from ._prefill_tiled_macros import (
    PrefillTile,
    lanes_of,
    num_visible,
    product_macros,
    schedule_macros,
    softmax_macros,
    staging_macros,
)


def mla_functions_cpu(bb: rx.BlockBuilder, num_heads: int, qk_head_dim: int, v_head_dim: int, original_qk_head_dim: int, original_v_head_dim: int, dtype: str, rope_scaling: dict[str, Any], target: Target) -> list[rx.Tuple]:
    """Register the attention functions of a cache of latent vectors, as TIRPagedKVCache does for GPUs.

    Args:
        bb: the builder of the module that they are added to.
        num_heads: number of query heads.
        qk_head_dim: elements of a slot of the cache.
        v_head_dim: elements of a latent vector.
        original_qk_head_dim: elements of a head's key when it is taken out of the latent vector.
        original_v_head_dim: the same of its value.
        dtype: of the cache and the activations.
        rope_scaling: how RoPE's frequencies are scaled; the kernels are not asked to turn anything.
        target: the target that is compiled for.

    Returns:
        The arguments of ``vm.builtin.paged_attention_kv_cache_create`` from the ragged prefill's
        function to those that merge states; the six over heads of their own are empty.
    """
    ragged = _attention_prefill_ragged_cpu(num_heads, num_heads, original_qk_head_dim, original_v_head_dim, dtype, rope_scaling, tile=prefill_tile(target, original_qk_head_dim))
    paged = _attention_prefill_mla_cpu(num_heads, v_head_dim, qk_head_dim - v_head_dim, dtype, tile=prefill_tile(target, qk_head_dim))
    merges = [
        bb.add_func(_merge_state_inplace_cpu(dtype, num_heads=num_heads, head_dim=v_head_dim), "tir_attention_merge_state_cpu"),
        bb.add_func(_merge_state_inplace_cpu(dtype, num_heads=num_heads, head_dim=original_v_head_dim), "tir_attention_merge_state_mla_cpu"),
    ]
    return [
        rx.Tuple([rx.StringImm("tirx"), bb.add_func(ragged, "tir_attention_prefill_ragged_cpu")]),
        *(rx.Tuple([]) for _ in range(6)),
        rx.Tuple([rx.StringImm("tirx"), bb.add_func(paged, "tir_attention_prefill_mla_cpu")]),
        rx.Tuple(merges),
    ]


def _attention_prefill_mla_cpu(h_q: int, d_latent: int, d_rope: int, dtype: str, page_size: int = 16, *, tile: PrefillTile | None = None):
    """Attention of several queries a sequence, or of one each, over a paged cache of latent vectors.

    Args:
        h_q: number of query heads.
        d_latent: elements of a latent vector, and of the output.
        d_rope: elements of a key behind the latent vector, which RoPE has turned.
        dtype: type of Q, the pages and the output; sums are float32.
        page_size: tokens of a page.
        tile: tile sizes; None for the defaults of PrefillTile.

    Returns:
        The PrimFunc, with the parameters of ``_attention_prefill_mla``'s, in its order.
    """
    tile = tile or PrefillTile()
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    d_qk = d_latent + d_rope
    k_lanes, v_lanes = lanes_of(d_qk), lanes_of(d_latent)
    stage_q, _, clear_kv = staging_macros(tile, h_q, d_qk, d_latent, dtype)
    compute_s, compute_o, _, _ = product_macros(tile, d_qk, d_latent)
    init_state, update_softmax, _, store = softmax_macros(tile, h_q, d_latent, dtype)
    list_tiles = schedule_macros(tile, h_q)

    @T.prim_func(s_tir=True)
    def batch_prefill_paged_kv_mla_cpu(
        var_q: T.handle,  # [total_len, h_q, d_qk]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_pages: T.handle,  # [max_num_pages, page_size, d_qk]
        var_page_indptr: T.handle,  # [batch_size + 1]
        var_page_values: T.handle,  # [nnz_pages]
        var_length_info: T.handle,  # [batch_size]
        var_output: T.handle,  # [total_len, h_q, d_latent]
        var_lse: T.handle,  # [total_len, h_q]
        causal: T.int32,
        sm_scale: T.float32,
    ):
        T.func_attr({"global_symbol": "batch_prefill_paged_kv_mla_cpu", "tirx.is_scheduled": True, "tirx.noalias": True, "mlc_rvv.compact": True})
        batch_size = T.int32()
        total_len = T.int32()
        nnz_pages = T.int32()
        max_num_pages = T.int32()
        q_indptr_elem_offset = T.int32()
        page_indptr_elem_offset = T.int32()
        page_values_elem_offset = T.int32()
        length_info_elem_offset = T.int32()
        q = T.match_buffer(var_q, (total_len, h_q, d_qk), dtype)
        q_indptr = T.match_buffer(var_q_indptr, (batch_size + 1,), "int32", elem_offset=q_indptr_elem_offset)
        pages = T.match_buffer(var_pages, (max_num_pages, page_size, d_qk), dtype)
        page_indptr = T.match_buffer(var_page_indptr, (batch_size + 1,), "int32", elem_offset=page_indptr_elem_offset)
        page_values = T.match_buffer(var_page_values, (nnz_pages,), "int32", elem_offset=page_values_elem_offset)
        output = T.match_buffer(var_output, (total_len, h_q, d_latent), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        # Per sequence the slots used in its last page: the cache has no sliding window over latent vectors.
        length_info = _declare_length_info(var_length_info, batch_size, False, length_info_elem_offset)

        tiles = T.sblock_alloc_buffer((T.ceildiv(total_len * h_q, q_tile) + batch_size, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, batch_size)
        for task in T.parallel(num_tiles[0]):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                Q_tile = T.sblock_alloc_buffer((q_tile, d_qk), "float32")
                K_tile = T.sblock_alloc_buffer((kv_tile, d_qk), "float32")
                V_tile = T.sblock_alloc_buffer((kv_tile, d_latent), "float32")
                S_tile = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                O_tile = T.sblock_alloc_buffer((q_tile, d_latent), "float32")
                m_tile = T.sblock_alloc_buffer((q_tile,), "float32")
                m_new = T.sblock_alloc_buffer((q_tile,), "float32")
                scale = T.sblock_alloc_buffer((q_tile,), "float32")
                d_lanes = T.sblock_alloc_buffer((q_tile, kv_tile), "float32")
                d_sum = T.sblock_alloc_buffer((1,), "float32")
                b: T.let[T.int32] = tiles[task, 0]
                row_begin: T.let[T.int32] = tiles[task, 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                page_begin: T.let[T.int32] = page_indptr[b]
                num_pages: T.let[T.int32] = page_indptr[b + 1] - page_begin
                kv_len: T.let[T.int32] = T.if_then_else(num_pages > 0, _get_kv_chunk_len(num_pages, page_size, b, length_info, False), 0)
                # The model has turned queries and keys itself: the two tables of RoPE are not read.
                stage_q(q, Q_tile, Q_tile, Q_tile, seq_begin, row_begin, 0, q_len, 0, sm_scale)
                init_state(O_tile, m_tile, d_lanes)
                for kv_idx in T.serial(T.ceildiv(num_visible(causal, (row_begin + (q_tile - 1)) // h_q, q_len, kv_len), kv_tile)):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    for j in T.serial(num_keys):
                        page: T.let[T.int32] = page_values[page_begin + (kv_begin + j) // page_size]
                        slot: T.let[T.int32] = (kv_begin + j) % page_size
                        for ko in T.serial(d_qk // k_lanes):
                            for ki in T.vectorized(k_lanes):
                                K_tile[j, ko * k_lanes + ki] = T.cast(pages[page, slot, ko * k_lanes + ki], "float32")
                        for co in T.serial(d_latent // v_lanes):
                            for ci in T.vectorized(v_lanes):
                                V_tile[j, co * v_lanes + ci] = T.cast(pages[page, slot, co * v_lanes + ci], "float32")
                    clear_kv(K_tile, V_tile, num_keys)
                    compute_s(Q_tile, K_tile, S_tile)
                    update_softmax(S_tile, m_tile, m_new, d_lanes, scale, row_begin, kv_begin, q_len, kv_len, causal)
                    compute_o(S_tile, V_tile, O_tile, scale)
                store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, 0, q_len)

    return batch_prefill_paged_kv_mla_cpu


def _copy_single_page_mla_cpu(page_size: int, head_dim: int, dtype: str):
    """Copy the first slots of a page of latent vectors to another page, when a sequence is forked.

    Args:
        page_size: tokens of a page.
        head_dim: elements of a slot.
        dtype: of the pages.

    Returns:
        The PrimFunc, with the parameters of ``_copy_single_page_mla``'s, in its order.
    """
    lanes = lanes_of(head_dim)

    @T.prim_func(s_tir=True)
    def copy_single_page_mla_cpu(var_pages: T.handle, src_page_id: T.int64, tgt_page_id: T.int64, copy_length: T.int64):
        T.func_attr({"tirx.is_scheduled": True})
        num_pages = T.int32()
        pages = T.match_buffer(var_pages, (num_pages, page_size, head_dim), dtype)
        for slot in T.serial(copy_length):
            for ko in T.serial(head_dim // lanes):
                with T.sblock("copy"):
                    T.reads()
                    T.writes()
                    for ki in T.vectorized(lanes):
                        pages[tgt_page_id, slot, ko * lanes + ki] = pages[src_page_id, slot, ko * lanes + ki]

    return copy_single_page_mla_cpu
