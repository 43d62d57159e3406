# SPDX-License-Identifier: Apache-2.0
"""Layouts of a batch's keys and values: in ragged tensors, in pages, as latent vectors in pages.

The three classes answer the same questions. Their methods are called while a kernel in TVMScript is
parsed; what they bind is bound where they are called. All buffers have the kernels' own types.

* ``k`` and ``v`` are the buffers that keys and values are read from.
* ``locate(b)`` gives where sequence b begins (``begin``), and how many keys it has.
* ``row(begin, key)`` gives the row of a key in a table of one row for each key of the batch, which
  has ``rows`` rows.
* ``factor(row)`` gives what all elements of a row of ``k`` or ``v`` have to be multiplied by, None
  for nothing; ``row`` is its indices, all but the last.
* ``places(b, begin, h_kv, kv_begin, kv_row)`` gives a function from j to the indices of the key and
  of the value that are the j-th of a tile, all but the last index; ``kv_begin`` is the tile's first
  key, ``kv_row`` its row.
"""

from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

from ._kernel_common import _get_kv_chunk_len, _get_seq_offset

# Bytes of the factor of a row in int8: a float32 behind the elements.
FACTOR_BYTES = 4
# The largest head dimension there: an int32 holds the sum of so many products of int16 and int8.
MOST_IN_INT8 = 512


def row_of_pages(d: int, dtype: str, int8: bool) -> tuple[int, str]:
    """Return number and type of the elements that a key or value of `d` numbers takes in a page.

    Args:
        d: head dimension.
        dtype: of the keys and values.
        int8: the pages hold whole numbers of a byte, and their factor behind them.

    Raises:
        ValueError: in int8, `d` is above 512 or not a multiple of the factor's 4 bytes.
    """
    if int8 and d % FACTOR_BYTES:
        raise ValueError(f"a KV cache in int8 needs a head dimension that 4 divides, got {d}")
    if int8 and d > MOST_IN_INT8:
        raise ValueError(f"a KV cache in int8 has heads of at most {MOST_IN_INT8}, got {d}")
    return (d + FACTOR_BYTES, "int8") if int8 else (d, dtype)


def factor_in(pages: Any, row: tuple) -> Any:
    """Return the float32 behind an int8 row of pages, by which its elements are multiplied."""
    size = pages.shape[-1]
    return tirx.reinterpret("float32", pages[(*row, T.ramp(size - FACTOR_BYTES, 1, FACTOR_BYTES))])


def match_integers(handle: Any, shape: tuple) -> Any:
    """Match a parameter to a buffer of int32 that may be a part of a larger one.

    Args:
        handle: the parameter: the buffer has its name, without "var_" if it begins so.
        shape: of the buffer.
    """
    name = handle.name.removeprefix("var_")
    offset = tirx.Var(f"{name}_elem_offset", "int32")
    return IRBuilder.name(name, T.match_buffer(handle, shape, "int32", elem_offset=offset))


class RaggedKeys:
    """Concatenated keys and values of all sequences: [rows, h_kv, d] each."""

    def __init__(self, k: Any, v: Any, indptr: Any, rows: Any) -> None:
        self.k, self.v, self.indptr, self.rows = k, v, indptr, rows

    def locate(self, b: Any) -> tuple:
        begin = T.Bind(self.indptr[b])
        return begin, T.Bind(self.indptr[b + 1] - begin)

    def row(self, begin: Any, key: Any) -> Any:
        return begin + key

    def places(self, b: Any, begin: Any, h_kv: Any, kv_begin: Any, kv_row: Any) -> Any:  # noqa: ARG002
        return lambda j: ((kv_row + j, h_kv),) * 2

    def factor(self, row: tuple) -> None:  # noqa: ARG002
        return None

    def matrices(self) -> list[Any]:
        """Return views of the same memory as matrices [rows, h_kv * d]."""

        def matrix(x: Any) -> Any:
            return T.decl_buffer((self.rows, x.shape[1] * x.shape[2]), x.dtype, data=x.data)

        return [matrix(self.k), matrix(self.v)]


