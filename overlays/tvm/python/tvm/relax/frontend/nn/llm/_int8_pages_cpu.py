# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Pages of a KV cache in int8 on CPUs: what writes them, and what copies out of them.

A row, the key or value of one token and one KV head, is d whole numbers of a byte, and behind them
the float32 that they are multiplied by: a 127th of the largest element. The attention kernels read
the rows as ``PagedKeys`` says.
"""

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ._kv_layouts import FACTOR_BYTES, factor_in, match_integers, row_of_pages
from ._vector_math import const, rounded
from ._vector_rows import columns, fill_row, lanes_of

# All but the sign of a float32. So the largest of a row is one of integers, and NaN is the largest.
MAGNITUDE = 0x7FFFFFFF
INT16_MOST = 2**15 - 1
# Rows whose largest element is not above this are zeros: 32767 divided by it has to be finite.
LEAST = 2.0**-100


def _element(x: Any, row: tuple, column: Any) -> Any:
    return T.cast(x[(*row, column)], "float32")


def largest_of(x, row: tuple, width: int, largest, most: int) -> tuple[Any, Any]:
    """Return the largest magnitude of a row of x, and `most` divided by it.

    Args:
        x: buffer of numbers.
        row: indices of the row there, all but the last.
        width: elements of the row.
        largest: int32, [lanes], which stays in registers.
        most: what the largest becomes, times the second result; 0 instead of that if it is tiny.
    """
    lanes = int(largest.shape[0])
    fill_row(largest, (), lanes, lambda _: tirx.const(0, "int32"))
    with columns(width, lanes) as (first, lane):
        bits = tirx.reinterpret("int32", _element(x, row, first + lane))
        T.buffer_store(largest, T.max(largest[lane], tirx.bitwise_and(bits, tirx.const(MAGNITUDE, "int32"))), [lane])
    bits = T.Bind(T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.smax", largest[T.ramp(0, 1, lanes)]))
    top = T.Bind(tirx.reinterpret("float32", bits))
    return top, T.Bind(T.if_then_else(top > const(LEAST), const(most) / top, const(0)))


def quantise_row(to, at: tuple, width: int, x, row: tuple, largest) -> Any:
    """Write a row of x, rounded, to the row `at` of a buffer; return what it is multiplied by.

    NaN or infinity in the row makes the factor NaN or infinite: nothing finite is read of the row.

    Args:
        to: buffer of int8 or int16.
        at: indices of the row there, all but the last.
        width: elements of the row.
        x: buffer of numbers.
        row: indices of the row there, likewise.
        largest: int32, [lanes], which stays in registers.
    """
    lanes, most = int(largest.shape[0]), tirx.max_value(to.dtype).value
    top, inverse = largest_of(x, row, width, largest, most)
    fill_row(to, at, width, lambda c: T.cast(rounded(_element(x, row, c) * inverse)[0], to.dtype), lanes=lanes)
    return top * const(1 / most)


def _keep_row(pages, at: tuple, x, row: tuple, largest) -> None:
    """Write a row of keys or values and its factor to the row `at` of the pages."""
    d = int(pages.shape[-1]) - FACTOR_BYTES
    factor = tirx.reinterpret("int8x4", quantise_row(pages, at, d, x, row, largest))
    T.buffer_store(pages, factor, [*at, T.ramp(d, 1, FACTOR_BYTES)])


def _append_int8_cpu(num_key_value_heads, head_dim, dtype, page_size: int = 16):
    """Return the function that appends keys and values of type `dtype` to pages in int8."""
    row, page_dtype = row_of_pages(head_dim, dtype, int8=True)
    lanes = lanes_of(head_dim)

    @T.prim_func(s_tir=True)
    def tir_kv_cache_transpose_append(
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, row]
        var_k_data: T.handle,  # [tokens, h_kv, d]
        var_v_data: T.handle,  # [tokens, h_kv, d]
        var_position_map: T.handle,  # [tokens], slots among those of all pages; -1 for none
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        tokens = T.int64()
        num_pages = T.int64()
        pages = T.match_buffer(var_pages, (num_pages, 2, num_key_value_heads, page_size, row), page_dtype)
        k_data = T.match_buffer(var_k_data, (tokens, num_key_value_heads, head_dim), dtype)
        v_data = T.match_buffer(var_v_data, (tokens, num_key_value_heads, head_dim), dtype)
        position_map = match_integers(var_position_map, (tokens,))
        for token in T.parallel(tokens):
            with T.sblock("append"):
                T.reads()
                T.writes()
                largest = T.sblock_alloc_buffer((lanes,), "int32")
                slot: T.let[T.int32] = position_map[token]
                if slot != T.int32(-1):
                    for h in T.serial(num_key_value_heads):
                        _keep_row(pages, (slot // page_size, 0, h, slot % page_size), k_data, (token, h), largest)
                        _keep_row(pages, (slot // page_size, 1, h, slot % page_size), v_data, (token, h), largest)

    return tir_kv_cache_transpose_append


def _debug_get_kv_int8_cpu(num_hidden_layers, num_key_value_heads, head_dim, dtype, page_size: int = 16):
    """Return the function that copies keys and values at given slots out of pages in int8."""
    row, page_dtype = row_of_pages(head_dim, dtype, int8=True)

    @T.prim_func(s_tir=True)
    def tir_kv_cache_debug_get_kv(
        var_pages: T.handle,  # [max_num_pages, 2, h_kv, page_size, row]
        var_position_map: T.handle,  # [tokens]
        var_k_data: T.handle,  # [layers, tokens, h_kv, d]
        var_v_data: T.handle,  # [layers, tokens, h_kv, d]
        layer_id: T.int64,
    ):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        tokens = T.int64()
        num_pages = T.int64()
        pages = T.match_buffer(var_pages, (num_pages, 2, num_key_value_heads, page_size, row), page_dtype)
        position_map = match_integers(var_position_map, (tokens,))
        k_data = T.match_buffer(var_k_data, (num_hidden_layers, tokens, num_key_value_heads, head_dim), dtype)
        v_data = T.match_buffer(var_v_data, (num_hidden_layers, tokens, num_key_value_heads, head_dim), dtype)
        for token, h, c in T.grid(tokens, num_key_value_heads, head_dim):
            slot: T.let[T.int32] = position_map[token]
            key = T.meta_var((slot // page_size, 0, h, slot % page_size))
            value = T.meta_var((slot // page_size, 1, h, slot % page_size))
            k_data[layer_id, token, h, c] = T.cast(_element(pages, key, c) * factor_in(pages, key), dtype)
            v_data[layer_id, token, h, c] = T.cast(_element(pages, value, c) * factor_in(pages, value), dtype)

    return tir_kv_cache_debug_get_kv
