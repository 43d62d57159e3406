# SPDX-License-Identifier: Apache-2.0
"""Names that code written for TVM 0.26 uses mean the same on every release."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from tvm_ffi import structural_equal

pytestmark = pytest.mark.release

LOADS = """
@T.prim_func(s_tir=True)
def twice(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("twice"):
            v = T.axis.spatial(8, i)
            B[v] = A[v] * T.float32(2) + A[v]
"""


@pytest.fixture
def function(tvm: ModuleType) -> Any:
    """B = A * 2 + A, element by element."""
    from tvm.script import from_source  # noqa: PLC0415 - the patched tree's

    return from_source(LOADS, check_well_formed=False)


def collect(function: Any) -> list[Any]:
    from tvm import tirx  # noqa: PLC0415

    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(function.body, found.append)
    return found


def test_loads_are_asked_about_and_made(tvm: ModuleType, function: Any) -> None:
    from tvm import ir, tirx  # noqa: PLC0415

    loads = [node for node in collect(function) if isinstance(node, tirx.BufferLoad)]
    assert [str(load.buffer.name) for load in loads] == ["A", "A"]
    assert structural_equal(tirx.BufferLoad(loads[0].buffer, loads[0].indices), loads[0])
    assert not isinstance(loads[0].buffer, tirx.BufferLoad)
    (block,) = (n for n in collect(function) if isinstance(n, tirx.SBlock) and n.iter_vars)
    assert [str(region.buffer.name) for region in block.reads] == ["A"]
    assert isinstance(block.reads[0].region[0], ir.Range)


def test_a_walk_meets_each_node_once(tvm: ModuleType, function: Any) -> None:
    from tvm import tirx  # noqa: PLC0415

    nodes = collect(function)
    kinds = [type(node).__name__ for node in nodes]
    assert kinds.count("BufferStore") == kinds.count("Add") == kinds.count("For") == 1
    assert kinds.index("Mul") < kinds.index("Add") < kinds.index("BufferStore")
    shared = tirx.Var("n", "int32") * 3
    found: list[Any] = []
    tirx.stmt_functor.post_order_visit(tirx.Evaluate(shared + shared), found.append)
    assert [type(node).__name__ for node in found].count("Mul") == 1


def test_a_walk_down_stops_at_the_named_nodes(tvm: ModuleType, function: Any) -> None:
    from tvm import tirx  # noqa: PLC0415

    for stop, expected in ((tirx.Mul, {"Add", "Mul"}), (tirx.Add, {"Add"})):
        met: set[str] = set()

        def enter(node: Any, stop: Any = stop, met: set[str] = met) -> bool:
            if isinstance(node, tirx.Add | tirx.Mul):
                met.add(type(node).__name__)
            return not isinstance(node, stop)

        tirx.stmt_functor.pre_order_visit(function.body, enter)
        assert met == expected


def test_nodes_are_replaced(tvm: ModuleType, function: Any) -> None:
    from tvm import tirx  # noqa: PLC0415

    def one(load: Any) -> Any:
        return tirx.FloatImm("float32", 1.0)

    def blind(loop: Any) -> Any:
        return tirx.Evaluate(0) if isinstance(loop, tirx.For) else None

    transform = tirx.stmt_functor.ir_transform
    changed = transform(function.body, None, one, ["tirx.BufferLoad"])
    kinds = collect(function.with_body(changed))
    assert not [node for node in kinds if isinstance(node, tirx.BufferLoad)]
    kept = transform(function.body, None, lambda _: None, ["tirx.BufferLoad"])
    assert structural_equal(kept, function.body)
    gone = collect(function.with_body(transform(function.body, blind, None, ["tirx.For"])))
    assert "BufferStore" not in [type(node).__name__ for node in gone]
    n, m = tirx.Var("n", "int32"), tirx.Var("m", "int32")
    assert structural_equal(tirx.stmt_functor.substitute(n + 1, {n: m}), m + 1)
    three = tirx.IntImm("int32", 3)
    assert structural_equal(tirx.stmt_functor.substitute(n * m, {n: 3}), three * m)


def test_literals_of_relax(tvm: ModuleType) -> None:
    import numpy as np  # noqa: PLC0415
    from tvm import relax  # noqa: PLC0415

    tensor = relax.Constant(tvm.runtime.tensor(np.ones(2, "float32")))
    kind, text = relax.DataTypeImm("float16"), relax.StringImm("text")
    assert isinstance(tensor, relax.Constant) and not isinstance(kind, relax.Constant)
    assert isinstance(kind, relax.DataTypeImm) and not isinstance(tensor, relax.DataTypeImm)
    assert isinstance(text, relax.StringImm) and text.value == "text"
    assert str(kind.value) == "float16"
    assert tvm.arith.Analyzer().simplify(tvm.tirx.IntImm("int32", 1) + 1) == 2
