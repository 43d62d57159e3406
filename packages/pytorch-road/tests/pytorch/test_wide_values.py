# SPDX-License-Identifier: Apache-2.0
"""Indices are narrowed to 32 bits where a function computes with no values of 64."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

import tvm
from tvm import te, tirx

from crosslab.compile.pipeline import narrow_indices


def copied(dtype: str, rows: object) -> tirx.PrimFunc:
    x = te.placeholder((rows, 4), dtype, name="x")
    return te.create_prim_func([x, te.compute((rows, 4), lambda i, j: x[i, j], name="y")])


def index_types(function: tirx.PrimFunc) -> set[str]:
    found: set[str] = set()

    def visit(node: object) -> None:
        if isinstance(node, tirx.For):
            found.add(str(node.loop_var.ty))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


@pytest.mark.parametrize("varies", [False, True])
def test_indices_beside_values_of_64_bits_keep_their_width(varies: bool) -> None:
    rows = tirx.Var("rows", "int64") if varies else tirx.IntImm("int64", 3)
    functions = {dtype: copied(dtype, rows) for dtype in ("float32", "int64")}
    narrowed = narrow_indices()(tvm.IRModule(functions))
    kept = {dtype: index_types(narrowed[dtype]) for dtype in functions}
    assert kept["int64"] == index_types(functions["int64"])
    assert kept["float32"] != kept["int64"]
