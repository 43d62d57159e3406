# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in TVM's modules of attention.
# A lambda in a loop of TVMScript is called before the loop's variable means anything else (B023).
# ruff: noqa: B023, E501
# fmt: off
"""The gated delta rule and its short convolution on CPUs.

Source: Gated Delta Networks (Yang et al., 2024, arXiv:2412.06464), and its form in chunks
(Yang et al., 2024, arXiv:2406.06484). A head has a state S [K, V]. Token t decays it by exp(g_t), and
replaces what it holds under the key k_t by the value v_t, in part beta_t:

    S = exp(g_t) S;    u_t = beta_t (v_t - S' k_t);    S = S + k_t u_t';    out_t = S' q_t

A call that reads one token of a sequence does this in vectors over V, where the state lies. A call
that reads more takes chunks of ``CHUNK`` tokens. With G_i, the sum of g up to token i of a chunk,

    u_i   = beta_i (v_i - exp(G_i) S' k_i - sum over j < i of exp(G_i - G_j) (k_i . k_j) u_j)
    out_i = exp(G_i) S' q_i + sum over j <= i of exp(G_i - G_j) (q_i . k_j) u_j
    S     = exp(G_last) S + sum over j of exp(G_last - G_j) k_j u_j'

The products are blocks of 16 rows, for which the pass TensorizePrefill (compiler_pass/rvv/attention)
puts in attention's kernels. Of 16 tokens, u is then found by substitution.

States of all sequences and layers are one tensor [slots, floats]: a slot holds what one sequence
needs, so that a checkpoint is a copy of a row. Functions change it where it lies. Of a layer it holds
``heads * K * V`` floats of S, then the last ``width - 1`` inputs of the convolution.
``sequences`` [batch, 2] gives, of each sequence of a call, its slot, and the row behind its last
token. Sums and states are float32.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

CHUNK = 64
TILE = 16
# Lanes of a vector: half the registers of a VLEN of 256 bits hold two sums and what is added.
LANES = 32
SUM_LANES = 8
# Added to the square of a length by which queries and keys are divided.
EPSILON = 1e-6
# softplus(x) is x above it, in float32.
LINEAR = 20.0
FUNCTION = "gated_delta_rule"


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of a layer.

    Attributes:
        key_heads: number of heads of queries and keys.
        heads: number of heads of values, a multiple of key_heads.
        keys: elements of a head's query or key, K; a multiple of 16.
        values: elements of a head's value, V; a multiple of 8.
        width: inputs of each output of the convolution.
    """

    key_heads: int
    heads: int
    keys: int
    values: int
    width: int

    @property
    def channels(self) -> int:
        """Return the number of elements of a token's queries, keys and values."""
        return 2 * self.key_heads * self.keys + self.heads * self.values

    @property
    def recurrent(self) -> int:
        """Return the floats of the states S of all heads in a layer."""
        return self.heads * self.keys * self.values

    @property
    def floats(self) -> int:
        """Return the floats of a layer in a slot: S, and past inputs of the convolution."""
        return self.recurrent + (self.width - 1) * self.channels


@dataclass(frozen=True)
class Place:
    """Location of the states of a call's sequences.

    Attributes:
        sequences: int32 [batch, 2]: slot, and the row behind the last token.
        states: float32 [slots, floats of all layers].
        layer: number of the layer among those with a state.
    """

    sequences: Tensor
    states: Tensor
    layer: int

    def arguments(self) -> list[Any]:
        """Return sequences, layer and states: the last arguments of a TIR function."""
        return [self.sequences, tirx.const(self.layer, "int64"), self.states]


def convolve(shape: DeltaShape, x: Tensor, weight: Tensor, place: Place) -> tuple[Tensor, Tensor]:
    """Compute silu of the causal convolution of each channel with its past.

    Args:
        shape: sizes.
        x: [rows, channels].
        weight: float32 [channels, 1, width]. Of halves, LLVM gathers wrong ones where the CPU has no
            vectors of them.
        place: of the states.

    Returns:
        float32 [rows, channels], and the states.
    """
    out = Tensor.placeholder([x.shape[0], shape.channels], "float32")
    return _in_place(_convolution(shape, x.dtype), "short_convolution", [x, weight], place, out)


