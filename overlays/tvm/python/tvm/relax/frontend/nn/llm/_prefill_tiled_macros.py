# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""The steps of tiled prefill attention, as macros which its kernels put together.

See ``_prefill_tiled_cpu.py`` for the algorithm and for what the tiles hold.
"""

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from ._rope_tables import rotated_high, rotated_low
from ._vector_math import exp2, log2

LOG2_E = math.log2(math.e)
# What a kernel reports for a row without keys: finite, as merge_state subtracts two of them, and
# the value the decode and GPU kernels leave there too.
EMPTY_LSE = -5e4
# Start of the running maximum: below every score which occurs, and finite, so that the difference of
# two of them is 0 and not NaN.
LOWEST_SCORE = -1e30
# Score of a masked key: its weight is 0 even relative to the start of the running maximum.
MASKED_SCORE = 2 * LOWEST_SCORE

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
        """Refuse sizes no kernel can be built for."""
        if self.q_tile < 1 or self.kv_tile < 1:
            raise ValueError(f"tile sizes must be positive, got {self.q_tile}x{self.kv_tile}")


def lanes_of(d: int) -> int:
    """Lanes of a vectorised loop over d elements: the largest power of 2, at most 32, in d."""
    return math.gcd(d, 32)


def num_visible(causal, pos, q_len, kv_len, window: int = 0):
    """Return how many keys, from the first on, the query at pos within its sequence may see.

    With a window, as first_visible takes it, all keys are older than the query, and it hides none
    from the end on.
    """
    if window:
        return kv_len
    aligned = T.if_then_else(causal > 0, kv_len - q_len + pos + 1, kv_len)
    return T.max(T.min(aligned, kv_len), 0)


def first_visible(causal, pos, kv_len, window: int):
    """Return the first key which the query at pos may see.

    Args:
        causal: positive for a mask at all.
        pos: the query's place within its sequence's queries; all keys are older than the first.
        kv_len: number of keys.
        window: how many tokens a query sees, itself and those since the last key among them; 0
            for no limit.
    """
    if not window:
        return 0
    return T.if_then_else(causal > 0, T.max(kv_len - T.max(window - 1 - pos, 0), 0), 0)


def _sees(j, visible, causal, pos, kv_len, kv_begin, window: int):
    """Return whether the query at pos sees key j of the tile, of whose keys it sees `visible`."""
    if not window:
        return j < visible
    return tirx.all(j < visible, j >= first_visible(causal, pos, kv_len, window) - kv_begin)


def _hides_any(visible, kv_tile: int, window: int):
    """Return whether a query of which `visible` is known may see less than the whole tile."""
    return tirx.const(1, "bool") if window else visible < kv_tile


def _row_max(buffer, row, columns: int):
    """Return the maximum of a row, as one reduction: LLVM makes a chain of branches of a loop."""
    if columns == 1:
        return buffer[row, 0]
    return T.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", buffer[row, T.ramp(0, 1, columns)])


def staging_macros(tile: PrefillTile, group_size: int, d_qk: int, d_v: int, dtype: str) -> tuple:
    """Return stage_q, stage_kv and clear_kv.

    stage_q fills Q_tile; stage_kv fills K_tile and V_tile from rows of K and V; clear_kv zeroes
    what is behind the last key.

    Names in all macros of this module: ``row_begin`` is the tile's first row within its sequence,
    ``seq_begin`` the sequence's first query, ``h_kv`` the KV head, ``kv_begin`` the tile's first
    key, ``q_len`` and ``kv_len`` the sequence's lengths.
    """
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    qk_lanes, v_lanes = lanes_of(d_qk), lanes_of(d_v)
    half = d_qk // 2
    half_lanes = lanes_of(half)

    @T.macro
    def stage_q(q, Q_tile, q_cos, q_sin, seq_begin, row_begin, h_kv, q_len, rotary_mode, sm_scale):
        for i in T.serial(q_tile):
            row: T.let[T.int32] = row_begin + i
            pos: T.let[T.int32] = seq_begin + row // group_size
            head: T.let[T.int32] = h_kv * group_size + row % group_size
            if row // group_size < q_len:
                if rotary_mode == 1:
                    for ko in T.serial(half // half_lanes):
                        for ki in T.vectorized(half_lanes):
                            Q_tile[i, ko * half_lanes + ki] = rotated_low(q, (pos, head), q_cos, q_sin, pos, ko * half_lanes + ki, half, dtype) * (sm_scale * T.float32(LOG2_E))
                            Q_tile[i, half + ko * half_lanes + ki] = rotated_high(q, (pos, head), q_cos, q_sin, pos, ko * half_lanes + ki, half, dtype) * (sm_scale * T.float32(LOG2_E))
                else:
                    for ko in T.serial(d_qk // qk_lanes):
                        for ki in T.vectorized(qk_lanes):
                            Q_tile[i, ko * qk_lanes + ki] = T.cast(q[pos, head, ko * qk_lanes + ki], "float32") * (sm_scale * T.float32(LOG2_E))
            else:
                for ko in T.serial(d_qk // qk_lanes):
                    for ki in T.vectorized(qk_lanes):
                        Q_tile[i, ko * qk_lanes + ki] = T.float32(0)

    @T.macro
    def stage_kv(k, v, K_tile, V_tile, k_cos, k_sin, kv_row, h_kv, num_keys, rotary_mode):
        if rotary_mode == 1:
            for j in T.serial(num_keys):
                for ko in T.serial(half // half_lanes):
                    for ki in T.vectorized(half_lanes):
                        K_tile[j, ko * half_lanes + ki] = rotated_low(k, (kv_row + j, h_kv), k_cos, k_sin, kv_row + j, ko * half_lanes + ki, half, dtype)
                        K_tile[j, half + ko * half_lanes + ki] = rotated_high(k, (kv_row + j, h_kv), k_cos, k_sin, kv_row + j, ko * half_lanes + ki, half, dtype)
        else:
            for j in T.serial(num_keys):
                for ko in T.serial(d_qk // qk_lanes):
                    for ki in T.vectorized(qk_lanes):
                        K_tile[j, ko * qk_lanes + ki] = T.cast(k[kv_row + j, h_kv, ko * qk_lanes + ki], "float32")
        for j in T.serial(num_keys):
            for co in T.serial(d_v // v_lanes):
                for ci in T.vectorized(v_lanes):
                    V_tile[j, co * v_lanes + ci] = T.cast(v[kv_row + j, h_kv, co * v_lanes + ci], "float32")

    @T.macro
    def clear_kv(K_tile, V_tile, num_keys):
        # Zeros, because whatever is in V is multiplied by the weight 0 of a masked key.
        for j in T.serial(kv_tile - num_keys):
            for ko in T.serial(d_qk // qk_lanes):
                for ki in T.vectorized(qk_lanes):
                    K_tile[num_keys + j, ko * qk_lanes + ki] = T.float32(0)
            for co in T.serial(d_v // v_lanes):
                for ci in T.vectorized(v_lanes):
                    V_tile[num_keys + j, co * v_lanes + ci] = T.float32(0)

    return stage_q, stage_kv, clear_kv


def product_macros(tile: PrefillTile, d_qk: int, d_v: int) -> tuple:
    """Return compute_s, compute_o, compute_s_in_place and compute_o_in_place.

    They are the blocks S_gemm and O_gemm, and the same with the keys and values of a tile where they
    lie: from a row and a column of a matrix on.
    """
    q_tile, kv_tile = tile.q_tile, tile.kv_tile

    @T.macro
    def compute_s_in_place(Q_tile, K, S_tile, row, column):
        with T.sblock():
            for li, lj, lk in T.grid(q_tile, kv_tile, d_qk):
                with T.sblock("S_gemm_in_place"):
                    i, j, k = T.axis.remap("SSR", [li, lj, lk])
                    with T.init():
                        S_tile[i, j] = T.float32(0)
                    S_tile[i, j] += Q_tile[i, k] * K[row + j, column + k]

    @T.macro
    def compute_o_in_place(S_tile, V, O_tile, scale, row, column):
        with T.sblock():
            for li, lc, lj in T.grid(q_tile, d_v, kv_tile):
                with T.sblock("O_gemm_in_place"):
                    i, c, j = T.axis.remap("SSR", [li, lc, lj])
                    T.reads(O_tile[i, c], S_tile[i, j], V[row + j, column + c])
                    T.writes(O_tile[i, c])
                    with T.init():
                        if scale[i] != T.float32(1):
                            O_tile[i, c] = O_tile[i, c] * scale[i]
                    O_tile[i, c] += S_tile[i, j] * V[row + j, column + c]

    @T.macro
    def compute_s(Q_tile, K_tile, S_tile):
        with T.sblock():
            for li, lj, lk in T.grid(q_tile, kv_tile, d_qk):
                with T.sblock("S_gemm"):
                    i, j, k = T.axis.remap("SSR", [li, lj, lk])
                    with T.init():
                        S_tile[i, j] = T.float32(0)
                    S_tile[i, j] += Q_tile[i, k] * K_tile[j, k]

    @T.macro
    def compute_o(S_tile, V_tile, O_tile, scale):
        with T.sblock():
            for li, lc, lj in T.grid(q_tile, d_v, kv_tile):
                with T.sblock("O_gemm"):
                    i, c, j = T.axis.remap("SSR", [li, lc, lj])
                    # The product's own reads: those of the init are not named, as they would stay
                    # with the update when the two are decomposed, and no intrinsic matches then.
                    T.reads(O_tile[i, c], S_tile[i, j], V_tile[j, c])
                    T.writes(O_tile[i, c])
                    with T.init():
                        if scale[i] != T.float32(1):
                            O_tile[i, c] = O_tile[i, c] * scale[i]
                    O_tile[i, c] += S_tile[i, j] * V_tile[j, c]

    return compute_s, compute_o, compute_s_in_place, compute_o_in_place


def softmax_macros(
    tile: PrefillTile, group_size: int, d_v: int, dtype: str, window: int = 0
) -> tuple:
    """Return init_state, update_softmax, update_tree_softmax and store: the online softmax of a tile of rows.

    Its state, per row: the running maximum ``m_tile``; the running sum, in ``kv_tile`` lanes which
    are added up only at the end, ``d_lanes``; the sum of weighted values ``O_tile``. After an update
    ``scale`` holds what ``O_tile`` has to be multiplied by.
    """
    q_tile, kv_tile = tile.q_tile, tile.kv_tile
    v_lanes = lanes_of(d_v)

    @T.macro
    def init_state(O_tile, m_tile, d_lanes):
        for i in T.serial(q_tile):
            m_tile[i] = T.float32(LOWEST_SCORE)
            for j in T.vectorized(kv_tile):
                d_lanes[i, j] = T.float32(0)
            for co in T.serial(d_v // v_lanes):
                for ci in T.vectorized(v_lanes):
                    O_tile[i, co * v_lanes + ci] = T.float32(0)

    @T.macro
    def rescale(S_tile, m_tile, m_new, d_lanes, scale):
        for i in T.vectorized(q_tile):
            scale[i] = exp2(m_tile[i] - m_new[i])
            m_tile[i] = m_new[i]
        for i in T.serial(q_tile):
            for j in T.vectorized(kv_tile):
                S_tile[i, j] = exp2(S_tile[i, j] - m_new[i])
                d_lanes[i, j] = d_lanes[i, j] * scale[i] + S_tile[i, j]

    @T.macro
    def update_softmax(S_tile, m_tile, m_new, d_lanes, scale, row_begin, kv_begin, q_len, kv_len, causal):
        for i in T.serial(q_tile):
            visible: T.let[T.int32] = num_visible(causal, (row_begin + i) // group_size, q_len, kv_len, window) - kv_begin
            if _hides_any(visible, kv_tile, window):
                for j in T.vectorized(kv_tile):
                    S_tile[i, j] = T.Select(_sees(j, visible, causal, (row_begin + i) // group_size, kv_len, kv_begin, window), S_tile[i, j], T.float32(MASKED_SCORE))
            m_new[i] = T.max(m_tile[i], _row_max(S_tile, i, kv_tile))
        rescale(S_tile, m_tile, m_new, d_lanes, scale)

    @T.macro
    def update_tree_softmax(S_tile, m_tile, m_new, d_lanes, scale, place, first, behind, key_begin, num_keys):
        # A key is seen from the places from `first` on, up to the one before `behind`.
        for i in T.serial(q_tile):
            for j in T.vectorized(kv_tile):
                S_tile[i, j] = T.Select(j < num_keys and first[key_begin + j] <= place[i] and place[i] < behind[key_begin + j], S_tile[i, j], T.float32(MASKED_SCORE))
            m_new[i] = T.max(m_tile[i], _row_max(S_tile, i, kv_tile))
        rescale(S_tile, m_tile, m_new, d_lanes, scale)

    @T.macro
    def store(output, lse, O_tile, m_tile, d_lanes, d_sum, seq_begin, row_begin, h_kv, q_len):
        for i in T.serial(q_tile):
            row: T.let[T.int32] = row_begin + i
            pos: T.let[T.int32] = seq_begin + row // group_size
            head: T.let[T.int32] = h_kv * group_size + row % group_size
            if row // group_size < q_len:
                d_sum[0] = T.float32(0)
                for j in T.serial(kv_tile):
                    d_sum[0] += d_lanes[i, j]
                # The sum is 0 only for a row without keys; any other has its maximum's 1 in it, or NaN.
                lse[pos, head] = T.if_then_else(d_sum[0] == T.float32(0), T.float32(EMPTY_LSE), m_tile[i] + log2(d_sum[0]))
                d_sum[0] = T.if_then_else(d_sum[0] == T.float32(0), T.float32(0), T.float32(1) / d_sum[0])
                for co in T.serial(d_v // v_lanes):
                    for ci in T.vectorized(v_lanes):
                        output[pos, head, co * v_lanes + ci] = T.cast(O_tile[i, co * v_lanes + ci] * d_sum[0], dtype)

    return init_state, update_softmax, update_tree_softmax, store


def schedule_macros(tile: PrefillTile, group_size: int):
    """Return list_tiles, which makes the list of a batch's tiles of rows.

    ``tiles[t]`` is a tile's sequence and first row, ``count[0]`` the number of tiles. With the list,
    tiles of all sequences and heads are one parallel loop.
    """
    q_tile = tile.q_tile

    @T.macro
    def list_tiles(tiles, count, q_indptr, batch_size):
        count[0] = 0
        for b in T.serial(batch_size):
            for t in T.serial(T.ceildiv((q_indptr[b + 1] - q_indptr[b]) * group_size, q_tile)):
                tiles[count[0], 0] = b
                tiles[count[0], 1] = t * q_tile
                count[0] += 1

    return list_tiles
