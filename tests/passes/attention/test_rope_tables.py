# SPDX-License-Identifier: Apache-2.0
"""The tables of RoPE inside attention kernels, for kinds of scaling, against float64."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import host
from support.passes.linear import Array
from support.passes.rope_kinds import LLAMA3, YARN, frequencies

DIM = 64


@pytest.mark.parametrize("scaling", [LLAMA3, YARN], ids=lambda scaling: str(scaling["rope_type"]))
def test_tables_hold_the_scaled_angles(tvm: ModuleType, scaling: dict[str, Any]) -> None:
    from tvm.script import tirx as T  # noqa: N812, PLC0415 - the tree is on sys.path in a test

    tables = importlib.import_module("tvm.relax.frontend.nn.llm._rope_tables")
    fill_frequencies, fill_rope = tables.rope_macros(DIM, scaling)
    positions = np.unique(np.r_[:300, np.arange(0, 8193, 97), 8192]).astype(np.int32)
    rows = len(positions)

    @T.prim_func(s_tir=True)
    def main(
        at: T.Buffer((rows,), "int32"),
        cos: T.Buffer((rows, DIM), "float32"),
        sin: T.Buffer((rows, DIM), "float32"),
        theta: T.float32,
    ):
        with T.sblock("tables"):
            T.reads()
            T.writes()
            of_features = T.sblock_alloc_buffer((DIM,), "float32")
            position = T.sblock_alloc_buffer((1,), "int32")
            fill_frequencies(of_features, theta)
            for row in T.serial(rows):
                position[0] = at[row]
                fill_rope(cos, sin, row, position, of_features, T.float32(1))

    script = main.script()
    assert script.count("T.cos(") + script.count("T.sin(") == 0
    out = [tvm.runtime.tensor(np.full((rows, DIM), np.nan, np.float32)) for _ in range(2)]
    module = tvm.ir.IRModule({"main": main.with_attr("global_symbol", "main")})
    tvm.compile(module, host())["main"](tvm.runtime.tensor(positions), *out, 1e4)
    angle = positions[:, None] * frequencies(scaling, DIM)
    # An angle is good to the rounding of a frequency, of the product, and of the result.
    allowed = np.abs(angle) * 2**-22 + 2**-21
    for got, want in zip(out, (np.cos(angle), np.sin(angle)), strict=True):
        assert (np.abs(got.numpy() - want) <= allowed).all()


def _angles(scaling: dict[str, Any]) -> Array:
    """Of every feature at position 1, as TVM works them out."""
    tvm, te, tirx = (importlib.import_module(name) for name in ("tvm", "tvm.te", "tvm.tirx"))
    module = importlib.import_module("tvm.relax.frontend.nn.llm.position_embedding")
    frequency = module.switch_rope_freq_func(scaling)

    def angle(feature: Any) -> Any:
        named = frequency(tirx.const(1, "float32"), feature, DIM, 1e4, "float32")[2]
        return next(iter(named.values()))

    out = tvm.runtime.tensor(np.zeros(DIM, np.float32))
    tvm.compile(te.create_prim_func([te.compute((DIM,), angle, name="angles")]), "llvm")(out)
    return np.asarray(out.numpy())


def test_yarn_turns_both_features_of_a_pair_alike(tvm: ModuleType) -> None:
    first, second = np.split(_angles(YARN), 2)
    assert np.array_equal(first, second)
    assert np.allclose(first, frequencies(YARN, DIM)[: DIM // 2], rtol=1e-5)


@pytest.mark.parametrize("told", [{}, {"truncate": True}, {"truncate": False}], ids=str)
def test_yarn_rounds_its_range_unless_told_not_to(tvm: ModuleType, told: dict[str, bool]) -> None:
    scaling = YARN | told
    got = _angles(scaling)
    assert np.allclose(got, frequencies(scaling, DIM), rtol=1e-5)
    other = YARN | {"truncate": not told.get("truncate", True)}
    assert not np.allclose(got, frequencies(other, DIM), rtol=1e-3)
