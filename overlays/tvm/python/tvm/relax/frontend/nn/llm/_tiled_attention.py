# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# A lambda in a loop of TVMScript is called before the loop's variable means anything else (B023).
# ruff: noqa: B023, E501
# fmt: off
"""Attention in tiles for CPUs: the loops that prefill, tree and latent attention are made of.

Source: the algorithm is FlashAttention-2's forward pass (Dao, 2023, arXiv:2307.08691).

One *row* is one pair (query position, query head of the group which shares a KV head), so that a
tile of ``q_tile`` rows uses every staged K and V row for the whole group. For each tile of rows a
kernel walks over tiles of ``kv_tile`` keys, from the first to the last which any of its rows may see:

* ``Q_tile``, ``K_tile``, ``V_tile`` are float32 copies, with RoPE applied and, for Q, the softmax
  scale times log2(e), because the softmax is in base 2;
* block ``S_gemm``: ``S_tile[i, j] += Q_tile[i, k] * K_tile[j, k]``;
* online softmax on ``S_tile``;
* block ``O_gemm``: ``O_tile[i, c] += S_tile[i, j] * V_tile[j, c]``, whose init rescales ``O_tile``.

Both products have constant bounds and are blocks of their own, so a later pass can tensorize them:
rows and keys beyond the end are staged as zeros, such keys are masked, such rows are not stored.

A row which sees no key at all (an empty KV part, or a causal mask with more queries than keys) has
output 0 and log-sum-exp -5e4, as in the decode kernel: ``merge_state`` then gives it the weight 0.
"""

import math
from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

from ._attention_masks import MASKED_SCORE
from ._vector_math import exp2, log2
from ._vector_rows import copy_row, fill_row, zero_row

LOG2_E = math.log2(math.e)
# What a kernel reports for a row without keys: finite, as merge_state subtracts two of them, and
# the value that upstream's kernels leave there too.
EMPTY_LSE = -5e4
# Start of the running maximum: below every score which occurs, and finite, so that the difference of
# two of them is 0 and not NaN.
LOWEST_SCORE = MASKED_SCORE / 2


