# SPDX-License-Identifier: Apache-2.0
"""Pattern of TVM's ``fused_rope`` (``llama_rope_with_position_map``), and its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from ..half.compute_in_float32 import in_float32, widened_buffer
from ..half.dtypes import HALF, SINGLE
from ..tir import PatternMismatch, blocks_named, nodes_of, substitute, uses

BLOCK = "llama_fused_rope"


@dataclass(frozen=True)
class Rotary:
    """Parameters of a rotary embedding.

    Attributes:
        q_heads, kv_heads, dim: shape of the heads.
        rotary_dim: features that are turned, the first ones.
        dtype: of all data; angles are computed in float32.
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


def read_rotary(func: tirx.PrimFunc) -> Rotary:
    """Read the parameters of a rotary embedding from its function.

    Raises:
        PatternMismatch: the function is not fused_rope, or its frequencies depend on the position.
    """
    blocks = blocks_named(func, BLOCK)
    if len(blocks) != 1:
        raise PatternMismatch("it chooses between tables at run time, as longrope does")
    block = blocks[0]
    numbers = [param for param in func.params if isinstance(param.ty, tvm.ir.PrimType)]
    buffers = [param for param in func.params if not isinstance(param.ty, tvm.ir.PrimType)]
    if (len(buffers), len(numbers), len(block.iter_vars)) != (5, 1, 3):
        raise PatternMismatch("its parameters are not those of fused_rope")
    (x, positions, q, k, v), (apply_rope,) = buffers, numbers
    dtype, body = str(x.dtype), block.body
    if dtype not in (HALF, SINGLE) or any(str(b.dtype) != dtype for b in (q, k, v)):
        raise PatternMismatch(f"it rotates {dtype}, not float16 or float32")
    if dtype == HALF:
        # Halves are computed with in float32, as if they were float32.
        wide = {buffer: widened_buffer(buffer) for buffer in (x, q, k, v)}
        body, (x, q, k, v) = in_float32(body, wide), wide.values()
    (_, q_heads, dim), (_, kv_heads, _) = _shape(q), _shape(k)
    s, h, d = (axis.var for axis in block.iter_vars)
    try:
        value = body.then_case.value  # if_then_else(apply, let freq = angle in turned, x)
        rotary_dim = int(value.args[0].b.b)
        lets, half = _lets(value.args[1]), rotary_dim // 2
        angle = lets[-1].value
    except (AttributeError, IndexError, TypeError) as error:
        raise PatternMismatch("its body is not that of fused_rope") from error

    def turned(head: Any, neighbours: bool) -> Any:
        # Variables of its own in each branch, as a variable has one definition.
        fresh = {let.var: tirx.Var(let.var.name, "float32") for let in lets}
        freq = fresh[lets[-1].var]
        first = tirx.EQ(d % 2, tirx.IntImm("int32", 0)) if neighbours else d < half
        apart = 1 if neighbours else half
        other = tirx.if_then_else(first, -x[s, head, d + apart], x[s, head, d - apart])
        turn = tirx.cos(freq) * x[s, head, d] + tirx.sin(freq) * other
        for let in reversed(lets):
            turn = tirx.Let(fresh[let.var], substitute(let.value, fresh), turn)
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
    if not kinds:
        raise PatternMismatch("its body is not that of fused_rope")
    for let in reversed(lets[:-1]):
        angle = substitute(angle, {let.var: let.value})
    position = tirx.BufferLoad(positions, [s])
    angle_of, table = _split(angle, position, d, 2 * half)
    distinct = _distinct(table, half, kinds[0])
    return Rotary(q_heads, kv_heads, dim, rotary_dim, dtype, angle_of, distinct, kinds[0])


def _lets(value: Any) -> list[Any]:
    """Return the Let bindings around a value, outermost first; at least one."""
    found = []
    while isinstance(value, tirx.Let):
        found.append(value)
        value = value.body
    return found


def _distinct(table: np.ndarray, half: int, neighbours: bool) -> np.ndarray:
    """Return one entry for each pair of features if both have the same, else the whole table.

    Raises:
        PatternMismatch: neighbours are turned by different angles.
    """
    first, second = (table[::2], table[1::2]) if neighbours else (table[:half], table[half:])
    if np.array_equal(first, second):
        return first
    if neighbours:
        raise PatternMismatch("the features of a pair are turned by different angles")
    return table


def _shape(buffer: Any) -> list[Any]:
    return [int(e) if isinstance(e, tirx.IntImm) else e for e in buffer.shape]


def _split(angle: Any, position: Any, d: Any, features: int) -> tuple[Any, np.ndarray]:
    """Split an angle into an expression of the position and a table over features.

    Raises:
        PatternMismatch: several parts of it depend on the feature, or one cannot be worked out.
    """
    parts = _without_loads(angle, d)
    if not parts:
        raise PatternMismatch("its angle does not depend on the feature")
    whole = parts[0]
    table = np.array([evaluate(whole, {d: i}) for i in range(features)], np.float32)
    place, entry = tirx.Var("position", "int32"), tirx.Var("entry", "float32")

    def replace(node: Any) -> Any:
        if structural_equal(node, whole):
            return entry
        return place if structural_equal(node, position) else None

    names = ["ir.Call", "tirx.BufferLoad", *(f"tirx.{kind.__name__}" for kind in _BINARY)]
    form = tirx.stmt_functor.ir_transform(tirx.Evaluate(angle), None, replace, names).value
    if uses(form, d):
        raise PatternMismatch("its angle depends on the feature in more than one place")
    return lambda p, e: substitute(form, {place: p, entry: e}), table


def _without_loads(node: Any, d: Any) -> list[Any]:
    """Return the largest subexpressions that depend on d and load nothing."""
    if not uses(node, d):
        return []
    if not nodes_of(node, tirx.BufferLoad):
        return [node]
    inner = list(node.args) if isinstance(node, tvm.ir.Call) else []
    inner += [getattr(node, name) for name in ("a", "b", "value") if hasattr(node, name)]
    return [part for one in inner for part in _without_loads(one, d)]


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
    """Evaluate an expression; floats in double precision.

    Raises:
        PatternMismatch: the expression has an unknown operation, or a power of a base up to 0.
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
        # Models without rotary embeddings still have the function, with a base of -1.
        if base <= 0:
            raise PatternMismatch(f"its angle has a power of {base}")
        return math.pow(base, exponent)
    if isinstance(node, tvm.ir.Call) and node.op.name == "tirx.if_then_else":
        condition, one, other = node.args
        return evaluate(one if evaluate(condition, values) else other, values)
    if isinstance(node, tirx.Select):
        chosen = node.true_value if evaluate(node.condition, values) else node.false_value
        return evaluate(chosen, values)
    operation = _BINARY.get(type(node))
    if operation is None:
        raise PatternMismatch(f"its angle has a part that cannot be worked out: {node}")
    return operation(evaluate(node.a, values), evaluate(node.b, values))