def delta_rule(
    shape: DeltaShape, x: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, place: Place
) -> tuple[Tensor, Tensor]:
    """Read tokens by the gated delta rule.

    Args:
        shape: sizes.
        x: float32 [rows, channels]: queries, keys, values. The first two are normalised here.
        a: [rows, heads]; g is -exp(a_log) * softplus(a + dt_bias).
        b: [rows, heads], of a's type; beta is sigmoid(b).
        a_log: float32 [heads].
        dt_bias: float32 [heads].
        place: of the states.

    Returns:
        float32 [rows, heads, values], and the states.
    """
    out = Tensor.placeholder([x.shape[0], shape.heads, shape.values], "float32")
    return _in_place(_delta(shape, a.dtype), FUNCTION, [x, a, b, a_log, dt_bias], place, out)


def _in_place(
    func: tirx.PrimFunc, name: str, inputs: list[Tensor], place: Place, out: Tensor
) -> tuple[Tensor, Tensor]:
    arguments = [*inputs, *place.arguments()]
    changed = Tensor.placeholder(place.states.shape, "float32")
    result = op.tensor_ir_inplace_op(func, name, arguments, [-1, len(arguments) - 1], [out, changed])
    return result[0], result[1]


def _allocated(name: str, *sizes: int) -> Any:
    return IRBuilder.name(name, T.sblock_alloc_buffer(sizes, "float32"))


def _sigmoid(x: Any, exp2: Any) -> Any:
    """Return 1 / (1 + exp(-x)) without overflow."""
    power = exp2(-T.abs(x) * T.float32(math.log2(math.e)))
    return T.Select(x < T.float32(0), power, T.float32(1)) / (T.float32(1) + power)


