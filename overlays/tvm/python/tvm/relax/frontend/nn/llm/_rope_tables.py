# SPDX-License-Identifier: Apache-2.0
# TIR of this width reads better on one line than wrapped, as in the modules next to this one.
# ruff: noqa: E501
# fmt: off
"""RoPE inside attention kernels (``rotary_mode == 1``), by tables of cosines and sines.

Upstream's ``_rope`` in ``_kernel_common.py`` asks libm for powers, sines and cosines for each element
that it rotates. An angle is a position times a frequency, whatever the kind of scaling: here
frequencies are worked out once a call, by libm, as the power's last bit counts at large positions;
cosines and sines once a position, as arithmetic in vectors.
"""

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder

from ._vector_math import sin_cos
from ._vector_rows import columns
from .position_embedding import switch_rope_freq_func

# Kinds of scaling whose frequencies are those of the first half of a head, twice.
REPEATING = (None, "llama3", "longrope")


def _frequency(d_idx, d: int, theta, rope_scaling: dict[str, Any]):
    """Return the angle by which dimension d_idx is turned at position 1."""
    cosine, _, bindings = switch_rope_freq_func(rope_scaling)(T.float32(1), d_idx, d, theta, "float32")
    value = _call(cosine, "tirx.cos").args[0]
    for variable, meaning in bindings.items():
        value = tirx.Let(variable, meaning, value)
    return value


def _factor(kind: int, angle, d: int, rope_scaling: dict[str, Any]):
    """Return the cosine (kind 0) or sine (kind 1) of an angle, times the factor of the kind of scaling."""
    name = ("tirx.cos", "tirx.sin")[kind]
    factor = switch_rope_freq_func(rope_scaling)(T.float32(1), T.int32(0), d, T.float32(1), "float32")[kind]
    function = _call(factor, name)
    by_arithmetic = sin_cos(angle)[1 - kind]
    return tirx.stmt_functor.ir_transform(
        tirx.Evaluate(factor), None, lambda node: by_arithmetic if node.same_as(function) else None, ["ir.Call"]
    ).value


def _call(expression, name: str):
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(
        expression, lambda node: found.append(node) if isinstance(node, ir.Call) and node.op.name == name else None
    )
    if len(found) != 1:
        raise ValueError(f"a factor of RoPE has {len(found)} calls of {name}, expected 1: {expression}")
    return found[0]


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Cosines and sines of the angles of d dimensions, a row for each position that is asked for.

    Attributes:
        cos: [rows, d], float32; without rows where the kernel does not apply RoPE.
        sin: of the same shape.
        d: dimensions of what is turned.
        dtype: to which a turned element is rounded.
    """

    cos: Any
    sin: Any
    d: int
    dtype: str

    def turn_row(self, to, at: tuple, x, row: tuple, position, factor=None) -> None:
        """Write the row `row` of x after RoPE, as float32 and times a factor, to the row `at`.

        Args:
            to: buffer of float32.
            at: indices of the row that is written; the column comes behind them.
            x: buffer of queries or keys.
            row: indices of the row that is read, likewise.
            position: row of the table.
            factor: None for 1.
        """
        half = self.d // 2
        cos, sin = self.cos, self.sin

        def rounded(turned):
            element = T.cast(T.cast(turned, self.dtype), "float32")
            return element if factor is None else element * factor

        with columns(half) as (first, lane):
            c = first + lane
            low, high = (T.cast(x[(*row, c + begin)], "float32") for begin in (0, half))
            T.buffer_store(to, rounded(cos[position, c] * low - sin[position, c] * high), [*at, c])
            T.buffer_store(to, rounded(cos[position, c + half] * high + sin[position, c + half] * low), [*at, half + first + lane])


def rope_table(name: str, rotary_mode, rows, d: int, dtype: str) -> RopeTable:
    """Allocate a table, empty unless ``rotary_mode`` is 1; `name` begins the names of its buffers."""
    shape = (T.if_then_else(rotary_mode == 1, rows, 0), d)
    cos, sin = (IRBuilder.name(name + kind, T.sblock_alloc_buffer(shape, "float32")) for kind in ("cos", "sin"))
    return RopeTable(cos, sin, d, dtype)


def rope_macros(d: int, rope_scaling: dict[str, Any]) -> tuple:
    """Return fill_frequencies, which fills a table of d frequencies, and fill_rope, which fills one row of the tables of cosines and sines from it."""
    repeats = rope_scaling.get("rope_type") in REPEATING and d % 2 == 0
    distinct = d // 2 if repeats else d

    @T.macro
    def fill_frequencies(frequencies, theta):
        for c in T.serial(distinct):
            frequencies[c] = _frequency(c, d, theta, rope_scaling)
        for c in T.serial(d - distinct):
            frequencies[distinct + c] = frequencies[c]

    def fill_rope(cos, sin, row, position, frequencies, scale):
        with columns(d) as (first, lane):
            for kind, table in enumerate((cos, sin)):
                angle = T.cast(position[0], "float32") * scale * frequencies[first + lane]
                T.buffer_store(table, _factor(kind, angle, d, rope_scaling), [row, first + lane])

    return fill_frequencies, fill_rope


def table_macros(d: int, rope_scaling: dict[str, Any]) -> tuple:
    """Return fill_frequencies, and fill_table, which fills rows of a table, each at the position that a function of its number gives."""
    fill_frequencies, fill_rope = rope_macros(d, rope_scaling)

    @T.macro
    def fill_table(table, first, rows, position_of, frequencies, scale):
        for row in T.parallel(rows):
            with T.sblock("rope"):
                T.reads()
                T.writes()
                # In memory, as LLVM code generation fails on float expressions of an index about
                # whose range it knows something.
                position = T.sblock_alloc_buffer((1,), "int32")
                position[0] = position_of(row)
                fill_rope(table.cos, table.sin, first + row, position, frequencies, scale)

    return fill_frequencies, fill_table
