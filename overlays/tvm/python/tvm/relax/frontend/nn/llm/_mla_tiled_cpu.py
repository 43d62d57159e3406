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
``_tiled_attention.py``, and call the same micro-kernels.
"""

from typing import Any

from tvm import relax as rx
from tvm.script import tirx as T
from tvm.target import Target

from ._attention_masks import causal_mask
from ._kv_layouts import LatentKeys, match_integers
from ._merge_state_vector_cpu import _merge_state_inplace_cpu
from ._prefill_tiled_cpu import _attention_prefill_ragged_cpu, prefill_tile
from ._tiled_attention import PrefillTile, attention_macro
from ._vector_rows import lanes_of


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
    merge, merge_original = (_merge_state_inplace_cpu(dtype, num_heads=num_heads, head_dim=dim) for dim in (v_head_dim, original_v_head_dim))
    merges = [
        bb.add_func(merge, "tir_attention_merge_state_cpu"),
        # Two functions of a module cannot have one symbol.
        bb.add_func(merge_original.with_attr("global_symbol", "merge_state_inplace_mla_cpu"), "tir_attention_merge_state_mla_cpu"),
    ]
    return [
        rx.Tuple([rx.StringImm("tirx"), bb.add_func(ragged, "tir_attention_prefill_ragged_cpu")]),
        *(rx.Tuple([]) for _ in range(6)),
        rx.Tuple([rx.StringImm("tirx"), bb.add_func(paged, "tir_attention_prefill_mla_cpu")]),
        rx.Tuple(merges),
    ]


def _attention_prefill_mla_cpu(h_q: int, d_latent: int, d_rope: int, dtype: str, page_size: int = 16, *, tile: PrefillTile | None = None):
    """Return attention of one or more queries per sequence over a paged cache of latent vectors.

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
    d_qk = d_latent + d_rope
    # One head of keys, which is every query head's.
    attend = attention_macro(tile, 1, h_q, d_qk, d_latent, dtype)

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
        q = T.match_buffer(var_q, (total_len, h_q, d_qk), dtype)
        q_indptr = match_integers(var_q_indptr, (batch_size + 1,))
        pages = T.match_buffer(var_pages, (max_num_pages, page_size, d_qk), dtype)
        page_indptr = match_integers(var_page_indptr, (batch_size + 1,))
        page_values = match_integers(var_page_values, (nnz_pages,))
        length_info = match_integers(var_length_info, (batch_size,))
        output = T.match_buffer(var_output, (total_len, h_q, d_latent), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        # The cache has no sliding window over latent vectors.
        keys = T.meta_var(LatentKeys(pages, page_indptr, page_values, length_info, page_size))

        mask = T.meta_var(causal_mask(causal, tile.q_tile, tile.kv_tile, h_q))
        # The model has turned queries and keys itself.
        attend(q, q_indptr, batch_size, keys, mask, output, lse, sm_scale)

    return batch_prefill_paged_kv_mla_cpu


def _copy_single_page_mla_cpu(page_size: int, head_dim: int, dtype: str):
    """Return the function that copies the first slots of a page of latent vectors, for a fork.

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