@functools.cache
def _convolution(shape: DeltaShape, dtype: str) -> tirx.PrimFunc:
    from tvm.relax.frontend.nn.llm._vector_math import exp2  # noqa: PLC0415  # of TVM's overlay

    channels, width, start = shape.channels, shape.width, shape.recurrent
    lanes = math.gcd(channels, LANES)
    layer_floats = shape.floats

    @T.prim_func(private=True, s_tir=True)
    def short_convolution(var_x: T.handle, var_weight: T.handle, var_sequences: T.handle, layer: T.int64, var_states: T.handle, var_out: T.handle):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True, "mlc_rvv.compact": True})
        rows, batch, slots, floats = T.int64(), T.int64(), T.int64(), T.int64()
        x = T.match_buffer(var_x, (rows, channels), dtype)
        weight = T.match_buffer(var_weight, (channels, 1, width), "float32")
        sequences = T.match_buffer(var_sequences, (batch, 2), "int32")
        states = T.match_buffer(var_states, (slots, floats), "float32")
        out = T.match_buffer(var_out, (rows, channels), "float32")
        for task in T.parallel(batch * (channels // lanes)):
            with T.sblock("channels"):
                T.reads()
                T.writes()
                b: T.let[T.int64] = task // (channels // lanes)
                c: T.let[T.int64] = task % (channels // lanes) * lanes
                slot: T.let[T.int32] = sequences[b, 0]
                base: T.let[T.int64] = layer * layer_floats + start + c
                first: T.let[T.int32] = T.if_then_else(b > 0, sequences[T.max(b - 1, 0), 1], 0)
                end: T.let[T.int32] = sequences[b, 1]
                # The last row is the newest input.
                past = T.sblock_alloc_buffer((width, lanes), "float32")
                factors = T.sblock_alloc_buffer((width, lanes), "float32")
                total = T.sblock_alloc_buffer((lanes,), "float32")
                for k in T.unroll(width):
                    for lane in T.vectorized(lanes):
                        factors[k, lane] = weight[c + lane, 0, k]
                for k in T.unroll(width - 1):
                    for lane in T.vectorized(lanes):
                        past[k + 1, lane] = states[slot, base + k * channels + lane]
                for row in T.serial(first, end):
                    for k in T.unroll(width - 1):
                        for lane in T.vectorized(lanes):
                            past[k, lane] = past[k + 1, lane]
                    for lane in T.vectorized(lanes):
                        past[width - 1, lane] = T.cast(x[row, c + lane], "float32")
                    for lane in T.vectorized(lanes):
                        total[lane] = factors[0, lane] * past[0, lane]
                    for k in T.unroll(width - 1):
                        for lane in T.vectorized(lanes):
                            total[lane] += factors[k + 1, lane] * past[k + 1, lane]
                    for lane in T.vectorized(lanes):
                        out[row, c + lane] = total[lane] * _sigmoid(total[lane], exp2)
                for k in T.unroll(width - 1):
                    for lane in T.vectorized(lanes):
                        states[slot, base + k * channels + lane] = past[k + 1, lane]

    return short_convolution


class _Chunk:
    """Buffers of a task. Rows are tokens of the chunk."""

    def __init__(self, shape: DeltaShape) -> None:
        keys, values = shape.keys, shape.values
        self.Q = _allocated("Q", CHUNK, keys)
        self.K = _allocated("K", CHUNK, keys)
        self.K_left = _allocated("K_left", keys, CHUNK)  # by what is left of them at the chunk's end
        self.U = _allocated("U", CHUNK, values)
        self.S = _allocated("S", keys, values)
        self.scaled = _allocated("scaled", TILE, keys)
        self.scores = _allocated("scores", TILE, TILE)
        self.sums = _allocated("sums", TILE, values)
        self.decay = _allocated("decay", CHUNK)  # sums of g, in powers of two
        self.kept = _allocated("kept", CHUNK)  # 2 to the power of decay
        self.beta = _allocated("beta", CHUNK)
        self.lanes = _allocated("lanes", SUM_LANES)
        self.number = _allocated("number", 1)


def _score(block: str, keys: int) -> Any:
    """Return the macro of acc = lhs[row...] * transpose(rhs[column...]), 16 x 16."""

    @T.macro
    def compute(acc, lhs, row, rhs, column):
        # Names, because a block may not use the variable of a loop around it.
        of_lhs: T.let[T.int32] = row
        of_rhs: T.let[T.int32] = column
        with T.sblock():
            for li, lj, lk in T.grid(TILE, TILE, keys):
                with T.sblock(block):
                    i, j, k = T.axis.remap("SSR", [li, lj, lk])
                    with T.init():
                        acc[i, j] = T.float32(0)
                    acc[i, j] += lhs[of_lhs + i, k] * rhs[of_rhs + j, k]

    return compute


def _product(block: str, values: int, depth: int = TILE) -> Any:
    """Return the macro of acc[at...] += lhs[row..., column...] * rhs[step...], 16 x values."""

    @T.macro
    def compute(acc, at, lhs, row, column, rhs, step):
        of_acc: T.let[T.int32] = at
        of_lhs: T.let[T.int32] = row
        within_lhs: T.let[T.int32] = column
        of_rhs: T.let[T.int32] = step
        with T.sblock():
            for li, lc, lj in T.grid(TILE, values, depth):
                with T.sblock(block):
                    i, c, j = T.axis.remap("SSR", [li, lc, lj])
                    acc[of_acc + i, c] += lhs[of_lhs + i, within_lhs + j] * rhs[of_rhs + j, c]

    return compute


def _staging(shape: DeltaShape) -> tuple[Any, Any]:
    """Return macros: stage_unit scales a row to a length, stage_gates computes decay and beta."""
    keys = shape.keys

    @T.macro
    def stage_unit(t, to, i, x, row, first, factor):
        for lane in T.vectorized(SUM_LANES):
            t.lanes[lane] = T.float32(0)
        for k in T.serial(keys // SUM_LANES):
            for lane in T.vectorized(SUM_LANES):
                t.lanes[lane] += x[row, first + k * SUM_LANES + lane] * x[row, first + k * SUM_LANES + lane]
        t.number[0] = T.float32(EPSILON)
        for lane in T.serial(SUM_LANES):
            t.number[0] += t.lanes[lane]
        t.number[0] = T.float32(factor) / T.sqrt(t.number[0])
        for k in T.serial(keys // TILE):
            for lane in T.vectorized(TILE):
                to[i, k * TILE + lane] = x[row, first + k * TILE + lane] * t.number[0]

    @T.macro
    def stage_gates(t, i, row, h, a, b, a_log, dt_bias):
        t.number[0] = T.cast(a[row, h], "float32") + dt_bias[h]
        if t.number[0] < T.float32(LINEAR):
            t.number[0] = T.log(T.float32(1) + T.exp(t.number[0]))
        t.decay[i] = T.float32(-math.log2(math.e)) * T.exp(a_log[h]) * t.number[0]
        t.beta[i] = T.float32(1) / (T.float32(1) + T.exp(-T.cast(b[row, h], "float32")))

    return stage_unit, stage_gates


def _one_token(shape: DeltaShape) -> Any:
    """Return the macro that reads one token, and changes the state where it lies."""
    from tvm.relax.frontend.nn.llm._vector_math import exp2  # noqa: PLC0415

    keys, values, key_heads = shape.keys, shape.values, shape.key_heads
    group = shape.heads // key_heads
    lanes = math.gcd(values, LANES)
    stage_unit, stage_gates = _staging(shape)

    @T.macro
    def read_one(t, x, a, b, a_log, dt_bias, states, slot, base, out, row, h):
        key: T.let[T.int64] = h // group * keys
        stage_unit(t, t.Q, 0, x, row, key, keys**-0.5)
        stage_unit(t, t.K, 0, x, row, key_heads * keys + key, 1.0)
        stage_gates(t, 0, row, h, a, b, a_log, dt_bias)
        t.kept[0] = exp2(t.decay[0])
        t.number[0] = T.float32(0)
        for k in T.serial(keys):
            t.number[0] += t.Q[0, k] * t.K[0, k]
        for block in T.serial(values // lanes):
            of_key = T.sblock_alloc_buffer((lanes,), "float32")
            of_query = T.sblock_alloc_buffer((lanes,), "float32")
            for lane in T.vectorized(lanes):
                of_key[lane] = T.float32(0)
                of_query[lane] = T.float32(0)
            for k in T.serial(keys):
                for lane in T.vectorized(lanes):
                    of_key[lane] += t.K[0, k] * states[slot, base + k * values + block * lanes + lane]
                for lane in T.vectorized(lanes):
                    of_query[lane] += t.Q[0, k] * states[slot, base + k * values + block * lanes + lane]
            # of_key becomes the update, of the state as it was.
            for lane in T.vectorized(lanes):
                of_key[lane] = t.beta[0] * (x[row, 2 * key_heads * keys + h * values + block * lanes + lane] - t.kept[0] * of_key[lane])
            for lane in T.vectorized(lanes):
                out[row, h, block * lanes + lane] = t.kept[0] * of_query[lane] + t.number[0] * of_key[lane]
            for k in T.serial(keys):
                for lane in T.vectorized(lanes):
                    states[slot, base + k * values + block * lanes + lane] = t.kept[0] * states[slot, base + k * values + block * lanes + lane] + t.K[0, k] * of_key[lane]

    return read_one


def _chunk_macro(shape: DeltaShape) -> Any:
    """Return the macro that reads a chunk of tokens, and changes the copy of the state."""
    from tvm.relax.frontend.nn.llm._vector_math import exp2  # noqa: PLC0415
    from tvm.relax.frontend.nn.llm._vector_rows import copy_row, fill_row, zero_row  # noqa: PLC0415

    keys, values, key_heads = shape.keys, shape.values, shape.key_heads
    group = shape.heads // key_heads
    depth = math.gcd(keys, 2 * TILE)
    stage_unit, stage_gates = _staging(shape)
    keys_by_keys, queries_by_keys = _score("keys_by_keys", keys), _score("queries_by_keys", keys)
    keys_by_state = _product("keys_by_state", values, depth)
    keys_by_update = _product("keys_by_update", values)
    queries_by_state = _product("queries_by_state", values, depth)
    queries_by_update = _product("queries_by_update", values)
    updates_by_keys = _product("updates_by_keys", values)

    @T.macro
    def stage(t, x, a, b, a_log, dt_bias, first, rows, tiles, h):
        key: T.let[T.int64] = h // group * keys
        for i in T.serial(rows):
            stage_unit(t, t.Q, i, x, first + i, key, keys**-0.5)
            stage_unit(t, t.K, i, x, first + i, key_heads * keys + key, 1.0)
            stage_gates(t, i, first + i, h, a, b, a_log, dt_bias)
        # Rows behind the last token change nothing.
        for i in T.serial(rows, tiles * TILE):
            zero_row(t.Q, (i,), keys)
            zero_row(t.K, (i,), keys)
            t.decay[i] = T.float32(0)
            t.beta[i] = T.float32(0)
        for i in T.serial(1, tiles * TILE):
            t.decay[i] += t.decay[i - 1]
        for tile in T.serial(tiles):
            for lane in T.vectorized(TILE):
                t.kept[tile * TILE + lane] = exp2(t.decay[tile * TILE + lane])
        for i in T.serial(tiles * TILE):
            t.number[0] = exp2(t.decay[rows - 1] - t.decay[i])
            for k in T.serial(keys):
                t.K_left[k, i] = t.K[i, k] * t.number[0]

    @T.macro
    def weigh(t, tile, before, least):
        # Scores of tokens that come less than `least` before are hidden.
        for i in T.serial(TILE):
            for j in T.vectorized(TILE):
                t.scores[i, j] = T.Select(before * TILE + j + least <= tile * TILE + i, t.scores[i, j] * exp2(T.min(t.decay[tile * TILE + i] - t.decay[before * TILE + j], T.float32(0))), T.float32(0))

    @T.macro
    def find_updates(t, x, first, rows, tile, h):
        value: T.let[T.int64] = 2 * key_heads * keys + h * values
        for i in T.serial(TILE):
            # Behind the last token beta is 0.
            row: T.let[T.int32] = first + T.min(tile * TILE + i, rows - 1)
            fill_row(t.sums, (i,), values, lambda c: t.beta[tile * TILE + i] * x[row, value + c])
            fill_row(t.scaled, (i,), keys, lambda c: -t.beta[tile * TILE + i] * t.kept[tile * TILE + i] * t.K[tile * TILE + i, c])
        for k in T.serial(keys // depth):
            keys_by_state(t.sums, 0, t.scaled, 0, k * depth, t.S, k * depth)
        for i in T.serial(TILE):
            fill_row(t.scaled, (i,), keys, lambda c: -t.beta[tile * TILE + i] * t.K[tile * TILE + i, c])
        for before in T.serial(tile + 1):
            keys_by_keys(t.scores, t.scaled, 0, t.K, before * TILE)
            weigh(t, tile, before, 1)
            if before < tile:
                keys_by_update(t.sums, 0, t.scores, 0, 0, t.U, before * TILE)
        for i in T.serial(TILE):
            for j in T.serial(i):
                fill_row(t.sums, (i,), values, lambda c: t.sums[i, c] + t.scores[i, j] * t.sums[j, c])
            copy_row(t.U, (tile * TILE + i,), values, t.sums, (i,))

    @T.macro
    def answer(t, out, first, rows, tile, h):
        for i in T.serial(TILE):
            zero_row(t.sums, (i,), values)
            fill_row(t.scaled, (i,), keys, lambda c: t.kept[tile * TILE + i] * t.Q[tile * TILE + i, c])
        for k in T.serial(keys // depth):
            queries_by_state(t.sums, 0, t.scaled, 0, k * depth, t.S, k * depth)
        for before in T.serial(tile + 1):
            queries_by_keys(t.scores, t.Q, tile * TILE, t.K, before * TILE)
            weigh(t, tile, before, 0)
            queries_by_update(t.sums, 0, t.scores, 0, 0, t.U, before * TILE)
        for i in T.serial(T.min(rows - tile * TILE, TILE)):
            fill_row(out, (first + tile * TILE + i, h), values, lambda c: t.sums[i, c])

    @T.macro
    def advance(t, rows, tiles):
        for k in T.serial(keys):
            fill_row(t.S, (k,), values, lambda c: t.kept[rows - 1] * t.S[k, c])
        for k in T.serial(keys // TILE):
            for tile in T.serial(tiles):
                updates_by_keys(t.S, k * TILE, t.K_left, k * TILE, tile * TILE, t.U, tile * TILE)

    @T.macro
    def read_chunk(t, x, a, b, a_log, dt_bias, out, first, rows, h):
        tiles: T.let[T.int32] = T.ceildiv(rows, TILE)
        stage(t, x, a, b, a_log, dt_bias, first, rows, tiles, h)
        for tile in T.serial(tiles):
            find_updates(t, x, first, rows, tile, h)
            answer(t, out, first, rows, tile, h)
        advance(t, rows, tiles)

    return read_chunk


@functools.cache
def _delta(shape: DeltaShape, dtype: str) -> tirx.PrimFunc:
    from tvm.relax.frontend.nn.llm._vector_rows import fill_row  # noqa: PLC0415

    keys, values, heads, channels = shape.keys, shape.values, shape.heads, shape.channels
    layer_floats, lanes = shape.floats, math.gcd(values, LANES)
    read_one, read_chunk = _one_token(shape), _chunk_macro(shape)

    @T.prim_func(private=True, s_tir=True)
    def gated_delta_rule(var_x: T.handle, var_a: T.handle, var_b: T.handle, var_a_log: T.handle, var_dt_bias: T.handle, var_sequences: T.handle, layer: T.int64, var_states: T.handle, var_out: T.handle):
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, "tirx.is_scheduled": True, "mlc_rvv.compact": True})
        length, batch, slots, floats = T.int64(), T.int64(), T.int64(), T.int64()
        x = T.match_buffer(var_x, (length, channels), "float32")
        a = T.match_buffer(var_a, (length, heads), dtype)
        b = T.match_buffer(var_b, (length, heads), dtype)
        a_log = T.match_buffer(var_a_log, (heads,), "float32")
        dt_bias = T.match_buffer(var_dt_bias, (heads,), "float32")
        sequences = T.match_buffer(var_sequences, (batch, 2), "int32")
        states = T.match_buffer(var_states, (slots, floats), "float32")
        out = T.match_buffer(var_out, (length, heads, values), "float32")
        for task in T.parallel(batch * heads):
            with T.sblock("head"):
                T.reads()
                T.writes()
                t = T.meta_var(_Chunk(shape))
                n: T.let[T.int64] = task // heads
                h: T.let[T.int64] = task % heads
                slot: T.let[T.int32] = sequences[n, 0]
                base: T.let[T.int64] = layer * layer_floats + h * (keys * values)
                first: T.let[T.int32] = T.if_then_else(n > 0, sequences[T.max(n - 1, 0), 1], 0)
                end: T.let[T.int32] = sequences[n, 1]
                if end - first == 1:
                    read_one(t, x, a, b, a_log, dt_bias, states, slot, base, out, first, h)
                else:
                    for k in T.serial(keys):
                        fill_row(t.S, (k,), values, lambda c: states[slot, base + k * values + c])
                    for chunk in T.serial(T.ceildiv(end - first, CHUNK)):
                        begin: T.let[T.int32] = first + chunk * CHUNK
                        read_chunk(t, x, a, b, a_log, dt_bias, out, begin, T.min(end - begin, CHUNK), h)
                    for k in T.serial(keys):
                        for block in T.serial(values // lanes):
                            for lane in T.vectorized(lanes):
                                states[slot, base + k * values + block * lanes + lane] = t.S[k, block * lanes + lane]

    return gated_delta_rule
