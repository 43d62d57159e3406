# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings with the angles of a position worked out once, in vectors.

TVM's ``fused_rope`` (``llama_rope_with_position_map``) asks libm for a power, a sine and a cosine
for every element of every head, although they depend on nothing but position and feature.
:class:`VectorizeRotary` recognises the function, works out the powers at compile time, sine and
cosine once a position as arithmetic, and rotates the heads in vectors. Scalings of the frequency
are kept, whatever they are (llama3, yarn), as long as they do not depend on the position nor, as
longrope's, on a table at run time; pairs are halves of a head apart, or neighbours (gptj).

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm_ffi import structural_equal

from . import vector_math
from .each_function import change_functions
from .vector_target import vectors_of

logger = logging.getLogger(__name__)

BLOCK = "llama_fused_rope"


@tvm.transform.module_pass(opt_level=0, name="VectorizeRotary")
class VectorizeRotary:
    """Rewrites rotary embeddings for CPUs with vectors; the identity on other targets."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of a module that apply rotary embeddings."""
        vectors = vectors_of(self.target)
        if vectors is None:
            return mod

        def change(name: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
            if not _blocks_of(func):
                return None
            try:
                return vectorize_rotary(func, vectors.most_with_math)
            except Unlike as reason:
                logger.warning("%s is left as it is: %s", name, reason)
                return None

        return change_functions(mod, change)


class Unlike(Exception):
    """The function is not the one that is known; the message says in what."""


@dataclass(frozen=True)
class Rotary:
    """What a fused_rope does.

    Attributes:
        q_heads, kv_heads, dim: shape of the heads.
        rotary_dim: features that are turned, the first ones.
        dtype: of all data.
        angle: of a position and the table's entry for a feature, both expressions.
        table: float32 [rotary_dim / 2], or [rotary_dim] where the features of a pair are turned
            by different angles: what the angle needs to know of a feature.
        neighbours: whether features 2 i and 2 i + 1 are a pair (GPT-J), or i and
            i + rotary_dim / 2.
    """

    q_heads: int
    kv_heads: int
    dim: int
    rotary_dim: int
    dtype: str
    angle: Callable[[Any, Any], Any]
    table: np.ndarray
    neighbours: bool


def _blocks_of(func: tirx.PrimFunc) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock) and node.name_hint == BLOCK:
            found.append(node)

    tirx.stmt_functor.post_order_visit(func.body, visit)
    return found


