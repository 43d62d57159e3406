# SPDX-License-Identifier: Apache-2.0
"""Prefill kernels that the KV cache of a model for a CPU registers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from support.passes.kv_cache_ir import kv_cache_module

pytestmark = [pytest.mark.release, pytest.mark.slow]

TILED = {
    "tir_attention_prefill_cpu": "batch_prefill_paged_kv_cpu",
    "tir_attention_prefill_cpu_sliding_window": "batch_prefill_paged_kv_cpu_sliding_window",
    "tir_attention_prefill_ragged_cpu": None,
}


def block_shapes(function: Any) -> dict[str, list[int]]:
    """Extents of the axes of each product block, by its name."""
    from tvm import tirx  # noqa: PLC0415

    found: dict[str, list[int]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock) and node.name_hint in ("S_gemm", "O_gemm"):
            found[node.name_hint] = [int(axis.dom.extent) for axis in node.iter_vars]

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


RISCV64 = {
    "kind": "llvm",
    "mtriple": "riscv64-unknown-linux-gnu",
    "mcpu": "generic-rv64",
    "mabi": "lp64d",
    "mattr": ["+m", "+a", "+f", "+d", "+c", "+zve64d", "+zvl256b"],
    "vector-width": 256,
}


TARGETS = {"host": {"kind": "llvm"}, "rvv256": RISCV64, "rvv1024": RISCV64 | {"vector-width": 1024}}


@pytest.mark.parametrize(("target", "kv_tile"), [("host", 16), ("rvv256", 16), ("rvv1024", 32)])
def test_tile_follows_the_vector_width(tvm: ModuleType, target: str, kv_tile: int) -> None:
    from tvm.relax.frontend.nn.llm._prefill_tiled_cpu import (  # noqa: PLC0415
        PrefillTile,
        prefill_tile,
    )

    assert prefill_tile(tvm.target.Target(TARGETS[target]), 64) == PrefillTile(16, kv_tile)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_kv_cache_registers_the_tiled_kernels(tvm: ModuleType, target: dict[str, Any]) -> None:
    from tvm.relax.frontend.nn.llm._prefill_tiled_cpu import prefill_tile  # noqa: PLC0415

    chosen = tvm.target.Target(target)
    module = kv_cache_module(tvm, chosen)
    tile = prefill_tile(chosen, 48)
    for name, symbol in TILED.items():
        function = module[name]
        assert block_shapes(function) == {
            "S_gemm": [tile.q_tile, tile.kv_tile, 48],
            "O_gemm": [tile.q_tile, 48, tile.kv_tile],
        }
        if symbol is not None:
            assert function.attrs["global_symbol"] == symbol


def test_a_gpu_keeps_upstreams_kernels(tvm: ModuleType) -> None:
    module = kv_cache_module(tvm, tvm.target.Target("cuda"))
    names = [var.name_hint for var in module.get_global_vars()]
    assert "tir_attention_prefill" in names
    assert not any(name.endswith("_cpu") for name in names)
