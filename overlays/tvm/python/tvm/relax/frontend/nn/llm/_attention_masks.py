# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""Masks of the keys that a query sees: all, those up to its own place, a window of those, or a tree's.

A mask is a function, called within a kernel in TVMScript for a tile of rows (see
``_tiled_attention.py``), of the sequence's number, the tile's first row, and the lengths of the
sequence's queries and keys. It gives the `SeenKeys` of the tile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

# Score of a masked key: its weight is 0 even relative to LOWEST_SCORE, half of it.
MASKED_SCORE = -2e30
# Range of places from which a key before the trees is seen: all of them, and that of a query which
# is no node, too.
FIRST_PLACE, BEHIND_LAST_PLACE = -1, 2**31 - 1
# Place of a query that is no node of a tree.
NO_NODE = -1


@dataclass(frozen=True, eq=False)
class SeenKeys:
    """Keys that the rows of a tile see.

    Attributes:
        first: first tile of keys that any row sees a key of.
        end: tile behind the last of these.
        hide: macro of S_tile, a row of it, the first key of a tile of keys, its row in tables of
            one row a key, and the number of keys in it: gives the score of a masked key to all that
            the row does not see.
    """

    first: Any
    end: Any
    hide: Any


def _num_visible(causal, pos, q_len, kv_len, window: int):
    """Return the number of first keys that the query at position ``pos`` may see.

    With a window it is all of them: they are older than the query, see causal_mask.
    """
    if window:
        return kv_len
    aligned = T.if_then_else(causal > 0, kv_len - q_len + pos + 1, kv_len)
    return T.max(T.min(aligned, kv_len), 0)


def _first_visible(causal, pos, kv_len, window: int):
    """Return the first key that the query at position ``pos`` may see; see causal_mask."""
    return T.if_then_else(causal > 0, T.max(kv_len - T.max(window - 1 - pos, 0), 0), 0)


def causal_mask(causal: Any, q_tile: int, kv_tile: int, group_size: int, window: int = 0) -> Callable[..., SeenKeys]:
    """Return the mask of a prompt's queries, the last of which see all of its keys.

    Args:
        causal: positive for the mask; else queries see all keys.
        q_tile: rows of a tile.
        kv_tile: keys of a tile.
        group_size: rows of a query: query heads of a KV head.
        window: how many tokens a query sees, itself and those since the last key among them; 0
            for no limit. With one, all keys are older than the queries.
    """

    def mask(b, row_begin, q_len, kv_len):  # noqa: ARG001
        first = 0
        if window:
            # In memory: TVM simplifies a loop that begins at such an expression for 20 s.
            kv_first = IRBuilder.name("kv_first", T.sblock_alloc_buffer((1,), "int32"))
            T.buffer_store(kv_first, _first_visible(causal, row_begin // group_size, kv_len, window) // kv_tile, [0])
            first = kv_first[0]

        def sees(j, visible, pos, kv_begin):
            if window:
                return tirx.all(j < visible, j >= _first_visible(causal, pos, kv_len, window) - kv_begin)
            return j < visible

        def hides_any(visible):
            return tirx.const(1, "bool") if window else visible < kv_tile

        @T.macro
        def hide(S_tile, i, kv_begin, kv_row, num_keys):  # noqa: ARG001
            visible: T.let[T.int32] = _num_visible(causal, (row_begin + i) // group_size, q_len, kv_len, window) - kv_begin
            if hides_any(visible):
                for j in T.vectorized(kv_tile):
                    S_tile[i, j] = T.Select(sees(j, visible, (row_begin + i) // group_size, kv_begin), S_tile[i, j], T.float32(MASKED_SCORE))

        last = _num_visible(causal, (row_begin + (q_tile - 1)) // group_size, q_len, kv_len, window)
        return SeenKeys(first, T.ceildiv(last, kv_tile), hide)

    return mask


def tree_mask(keys: Any, order_indptr: Any, order: Any, batch_size: Any, q_tile: int, kv_tile: int, group_size: int) -> Callable[..., SeenKeys]:
    """Return the mask of token trees, whose nodes are the last keys of their sequence.

    A node has its place in the trees' pre-order and the place behind its last descendant; a query,
    which is a node too, sees a node from whose place on, and before whose end, its own place is. So
    for every key a range of places is written down here, once a call (all places, for a key before
    the trees), and the mask of a tile is two comparisons in vectors.

    Args:
        keys: of _kv_layouts.py.
        order_indptr: [batch_size + 1], where a sequence's nodes begin in the order.
        order: [nodes, 2], place of a node and place behind its last descendant.
        batch_size: number of sequences.
        q_tile: rows of a tile.
        kv_tile: keys of a tile.
        group_size: rows of a query.
    """
    # A tile may reach behind the last key, where the ranges do not matter.
    first, behind = (IRBuilder.name(name, T.sblock_alloc_buffer((keys.rows + kv_tile,), "int32")) for name in ("first", "behind"))

    @T.macro
    def note_keys():
        for b in T.serial(batch_size):
            begin, kv_len = keys.locate(b)
            before: T.let[T.int32] = kv_len - (order_indptr[b + 1] - order_indptr[b])
            for key in T.serial(kv_len):
                # No read for a key before the tree, where there is no order.
                if key < before:
                    first[keys.row(begin, key)] = FIRST_PLACE
                    behind[keys.row(begin, key)] = BEHIND_LAST_PLACE
                else:
                    first[keys.row(begin, key)] = order[order_indptr[b] + key - before, 0]
                    behind[keys.row(begin, key)] = order[order_indptr[b] + key - before, 1]

    @T.macro
    def note_places(place, b, row_begin, q_len):
        for i in T.serial(q_tile):
            nodes: T.let[T.int32] = order_indptr[b + 1] - order_indptr[b]
            node: T.let[T.int32] = (row_begin + i) // group_size + nodes - q_len
            if node >= 0 and node < nodes:
                place[i] = order[order_indptr[b] + node, 0]
            else:
                place[i] = NO_NODE

    def mask(b, row_begin, q_len, kv_len):
        place = IRBuilder.name("place", T.sblock_alloc_buffer((q_tile,), "int32"))
        note_places(place, b, row_begin, q_len)

        @T.macro
        def hide(S_tile, i, kv_begin, kv_row, num_keys):  # noqa: ARG001
            for j in T.vectorized(kv_tile):
                S_tile[i, j] = T.Select(j < num_keys and first[kv_row + j] <= place[i] and place[i] < behind[kv_row + j], S_tile[i, j], T.float32(MASKED_SCORE))

        return SeenKeys(0, T.ceildiv(kv_len, kv_tile), hide)

    note_keys()
    return mask