def vectorize_rotary(func: tirx.PrimFunc, most: int) -> tirx.PrimFunc:
    """Rewrite one function.

    Args:
        func: TVM's fused_rope.
        most: elements that a vector may have.

    Raises:
        Unlike: the function is another one.
    """
    rotary = read_rotary(func)
    attrs = {**dict(func.attrs or {}), "tirx.is_scheduled": True}
    return make_rotary(rotary, math.gcd(rotary.rotary_dim // 2, most)).with_attrs(attrs)


def read_rotary(func: tirx.PrimFunc) -> Rotary:
    """Read what a function does.

    Raises:
        Unlike: it is not fused_rope, or its frequencies depend on the position.
    """
    blocks = _blocks_of(func)
    if len(blocks) != 1:
        raise Unlike("it chooses between tables at run time, as longrope does")
    block = blocks[0]
    if len(func.params) != 6 or len(block.iter_vars) != 3:
        raise Unlike("its parameters are others")
    x, positions, q, k, v, apply_rope = func.params
    if any(str(buffer.dtype) != "float32" for buffer in (x, q, k, v)):
        raise Unlike(f"it turns {x.dtype}")
    (_, q_heads, dim), (_, kv_heads, _) = _shape(q), _shape(k)
    s, h, d = (axis.var for axis in block.iter_vars)
    body = block.body
    try:
        value = body.then_case.value  # if_then_else(apply, let freq = angle in turned, x)
        rotary_dim = int(value.args[0].b.b)
        lets, half = _lets(value.args[1]), rotary_dim // 2
        angle = lets[-1].value
    except (AttributeError, IndexError, TypeError) as error:
        raise Unlike("its body is another") from error

    def turned(head: Any, neighbours: bool) -> Any:
        # Variables of its own in each branch, as a variable has one definition.
        fresh = {let.var: tirx.Var(let.var.name, "float32") for let in lets}
        freq = fresh[lets[-1].var]
        first = tirx.EQ(d % 2, tirx.IntImm("int32", 0)) if neighbours else d < half
        apart = 1 if neighbours else half
        other = tirx.if_then_else(first, -x[s, head, d + apart], x[s, head, d - apart])
        turn = tirx.cos(freq) * x[s, head, d] + tirx.sin(freq) * other
        for let in reversed(lets):
            turn = tirx.Let(fresh[let.var], _substitute(let.value, fresh), turn)
        wanted = tirx.And(apply_rope > tirx.IntImm("int64", 0), d < rotary_dim)
        return tirx.if_then_else(wanted, turn, x[s, head, d])

    def expected(neighbours: bool) -> Any:
        return tirx.IfThenElse(
            h < q_heads,
            tirx.BufferStore(q, turned(h, neighbours), [s, h, d]),
            tirx.IfThenElse(
                h < q_heads + kv_heads,
                tirx.BufferStore(k, turned(h, neighbours), [s, h - q_heads, d]),
                tirx.BufferStore(v, x[s, h, d], [s, h - (q_heads + kv_heads), d]),
            ),
        )

    kinds = [pairing for pairing in (False, True) if structural_equal(body, expected(pairing))]
    if str(x.dtype) != "float32" or not kinds:
        raise Unlike("its body is another")
    for let in reversed(lets[:-1]):
        angle = _substitute(angle, {let.var: let.value})
    position = tirx.BufferLoad(positions, [s])
    angle_of, table = _split(angle, position, d, 2 * half)
    distinct = _distinct(table, half, kinds[0])
    return Rotary(q_heads, kv_heads, dim, rotary_dim, "float32", angle_of, distinct, kinds[0])


def _lets(value: Any) -> list[Any]:
    """The definitions around a value, from the outermost to the innermost, at least one."""
    found = []
    while isinstance(value, tirx.Let):
        found.append(value)
        value = value.body
    return found


def _substitute(value: Any, by: dict[Any, Any]) -> Any:
    return tirx.stmt_functor.substitute(tirx.Evaluate(value), by).value


def _distinct(table: np.ndarray, half: int, neighbours: bool) -> np.ndarray:
    """The table without what it says twice.

    Raises:
        Unlike: neighbours are turned by different angles.
    """
    first, second = (table[::2], table[1::2]) if neighbours else (table[:half], table[half:])
    if np.array_equal(first, second):
        return first
    if neighbours:
        raise Unlike("the features of a pair are turned by different angles")
    return table


def _shape(buffer: Any) -> list[Any]:
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in buffer.shape]


def _split(angle: Any, position: Any, d: Any, features: int) -> tuple[Any, np.ndarray]:
    """The angle as an expression of position and a table over features.

    Raises:
        Unlike: more than one part of it depends on the feature, or one cannot be worked out.
    """
    parts = _without_loads(angle, d)
    if not parts:
        raise Unlike("its angle does not depend on the feature")
    whole = parts[0]
    table = np.array([evaluate(whole, {d: i}) for i in range(features)], np.float32)
    place, entry = tirx.Var("position", "int32"), tirx.Var("entry", "float32")

    def replace(node: Any) -> Any:
        if structural_equal(node, whole):
            return entry
        return place if structural_equal(node, position) else None

    names = ["ir.Call", "tirx.BufferLoad", *(f"tirx.{kind.__name__}" for kind in _BINARY)]
    form = tirx.stmt_functor.ir_transform(tirx.Evaluate(angle), None, replace, names).value
    if _uses(form, d):
        raise Unlike("its angle depends on the feature in more than one place")
    return lambda p, e: _substitute(form, {place: p, entry: e}), table


def _without_loads(node: Any, d: Any) -> list[Any]:
    """The largest parts of an expression that depend on d and load nothing."""
    if not _uses(node, d):
        return []
    if not _has_loads(node):
        return [node]
    inner = list(node.args) if isinstance(node, tvm.ir.Call) else []
    inner += [getattr(node, name) for name in ("a", "b", "value") if hasattr(node, name)]
    return [part for one in inner for part in _without_loads(one, d)]


def _uses(node: Any, var: Any) -> bool:
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(
        node, lambda inner: found.append(inner) if inner.same_as(var) else None
    )
    return bool(found)


def _has_loads(node: Any) -> bool:
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(
        node, lambda inner: found.append(inner) if isinstance(inner, tirx.BufferLoad) else None
    )
    return bool(found)


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Div: lambda a, b: a / b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Min: min,
    tirx.Max: max,
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.EQ: lambda a, b: a == b,
}


def evaluate(node: Any, values: dict[Any, int]) -> Any:
    """The value of an expression, floats in double precision.

    Raises:
        Unlike: it holds an operation that is not known.
    """
    for var, value in values.items():
        if node.same_as(var):
            return value
    if isinstance(node, tirx.IntImm | tirx.FloatImm):
        return node.value
    if isinstance(node, tirx.Cast):
        value = evaluate(node.value, values)
        return float(value) if "float" in str(node.ty.dtype) else int(value)
    if isinstance(node, tvm.ir.Call) and node.op.name == "tirx.pow":
        base, exponent = (evaluate(argument, values) for argument in node.args)
        # Models without rotary embeddings still make the function, and say so by a base of -1.
        if base <= 0:
            raise Unlike(f"its angle has a power of {base}")
        return math.pow(base, exponent)
    if isinstance(node, tvm.ir.Call) and node.op.name == "tirx.if_then_else":
        condition, one, other = node.args
        return evaluate(one if evaluate(condition, values) else other, values)
    if isinstance(node, tirx.Select):
        chosen = node.true_value if evaluate(node.condition, values) else node.false_value
        return evaluate(chosen, values)
    operation = _BINARY.get(type(node))
    if operation is None:
        raise Unlike(f"its angle has a part that cannot be worked out: {node}")
    return operation(evaluate(node.a, values), evaluate(node.b, values))