class PagedKeys:
    """A paged KV cache, whose pages are [max_num_pages, 2, h_kv, page_size, row_of_pages(d)].

    A sequence's slots are those of its pages, one behind the other. All are keys, but for a sliding
    window: then some of the first are (the sink), and those from the window's first slot on.
    """

    def __init__(
        self,
        pages: Any,
        page_indptr: Any,
        page_values: Any,
        length_info: Any,
        page_size: int,
        sliding_window: bool = False,
    ) -> None:
        """Take the buffers of a kernel's parameters.

        Args:
            pages: the pages.
            page_indptr: [batch_size + 1], where a sequence's pages begin among page_values.
            page_values: [nnz_pages], numbers of pages.
            length_info: [batch_size], slots used in a sequence's last page; with a sliding window
                [3, batch_size]: these, the window's first slot, and the number of sink tokens kept
                before it.
            page_size: tokens of a page.
            sliding_window: whether there is one.
        """
        self.k = self.v = pages
        self.page_indptr, self.page_values, self.length_info = page_indptr, page_values, length_info
        self.page_size, self.sliding_window = page_size, sliding_window
        self.rows = page_values.shape[0] * page_size

    def locate(self, b: Any) -> tuple:
        begin = T.Bind(self.page_indptr[b])
        num_pages = IRBuilder.name("num_pages", T.Bind(self.page_indptr[b + 1] - begin))
        length = _get_kv_chunk_len(
            num_pages, self.page_size, b, self.length_info, self.sliding_window
        )
        return begin, T.Bind(T.if_then_else(num_pages > 0, length, 0))

    def row(self, begin: Any, key: Any) -> Any:
        # A sequence never has more keys than slots, as its window begins behind its sink.
        return begin * self.page_size + key

    def places(self, b: Any, begin: Any, h_kv: Any, kv_begin: Any, kv_row: Any) -> Any:  # noqa: ARG002
        def place(j: Any) -> tuple:
            page, slot = self.find(b, begin, kv_begin + j)
            return (page, 0, h_kv, slot), (page, 1, h_kv, slot)

        return place

    def factor(self, row: tuple) -> Any:
        if self.k.dtype != "int8":
            return None
        return IRBuilder.name("factor", T.Bind(factor_in(self.k, row)))

    def _in_pages(self, tile: int) -> bool:
        """Return True if each tile of ``tile`` keys lies in a single page."""
        return not self.sliding_window and self.page_size % tile == 0

    def places_of_tile(self, b: Any, begin: Any, h_kv: Any, kv_begin: Any, tile: int) -> Any:
        """Return ``places`` for the `tile` keys from ``kv_begin`` on, a multiple of `tile`."""
        if not self._in_pages(tile):
            return self.places(b, begin, h_kv, kv_begin, None)
        page, slot = self.find(b, begin, kv_begin)

        def place(j: Any) -> tuple:
            return (page, 0, h_kv, slot + j), (page, 1, h_kv, slot + j)

        return place

    def readable(self, j: Any, count: Any, tile: int) -> Any:
        """Return `j` clamped to a readable key of a tile with `count` keys."""
        return j if self._in_pages(tile) else T.min(j, count - 1)

    def find(self, b: Any, begin: Any, key: Any) -> tuple:
        """Return a key's page, and its slot in the page."""
        slot = _get_seq_offset(key, b, self.length_info, self.sliding_window)
        slot = IRBuilder.name("slot", T.Bind(slot))
        page = T.Bind(self.page_values[begin + slot // self.page_size])
        return IRBuilder.name("page", page), slot % self.page_size


class LatentKeys(PagedKeys):
    """A paged cache of latent vectors [max_num_pages, page_size, d], each both key and value."""

    def places(self, b: Any, begin: Any, h_kv: Any, kv_begin: Any, kv_row: Any) -> Any:  # noqa: ARG002
        return lambda j: (self.find(b, begin, kv_begin + j),) * 2
