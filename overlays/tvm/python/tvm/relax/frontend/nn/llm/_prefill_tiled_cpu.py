# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# A lambda in a loop of TVMScript is called before the loop's variable means anything else (B023).
# ruff: noqa: B023, E501
# fmt: off
"""Tiled prefill attention for CPUs, under the names of the kernels it replaces.

The interface (names, parameters, meaning of every argument, state left for ``merge_state``) is that
of ``_attention_prefill_cpu`` and ``_attention_prefill_ragged_cpu`` in ``_prefill_kernels.py``; the
loops are those of ``_tiled_attention.py``. RoPE's cosines and sines come from tables filled once per
call, as computing them costs many times what they are used for.
"""

from inspect import Parameter, signature
from typing import Any

from tvm.script import tirx as T
from tvm.target import Target

from . import _prefill_kernels
from ._attention_masks import causal_mask
from ._kv_layouts import PagedKeys, RaggedKeys, match_integers, row_of_pages
from ._rope_tables import rope_table, table_macros
from ._tiled_attention import PrefillTile, attention_macro
from ._vector_rows import register_bits

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
    return PrefillTile(kv_tile=32 if register_bits(target) >= 1024 else 16)


def _prefill_macro(tile: PrefillTile, h_kv: int, h_q: int, d_qk: int, d_v: int, dtype: str, rope_scaling: dict[str, Any], window: int = 0, in_place: bool = False):
    """Return the macro of a prefill kernel behind its parameters; arguments as for attention_macro and causal_mask."""
    fill_frequencies, fill_table = table_macros(d_qk, rope_scaling)
    attend = attention_macro(tile, h_kv, h_q, d_qk, d_v, dtype, in_place=in_place)

    @T.macro
    def prefill(q, q_indptr, keys, k_rope_pos_offset, q_rope_position, output, lse, causal, rotary_mode, rope_scale, rope_theta, sm_scale):
        # RoPE's factors depend on the position only, so once here, not for every head and tile.
        frequencies = T.sblock_alloc_buffer((d_qk,), "float32")
        q_table = T.meta_var(rope_table("q_", rotary_mode, q.shape[0], d_qk, dtype))
        k_table = T.meta_var(rope_table("k_", rotary_mode, keys.rows, d_qk, dtype))
        if rotary_mode == 1:
            fill_frequencies(frequencies, rope_theta)
            fill_table(q_table, 0, q.shape[0], lambda row: q_rope_position[row], frequencies, rope_scale)
            for b in T.serial(k_rope_pos_offset.shape[0]):
                kv_seq_begin, kv_len = keys.locate(b)
                fill_table(k_table, keys.row(kv_seq_begin, 0), kv_len, lambda row: k_rope_pos_offset[b] + row, frequencies, rope_scale)
        mask = T.meta_var(causal_mask(causal, tile.q_tile, tile.kv_tile, h_q // h_kv, window))
        attend(q, q_indptr, k_rope_pos_offset.shape[0], keys, mask, output, lse, sm_scale, rotary_mode, q_table, k_table)

    return prefill


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
    int8_pages: bool = False,
):
    """Return prefill attention over a paged KV cache.

    Args:
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d: head dimension of Q, K and V, in elements.
        dtype: type of Q, the pages unless they are in int8, and the output; sums are float32.
        sliding_window: whether length_info is [3, batch] (see PagedKeys).
        rope_scaling: how RoPE's frequencies are scaled, as in position_embedding.py.
        page_size: tokens of a page.
        sliding_window_size: with sliding_window and a causal mask, the tokens that a query sees,
            itself and those since the last key among them, as in the kernel of TVM 0.27; 0 for no
            such limit, as in those before. The default is upstream's.
        tile: tile sizes; None for the defaults of PrefillTile.
        int8_pages: the pages are in int8, see row_of_pages.

    Returns:
        The PrimFunc, with upstream's parameters in upstream's order.
    """
    window = sliding_window_size if sliding_window else 0
    page_row, page_dtype = row_of_pages(d, dtype, int8_pages)
    global_symbol = "batch_prefill_paged_kv_cpu"
    if sliding_window:
        global_symbol += "_sliding_window"
    prefill = _prefill_macro(tile or PrefillTile(), h_kv, h_q, d, d, dtype, rope_scaling, window)

    @T.prim_func(s_tir=True)
    def batch_prefill_paged_kv_cpu(
        var_q: T.handle,  # [total_len, h_q, d]
        var_q_indptr: T.handle,  # [batch_size + 1]
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, page_row]
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
        q = T.match_buffer(var_q, (total_len, h_q, d), dtype)
        q_indptr = match_integers(var_q_indptr, (batch_size + 1,))
        pages = T.match_buffer(var_pages, (max_num_pages, 2, h_kv, page_size, page_row), page_dtype)
        page_indptr = match_integers(var_page_indptr, (batch_size + 1,))
        page_values = match_integers(var_page_values, (nnz_pages,))
        length_info = match_integers(var_length_info, (3, batch_size) if sliding_window else (batch_size,))
        k_rope_pos_offset = match_integers(var_k_rope_pos_offset, (batch_size,))
        q_rope_position = match_integers(var_q_rope_position, (total_len,))
        output = T.match_buffer(var_output, (total_len, h_q, d), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        keys = T.meta_var(PagedKeys(pages, page_indptr, page_values, length_info, page_size, sliding_window))

        prefill(q, q_indptr, keys, k_rope_pos_offset, q_rope_position, output, lse, causal, rotary_mode, rope_scale, rope_theta, sm_scale)

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
    """Return prefill attention over ragged K and V: the first prefill of a sequence.

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
    # Whole tiles of keys that need neither RoPE nor a conversion are read where they lie.
    prefill = _prefill_macro(tile or PrefillTile(), h_kv, h_q, d_qk, d_v, dtype, rope_scaling, in_place=dtype == "float32")

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
        q = T.match_buffer(var_q, (total_len, h_q, d_qk), dtype)
        q_indptr = match_integers(var_q_indptr, (batch_size + 1,))
        k = T.match_buffer(var_k, (total_kv_len, h_kv, d_qk), dtype)
        v = T.match_buffer(var_v, (total_kv_len, h_kv, d_v), dtype)
        kv_indptr = match_integers(var_kv_indptr, (batch_size + 1,))
        q_rope_position = match_integers(var_q_rope_position, (total_len,))
        k_rope_pos_offset = match_integers(var_k_rope_pos_offset, (batch_size,))
        output = T.match_buffer(var_output, (total_len, h_q, d_v), dtype)
        lse = T.match_buffer(var_lse, (total_len, h_q), "float32")
        keys = T.meta_var(RaggedKeys(k, v, kv_indptr, total_kv_len))

        prefill(q, q_indptr, keys, k_rope_pos_offset, q_rope_position, output, lse, causal, rotary_mode, rope_scale, rope_theta, sm_scale)

    return batch_prefill_ragged_kv