def make_rotary(rotary: Rotary, lanes: int) -> tirx.PrimFunc:
    """The function of the same interface in vectors of so many lanes."""
    q_heads, kv_heads, dim, dtype = rotary.q_heads, rotary.kv_heads, rotary.dim, rotary.dtype
    half, heads = rotary.rotary_dim // 2, rotary.q_heads + 2 * rotary.kv_heads
    rest = dim - 2 * half
    # Where the angles of the second features of pairs begin.
    entries = len(rotary.table)
    second = entries - half
    copied = max(math.gcd(dim, rest or dim, 2 * lanes), 1)

    def fill(table):
        for index, entry in enumerate(rotary.table):
            T.buffer_store(table, T.float32(float(entry)), [index])

    def sin_at(position, entry):
        return vector_math.sin_cos(rotary.angle(position, entry))[0]

    def cos_at(position, entry):
        return vector_math.sin_cos(rotary.angle(position, entry))[1]

    @T.macro
    def copy(x, out, s, h_in, h_out, first):
        for io in T.serial((dim - first) // copied):
            for i in T.vectorized(copied):
                out[s, h_out, first + io * copied + i] = x[s, h_in, first + io * copied + i]

    @T.macro
    def turn_neighbours(x, out, cos, sin, s, h_in, h_out):
        # No vectors of every other element in TVM: LLVM makes what it can of these.
        for i in T.serial(half):
            out[s, h_out, 2 * i] = cos[i] * x[s, h_in, 2 * i] - sin[i] * x[s, h_in, 2 * i + 1]
            out[s, h_out, 2 * i + 1] = cos[i] * x[s, h_in, 2 * i + 1] + sin[i] * x[s, h_in, 2 * i]
        copy(x, out, s, h_in, h_out, 2 * half)

    @T.macro
    def turn_halves(x, out, cos, sin, s, h_in, h_out):
        for io in T.serial(half // lanes):
            for i in T.vectorized(lanes):
                out[s, h_out, io * lanes + i] = (
                    cos[io * lanes + i] * x[s, h_in, io * lanes + i]
                    - sin[io * lanes + i] * x[s, h_in, half + io * lanes + i]
                )
                out[s, h_out, half + io * lanes + i] = (
                    cos[second + io * lanes + i] * x[s, h_in, half + io * lanes + i]
                    + sin[second + io * lanes + i] * x[s, h_in, io * lanes + i]
                )
        copy(x, out, s, h_in, h_out, 2 * half)

    turn = turn_neighbours if rotary.neighbours else turn_halves

    @T.prim_func(s_tir=True)
    def fused_rope(
        var_qkv: T.handle,
        var_position_map: T.handle,
        var_q: T.handle,
        var_k: T.handle,
        var_v: T.handle,
        apply_rope: T.int64,
    ):
        seq_len = T.int32()
        position_map_elem_offset = T.int32()
        qkv = T.match_buffer(var_qkv, (seq_len, heads, dim), dtype)
        q = T.match_buffer(var_q, (seq_len, q_heads, dim), dtype)
        k = T.match_buffer(var_k, (seq_len, kv_heads, dim), dtype)
        v = T.match_buffer(var_v, (seq_len, kv_heads, dim), dtype)
        position_map = T.match_buffer(
            var_position_map, (seq_len,), "int32", elem_offset=position_map_elem_offset
        )
        for s in T.parallel(seq_len):
            with T.sblock(BLOCK):
                T.reads()
                T.writes()
                table = T.sblock_alloc_buffer((entries,), "float32")
                cos = T.sblock_alloc_buffer((entries,), "float32")
                sin = T.sblock_alloc_buffer((entries,), "float32")
                if apply_rope > T.int64(0):
                    fill(table)
                    for io in T.serial(entries // lanes):
                        for i in T.vectorized(lanes):
                            sin[io * lanes + i] = sin_at(position_map[s], table[io * lanes + i])
                            cos[io * lanes + i] = cos_at(position_map[s], table[io * lanes + i])
                    for h in T.serial(q_heads):
                        turn(qkv, q, cos, sin, s, h, h)
                    for h in T.serial(kv_heads):
                        turn(qkv, k, cos, sin, s, q_heads + h, h)
                else:
                    for h in T.serial(q_heads):
                        copy(qkv, q, s, h, h, 0)
                    for h in T.serial(kv_heads):
                        copy(qkv, k, s, q_heads + h, h, 0)
                for h in T.serial(kv_heads):
                    copy(qkv, v, s, q_heads + kv_heads + h, h, 0)

    return fused_rope