@dataclass(frozen=True)
class PrefillTile:
    """Tile sizes of a prefill kernel.

    Attributes:
        q_tile: rows (query position x head of the KV group) of a tile.
        kv_tile: keys of a tile.
    """

    q_tile: int = 16
    kv_tile: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for sizes below 1."""
        if self.q_tile < 1 or self.kv_tile < 1:
            raise ValueError(f"tile sizes must be positive, got {self.q_tile}x{self.kv_tile}")


class _Tiles:
    """The float32 buffers of a task.

    The state of the softmax is, per row, the running maximum ``m``, the running sum in ``kv_tile``
    lanes that are added up only at the end (``d_lanes``), and the sum of weighted values ``O``.
    After an update ``scale`` holds what ``O`` has to be multiplied by.
    """

    def __init__(self, tile: PrefillTile, d_qk: int, d_v: int) -> None:
        rows, keys = tile.q_tile, tile.kv_tile
        self.Q = _allocated("Q_tile", rows, d_qk)
        self.K = _allocated("K_tile", keys, d_qk)
        self.V = _allocated("V_tile", keys, d_v)
        self.S = _allocated("S_tile", rows, keys)
        self.O = _allocated("O_tile", rows, d_v)
        self.m = _allocated("m_tile", rows)
        self.m_new = _allocated("m_new", rows)
        self.scale = _allocated("scale", rows)
        self.d_lanes = _allocated("d_lanes", rows, keys)
        self.d_sum = _allocated("d_sum", 1)


def _allocated(name: str, *shape: int) -> Any:
    return IRBuilder.name(name, T.sblock_alloc_buffer(shape, "float32"))


def row_max(buffer, row, columns: int):
    """Return the maximum of a row as one reduction, since LLVM compiles a loop to branches."""
    if columns == 1:
        return buffer[row, 0]
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", buffer[row, T.ramp(0, 1, columns)])


def _score_product(block: str, tile: PrefillTile, d_qk: int):
    """Return the macro of S = Q K^T, where K begins at a row and a column of a matrix."""
    q_tile, kv_tile = tile.q_tile, tile.kv_tile

    @T.macro
    def compute_s(Q_tile, K, S_tile, row, column):
        with T.sblock():
            for li, lj, lk in T.grid(q_tile, kv_tile, d_qk):
                with T.sblock(block):
                    i, j, k = T.axis.remap("SSR", [li, lj, lk])
                    with T.init():
                        S_tile[i, j] = T.float32(0)
                    S_tile[i, j] += Q_tile[i, k] * K[row + j, column + k]

    return compute_s


def _value_product(block: str, tile: PrefillTile, d_v: int):
    """Return the macro of O = O * scale + S V, where V begins at a row and a column of a matrix."""
    q_tile, kv_tile = tile.q_tile, tile.kv_tile

    @T.macro
    def compute_o(S_tile, V, O_tile, scale, row, column):
        with T.sblock():
            for li, lc, lj in T.grid(q_tile, d_v, kv_tile):
                with T.sblock(block):
                    i, c, j = T.axis.remap("SSR", [li, lc, lj])
                    # The product's own reads: those of the init are not named, as they would stay
                    # with the update when the two are decomposed, and no intrinsic matches then.
                    T.reads(O_tile[i, c], S_tile[i, j], V[row + j, column + c])
                    T.writes(O_tile[i, c])
                    with T.init():
                        if scale[i] != T.float32(1):
                            O_tile[i, c] = O_tile[i, c] * scale[i]
                    O_tile[i, c] += S_tile[i, j] * V[row + j, column + c]

    return compute_o


def _staging_macros(tile: PrefillTile, group_size: int, d_qk: int, d_v: int) -> tuple:
    """Return the macros stage_q and stage_kv, which copy a tile's rows to local buffers.

    stage_q copies queries, times sm_scale * log2(e). stage_kv copies keys and values. Both fill the
    rows behind the last with zeros, and with rotary_mode 1 turn rows by a RoPE table, if not None.
    """
    q_tile, kv_tile = tile.q_tile, tile.kv_tile

    @T.macro
    def stage_q(t, q, q_table, seq_begin, row_begin, h_kv, q_len, rotary_mode, sm_scale):
        for i in T.serial(q_tile):
            row: T.let[T.int32] = row_begin + i
            pos: T.let[T.int32] = seq_begin + row // group_size
            head: T.let[T.int32] = h_kv * group_size + row % group_size
            if row // group_size < q_len:
                if rotary_mode == 1:
                    q_table.turn_row(t.Q, (i,), q, (pos, head), pos, sm_scale * T.float32(LOG2_E))
                else:
                    copy_row(t.Q, (i,), d_qk, q, (pos, head), sm_scale * T.float32(LOG2_E))
            else:
                zero_row(t.Q, (i,), d_qk)

    @T.macro
    def stage_kv(t, keys, place, k_table, kv_row, num_keys, rotary_mode):
        if k_table is None:
            for j in T.serial(num_keys):
                at = T.meta_var(place(j))
                copy_row(t.K, (j,), d_qk, keys.k, at[0], keys.factor(at[0]))
                copy_row(t.V, (j,), d_v, keys.v, at[1], keys.factor(at[1]))
        else:
            if rotary_mode == 1:
                for j in T.serial(num_keys):
                    key = T.meta_var(place(j)[0])
                    k_table.turn_row(t.K, (j,), keys.k, key, kv_row + j, keys.factor(key))
            else:
                for j in T.serial(num_keys):
                    key = T.meta_var(place(j)[0])
                    copy_row(t.K, (j,), d_qk, keys.k, key, keys.factor(key))
            for j in T.serial(num_keys):
                value = T.meta_var(place(j)[1])
                copy_row(t.V, (j,), d_v, keys.v, value, keys.factor(value))
        # Zeros, because whatever is in V is multiplied by the weight 0 of a masked key.
        for j in T.serial(kv_tile - num_keys):
            zero_row(t.K, (num_keys + j,), d_qk)
            zero_row(t.V, (num_keys + j,), d_v)

    return stage_q, stage_kv


def _softmax_macros(tile: PrefillTile, group_size: int, d_v: int, dtype: str) -> tuple:
    """Return init_state, update_softmax and store: the online softmax of a tile of rows."""
    q_tile, kv_tile = tile.q_tile, tile.kv_tile

    @T.macro
    def init_state(t):
        for i in T.serial(q_tile):
            t.m[i] = T.float32(LOWEST_SCORE)
            for j in T.vectorized(kv_tile):
                t.d_lanes[i, j] = T.float32(0)
            zero_row(t.O, (i,), d_v)

    @T.macro
    def update_softmax(t, seen, kv_begin, kv_row, num_keys):
        for i in T.serial(q_tile):
            seen.hide(t.S, i, kv_begin, kv_row, num_keys)
            t.m_new[i] = T.max(t.m[i], row_max(t.S, i, kv_tile))
        for i in T.vectorized(q_tile):
            t.scale[i] = exp2(t.m[i] - t.m_new[i])
            t.m[i] = t.m_new[i]
        for i in T.serial(q_tile):
            for j in T.vectorized(kv_tile):
                t.S[i, j] = exp2(t.S[i, j] - t.m_new[i])
                t.d_lanes[i, j] = t.d_lanes[i, j] * t.scale[i] + t.S[i, j]

    @T.macro
    def store(t, output, lse, seq_begin, row_begin, h_kv, q_len):
        for i in T.serial(q_tile):
            row: T.let[T.int32] = row_begin + i
            pos: T.let[T.int32] = seq_begin + row // group_size
            head: T.let[T.int32] = h_kv * group_size + row % group_size
            if row // group_size < q_len:
                t.d_sum[0] = T.float32(0)
                for j in T.serial(kv_tile):
                    t.d_sum[0] += t.d_lanes[i, j]
                # The sum is 0 only for a row without keys; any other has its maximum's 1 in it, or NaN.
                lse[pos, head] = T.if_then_else(t.d_sum[0] == T.float32(0), T.float32(EMPTY_LSE), t.m[i] + log2(t.d_sum[0]))
                t.d_sum[0] = T.if_then_else(t.d_sum[0] == T.float32(0), T.float32(0), T.float32(1) / t.d_sum[0])
                fill_row(output, (pos, head), d_v, lambda c: T.cast(t.O[i, c] * t.d_sum[0], dtype))

    return init_state, update_softmax, store


def _schedule_macro(q_tile: int, group_size: int):
    """Return list_tiles, which makes the list of a batch's tiles of rows.

    ``tiles[n]`` is a tile's sequence and first row, ``count[0]`` the number of tiles. With the list,
    tiles of all sequences and heads are one parallel loop.
    """

    @T.macro
    def list_tiles(tiles, count, q_indptr, batch_size):
        count[0] = 0
        for b in T.serial(batch_size):
            for n in T.serial(T.ceildiv((q_indptr[b + 1] - q_indptr[b]) * group_size, q_tile)):
                tiles[count[0], 0] = b
                tiles[count[0], 1] = n * q_tile
                count[0] += 1

    return list_tiles


def attention_macro(tile: PrefillTile, h_kv: int, h_q: int, d_qk: int, d_v: int, dtype: str, *, in_place: bool = False):
    """Return the macro with the body of an attention kernel, behind its parameters and tables.

    Args:
        tile: tile sizes.
        h_kv: number of KV heads.
        h_q: number of query heads, a multiple of h_kv.
        d_qk: head dimension of Q and K, in elements.
        d_v: head dimension of V and the output, in elements.
        dtype: type of Q, K, V and the output; sums are float32.
        in_place: whole tiles of keys that need neither RoPE nor a conversion are read where they
            lie; the keys are RaggedKeys then.

    Returns:
        attend(q, q_indptr, batch_size, keys, mask, output, lse, sm_scale, rotary_mode, q_table,
        k_table): keys are of _kv_layouts.py, the mask of _attention_masks.py, the tables RopeTables;
        without the last three, nothing is turned.
    """
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    group_size = h_q // h_kv
    stage_q, stage_kv = _staging_macros(tile, group_size, d_qk, d_v)
    compute_s, compute_o = _score_product("S_gemm", tile, d_qk), _value_product("O_gemm", tile, d_v)
    compute_s_in_place = _score_product("S_gemm_in_place", tile, d_qk)
    compute_o_in_place = _value_product("O_gemm_in_place", tile, d_v)
    init_state, update_softmax, store = _softmax_macros(tile, group_size, d_v, dtype)
    list_tiles = _schedule_macro(q_tile, group_size)

    @T.macro
    def attend_copies(t, keys, place, seen, k_table, kv_begin, kv_row, num_keys, rotary_mode):
        stage_kv(t, keys, place, k_table, kv_row, num_keys, rotary_mode)
        compute_s(t.Q, t.K, t.S, 0, 0)
        update_softmax(t, seen, kv_begin, kv_row, num_keys)
        compute_o(t.S, t.V, t.O, t.scale, 0, 0)

    @T.macro
    def attend(q, q_indptr, batch_size, keys, mask, output, lse, sm_scale, rotary_mode=0, q_table=None, k_table=None):
        tiles = T.sblock_alloc_buffer((T.ceildiv(q.shape[0] * group_size, q_tile) + batch_size, 2), "int32")
        num_tiles = T.sblock_alloc_buffer((1,), "int32")
        list_tiles(tiles, num_tiles, q_indptr, batch_size)
        # Heads are the slow index: a thread gets whole heads as far as it goes, and these cost
        # the same, whereas causal tiles cost the more the later they are.
        for head_tile in T.parallel(h_kv * num_tiles[0]):
            with T.sblock("attn"):
                T.reads()
                T.writes()
                t = T.meta_var(_Tiles(tile, d_qk, d_v))
                if in_place:
                    k_rows, v_rows = keys.matrices()
                by: T.let[T.int32] = head_tile // num_tiles[0]
                b: T.let[T.int32] = tiles[head_tile % num_tiles[0], 0]
                row_begin: T.let[T.int32] = tiles[head_tile % num_tiles[0], 1]
                seq_begin: T.let[T.int32] = q_indptr[b]
                q_len: T.let[T.int32] = q_indptr[b + 1] - seq_begin
                kv_seq_begin, kv_len = keys.locate(b)
                stage_q(t, q, q_table, seq_begin, row_begin, by, q_len, rotary_mode, sm_scale)
                init_state(t)
                seen = T.meta_var(mask(b, row_begin, q_len, kv_len))
                for kv_idx in T.serial(seen.first, seen.end):
                    kv_begin: T.let[T.int32] = kv_idx * kv_tile
                    num_keys: T.let[T.int32] = T.min(kv_len - kv_begin, kv_tile)
                    kv_row: T.let[T.int32] = keys.row(kv_seq_begin, kv_begin)
                    place = T.meta_var(keys.places(b, kv_seq_begin, by, kv_begin, kv_row))
                    if in_place:
                        if rotary_mode != 1 and num_keys == kv_tile:
                            compute_s_in_place(t.Q, k_rows, t.S, kv_row, by * d_qk)
                            update_softmax(t, seen, kv_begin, kv_row, num_keys)
                            compute_o_in_place(t.S, v_rows, t.O, t.scale, kv_row, by * d_v)
                        else:
                            attend_copies(t, keys, place, seen, k_table, kv_begin, kv_row, num_keys, rotary_mode)
                    else:
                        attend_copies(t, keys, place, seen, k_table, kv_begin, kv_row, num_keys, rotary_mode)
                store(t, output, lse, seq_begin, row_begin, by, q_len)

    return attend
