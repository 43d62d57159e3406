# SPDX-License-Identifier: Apache-2.0
"""Functions that say that their buffers are compact are lowered as they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from crosslab.compile.overlaypass import load_pass

pytestmark = pytest.mark.release

KV, Q, D, PAGE = 1, 2, 16, 16
# Symbolic sizes of a batch; extents are compared as numbers.
SIZES = {"batch_size": 3, "total_len": 7, "total_kv_len": 11, "nnz_pages": 5, "num_indptr": 4}


@pytest.fixture(scope="module")
def pipeline(tvm: ModuleType) -> Any:
    """The file under test."""
    return load_pass("tir_pipeline")


def wasteful(attributes: str) -> Any:
    """A function with a buffer of 64 numbers, of which it uses 4 at a time."""
    from tvm.script import from_source, ir, tirx  # noqa: PLC0415 - the patched tree's

    text = f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        T.func_attr({{{attributes}}})
        for i in T.serial(16):
            with T.sblock("tile"):
                T.reads()
                T.writes()
                kept = T.sblock_alloc_buffer((64,), "float32")
                for j in T.serial(4):
                    kept[i * 4 + j] = x[i * 4 + j] * T.float32(2)
                for j in T.serial(4):
                    y[i * 4 + j] = kept[i * 4 + 3 - j]
"""
    return from_source(text, extra_vars={"I": ir, "T": tirx})


@pytest.mark.parametrize(("attributes", "size"), [("", 4), ('"mlc_rvv.compact": True', 64)])
def test_the_attribute_alone_keeps_buffers_as_they_are(
    tvm: ModuleType, pipeline: Any, attributes: str, size: int
) -> None:
    from tvm import tirx  # noqa: PLC0415

    functions = {"main": wasteful(attributes)["main"], "other": wasteful("")["main"]}
    module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    module = tirx.transform.BindTarget(tvm.target.Target("llvm", host="llvm"))(module)
    lower = tirx.get_tir_pipeline(pipeline.registered())[0]
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        lowered = lower(module)
    assert allocated(lowered["main"]) == [size]
    assert allocated(lowered["other"]) == [4]


def allocated(function: Any) -> list[int]:
    """Elements of the buffers that a lowered function allocates."""
    from tvm import tirx  # noqa: PLC0415

    found = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.AllocBuffer) and str(node.buffer.dtype) == "float32":
            found.append(int(node.buffer.shape[0]))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


def kernels() -> dict[str, Any]:
    """Every attention kernel of ours; with a window they allocate no more."""
    from tvm.relax.frontend.nn.llm import (  # noqa: PLC0415
        _decode_tiled_cpu,
        _prefill_tiled_cpu,
        _tree_tiled_cpu,
    )

    paged = _prefill_tiled_cpu._attention_prefill_cpu
    return {
        "decode": _decode_tiled_cpu._attention_decode_cpu(KV, Q, D, "float32", False, {}, PAGE),
        "paged": paged(KV, Q, D, "float32", False, {}, PAGE),
        "ragged": _prefill_tiled_cpu._attention_prefill_ragged_cpu(KV, Q, D, D, "float32", {}),
        "tree": _tree_tiled_cpu.tree_attn_cpu(KV, Q, D, "float32", {}),
        "paged tree": _tree_tiled_cpu.tree_attn_with_paged_kv_cache_cpu(KV, Q, D, "float32", {}),
    }


def test_attention_allocates_nothing_that_could_be_smaller(tvm: ModuleType, pipeline: Any) -> None:
    from tvm import arith, s_tir, tirx  # noqa: PLC0415

    t = s_tir.transform
    prepare = tvm.transform.Sequential(
        [t.LowerInitBlock(), t.PlanAndUpdateBufferAllocationLocation(), t.ConvertBlocksToOpaque()]
    )

    def sizes(function: Any) -> dict[str, list[int]]:
        found = {}

        def number(extent: Any, rotary: int) -> int:
            names = {**SIZES, "rotary_mode": rotary}
            free = tirx.analysis.undefined_vars(tirx.Evaluate(extent), [])
            values = {var: tirx.IntImm("int32", names[var.name]) for var in free}
            numbers = tirx.stmt_functor.substitute(tirx.Evaluate(extent), values)
            return int(arith.Analyzer().simplify(numbers.value))

        def visit(node: Any) -> None:
            if isinstance(node, tirx.SBlock):
                for buffer in node.alloc_buffers:
                    found[buffer.name] = [number(e, r) for e in buffer.shape for r in (0, 1)]

        tirx.stmt_functor.post_order_visit(function.body, visit)
        return found

    for name, function in kernels().items():
        assert pipeline.COMPACT in function.attrs, name
        before = prepare(tvm.IRModule({"main": function}))
        after = t.CompactBufferAllocation()(before)
        assert len(sizes(before["main"])) > 3
        assert sizes(after["main"]) == sizes(before["main"]), name
