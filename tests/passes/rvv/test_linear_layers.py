# SPDX-License-Identifier: Apache-2.0
"""CallLinearKernels: replaced and unchanged layers, its reports, and its numbers."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.passes.functions import (
    VECTORS,
    called,
    host,
    module_of,
    outcomes,
    riscv64,
    settings,
)
from support.passes.linear import PACKINGS, Q4, linear_function, linear_inputs, linear_reference
from support.passes.made_up_formats import W8, table_with_made_up

from crosslab.assemble.kernels import INDEX, linear_routines
from crosslab.compile.overlaypass import load_pass
from crosslab.models.formats import Packing


@pytest.fixture(scope="module")
def passes(tvm: ModuleType) -> ModuleType:
    return load_pass("linear.call_kernels")


@pytest.fixture
def libraries(kernel_folders: dict[str, Path]) -> dict[str, Path]:
    """Kernel directories by target; a test may add others."""
    return dict(kernel_folders)


@pytest.fixture
def transform(
    passes: ModuleType,
    libraries: dict[str, Path],
    tmp_path: Path,
) -> Any:
    """Runs the pass on functions; returns the module and what the report says."""
    report = tmp_path / "tensorized.json"

    def run(target: Any, library: str | None = "riscv64", **functions: Any) -> Any:
        kernels = libraries[library] if library is not None else None
        configuration = settings(kernels=kernels, reports=tmp_path)
        module = passes.CallLinearKernels(target, configuration)(module_of(**functions))
        return module, outcomes(tmp_path) if report.exists() else {}

    return run


@pytest.mark.parametrize(
    ("rows", "n", "packing", "calls"),
    [
        ("seq_len", 96, None, ["mlc_rvv_gemm_f32"]),
        (7, 96, None, ["mlc_rvv_gemm_f32"]),
        (1, 96, None, ["mlc_rvv_gemv_f32"]),
        ("seq_len", "vocab_size", None, ["mlc_rvv_gemm_f32"]),
        ("seq_len", 96, Q4, ["mlc_rvv_gemm_q4"]),
        (1, 96, Q4, ["mlc_rvv_gemv_q4_prepare", "mlc_rvv_gemv_q4"]),
        (1, "vocab_size", Q4, ["mlc_rvv_gemv_q4_prepare", "mlc_rvv_gemv_q4"]),
    ],
)
@pytest.mark.parametrize("add", [False, True])
def test_a_linear_layer_becomes_a_kernel_call(
    transform: Any, rows: Any, n: Any, packing: Packing | None, calls: list[str], add: bool
) -> None:
    function = linear_function(rows, n, 80, packing=packing, add=add)
    module, reports = transform(riscv64(*VECTORS), layer=function)
    assert called(module["layer"]) == calls
    assert reports["layer", "NT_matmul"]["symbol"] == calls[-1]
    assert module["layer"].attrs["tirx.is_scheduled"]
    assert module["layer"].attrs["tirx.noalias"]
    text = module["layer"].script()
    assert "dequantize" not in text, "the weight is not unpacked twice"
    assert text.count("sblock_alloc_buffer") == ("gemm" in calls[0]) + (calls[0][-7:] == "prepare")
    objects = module.attrs["external_mods"]
    assert len(objects) == 1
    assert objects[0].implements_function(calls[-1])


def test_the_panel_is_as_wide_as_eight_registers(transform: Any, passes: ModuleType) -> None:
    for vlen in (128, 256, 1024):
        target = riscv64("+zve64d", f"+zvl{vlen}b")
        module, _ = transform(target, layer=linear_function("seq_len", 512, 64))
        outputs = rf"T\.min\(T\.int64\(512\) - T\.Div\(task, .*\) \* T\.int64\({vlen // 4}\)"
        assert re.search(outputs, module["layer"].script())


@pytest.mark.parametrize("rows", ["seq_len", 1])
def test_sizes_stay_64_bits_wide(transform: Any, rows: Any) -> None:
    """Although a pass that runs later narrows all indices, those in calls included."""
    from tvm import ir, tirx  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    module, _ = transform(riscv64(*VECTORS), layer=linear_function(rows, "vocab_size", 64))
    narrow = tirx.transform.ForceNarrowIndexToInt32()(ir.IRModule({"layer": module["layer"]}))
    types: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, ir.Call) and node.op.same_as(ir.Op.get("tirx.call_extern")):
            types.extend(str(getattr(a.ty, "dtype", "pointer")) for a in node.args[1:])

    tirx.stmt_functor.post_order_visit(narrow["layer"].body, visit)
    assert types
    assert set(types) == {"int64", "pointer"}


@pytest.mark.parametrize("vlen", [2048, 65536])
def test_vectors_that_no_buffer_holds_call_no_kernel(transform: Any, vlen: int) -> None:
    target = riscv64("+zve64d", f"+zvl{vlen}b")
    module, reports = transform(target, layer=linear_function("seq_len", 96, 64, packing=Q4))
    assert called(module["layer"]) == []
    assert "up to 1024 bits" in reports["layer", "NT_matmul"]["reason"]


def test_a_product_that_does_not_begin_at_zero_is_unchanged(transform: Any) -> None:
    from tvm import te, tirx  # noqa: PLC0415

    x, weight = te.placeholder((5, 64), name="x"), te.placeholder((96, 64), name="weight")
    k = te.reduce_axis((0, 64), name="k")
    add = te.comm_reducer(lambda a, b: a + b, lambda dtype: tirx.const(1, dtype), name="add")
    out = te.compute((5, 96), lambda i, j: add(x[i, k] * weight[j, k], axis=k), name="more")
    module, reports = transform(riscv64(*VECTORS), layer=te.create_prim_func([x, weight, out]))
    assert called(module["layer"]) == []
    assert not reports


@pytest.mark.parametrize("inner", ["NT_matmul", "dequantize"])
def test_what_a_function_also_returns_is_still_written(transform: Any, inner: str) -> None:
    """The product beside its sum, and the weights that it was computed with."""
    from tvm import tirx  # noqa: PLC0415

    of_tir = load_pass("tir")
    function = linear_function(5, 96, 64, packing=Q4, add=True)
    root = function.body.block
    (also,) = [buffer for buffer in root.alloc_buffers if buffer.name == inner]
    others = [buffer for buffer in root.alloc_buffers if not buffer.same_as(also)]
    body = of_tir.block_of(root.body, root.name_hint, [], [], others)
    both = tirx.PrimFunc([*function.params, also], body).with_attrs(function.attrs)
    module, _ = transform(riscv64(*VECTORS), layer=both)
    layer = module["layer"]
    blocks = of_tir.nodes_of(layer.body, tirx.SBlock)
    written = [region.buffer for block in blocks for region in block.writes]
    read = [region.buffer for block in blocks for region in block.reads]
    assert called(layer) == ["mlc_rvv_gemm_q4"]
    assert any(buffer.same_as(layer.params[-1]) for buffer in written)
    known = [*layer.params, *written]
    assert all(any(buffer.same_as(one) for one in known) for buffer in read)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ({"dtype": "float16"}, "is float16, the kernels are float32"),
        ({"transposed": False}, r"it is not C[..., j] += A[..., k] * B[j, k]"),
        (
            {"packing": Packing(bits=4, group=32, zero_point=8)},
            "no gemm for weights (4-bit, in groups of 32, zero point 8)",
        ),
    ],
)
def test_layers_without_a_kernel_are_unchanged_and_reported(
    transform: Any, function: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = linear_function("seq_len", 96, 64, **function)
    module, reports = transform(riscv64(*VECTORS), layer=before)
    assert called(module["layer"]) == []
    assert "tirx.is_scheduled" not in module["layer"].attrs
    assert reason in reports["layer", "NT_matmul"]["reason"]
    assert reason in caplog.text
    assert not (module.attrs or {}).get("external_mods")


def test_a_weight_that_is_packed_otherwise_is_unpacked_before_the_kernel(transform: Any) -> None:
    function = linear_function("seq_len", 96, 64, packing=Q4, backwards=True)
    module, _ = transform(riscv64(*VECTORS), layer=function)
    assert called(module["layer"]) == ["mlc_rvv_gemm_f32"]
    assert "dequantize" in module["layer"].script()


def test_a_scheduled_function_is_left_alone(transform: Any) -> None:
    done = linear_function(4, 96, 64).with_attr("tirx.is_scheduled", True)
    module, reports = transform(riscv64(*VECTORS), layer=done)
    assert called(module["layer"]) == []
    assert reports == {}


def test_the_sum_of_squares_of_a_norm_is_no_product(transform: Any) -> None:
    te, tir = importlib.import_module("tvm.te"), importlib.import_module("tvm.tirx")
    x = te.placeholder((4, 64), name="x")
    step = te.reduce_axis((0, 64), name="k")
    squares = te.compute((4,), lambda i: te.sum(x[i, step] * x[i, step], axis=step), name="squares")
    module, reports = transform(riscv64(*VECTORS), norm=te.create_prim_func([x, squares]))
    assert isinstance(module["norm"], tir.PrimFunc)
    assert reports == {}


def test_a_product_with_a_matrix_a_head_is_a_batch_of_products(transform: Any) -> None:
    te = importlib.import_module("tvm.te")
    x, weight = te.placeholder((4, 5, 64), name="x"), te.placeholder((4, 32, 64), name="w")
    step = te.reduce_axis((0, 64), name="k")
    product = te.compute(
        (4, 5, 32),
        lambda head, i, j: te.sum(x[head, i, step] * weight[head, j, step], axis=step),
        name="NT_matmul",
    )
    before = te.create_prim_func([x, weight, product])
    module, reports = transform(riscv64(*VECTORS), heads=before)
    assert called(module["heads"]) == ["mlc_rvv_gemm_f32"]
    assert reports["heads", "NT_matmul"]["symbol"] == "mlc_rvv_gemm_f32"


@pytest.mark.parametrize("library", [None, "host"])
def test_missing_kernels_for_the_target_are_reported(transform: Any, library: str | None) -> None:
    module, reports = transform(riscv64(*VECTORS), library, layer=linear_function(4, 96, 64))
    assert called(module["layer"]) == []
    assert ("no folder of kernels" if library is None else "kernels of") in reports[
        "layer", "NT_matmul"
    ]["reason"]


def test_without_vectors_nothing_is_done(transform: Any) -> None:
    module, reports = transform(riscv64(), layer=linear_function(4, 96, 64))
    assert called(module["layer"]) == []
    assert reports == {}


def test_a_library_without_routines_is_no_error(
    transform: Any, libraries: dict[str, Path], tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(libraries["riscv64"], old)
    index = json.loads((old / INDEX).read_text())
    del index["routines"]
    (old / INDEX).write_text(json.dumps(index))
    libraries["old"] = old
    module, reports = transform(riscv64(*VECTORS), "old", layer=linear_function(4, 96, 64))
    assert called(module["layer"]) == []
    assert "no gemm for weights (float32)" in reports["layer", "NT_matmul"]["reason"]


@pytest.mark.parametrize(
    ("rows", "calls", "sizes"),
    [
        # A row has 80 words and 5 scales; x prepared has 64 + 4 floats a group.
        (7, ["mlc_rvv_gemm_w8"], ["* T.int64(80)", "* T.int64(5)"]),
        (
            1,
            ["mlc_rvv_gemv_w8_prepare", "mlc_rvv_gemv_w8"],
            ["ready = T.sblock_alloc_buffer((340,))"],
        ),
    ],
)
def test_a_new_format_is_an_entry_of_the_table(
    transform: Any,
    libraries: dict[str, Path],
    tmp_path: Path,
    rows: int,
    calls: list[str],
    sizes: list[str],
) -> None:
    """The passes read its packing and symbols from the library that was made from the table."""
    table, folder = table_with_made_up(tmp_path), tmp_path / "kernels"
    shutil.copytree(libraries["riscv64"], folder)
    index = json.loads((folder / INDEX).read_text())
    index["routines"] = [asdict(routine) for routine in linear_routines(table)]
    (folder / INDEX).write_text(json.dumps(index))
    layer = linear_function(rows, 200, 320, packing=W8)
    module, reports = transform(riscv64(*VECTORS), layer=layer)
    assert called(module["layer"]) == []
    assert "8-bit, in groups of 64" in reports["layer", "NT_matmul"]["reason"]
    libraries["new"] = folder
    module, _ = transform(riscv64(*VECTORS), "new", layer=layer)
    assert called(module["layer"]) == calls
    text = module["layer"].script()
    assert all(size in text for size in sizes)
    old = linear_function(rows, 200, 320, packing=Q4)
    module, _ = transform(riscv64(*VECTORS), "new", layer=old)
    assert called(module["layer"]) == [symbol.replace("w8", "q4") for symbol in calls]


def test_the_object_is_brought_in_once_and_the_report_goes_on(
    transform: Any, passes: ModuleType, libraries: dict[str, Path], tmp_path: Path
) -> None:
    """After TensorizePrefill, whose object holds these kernels too."""
    module, _ = transform(riscv64(*VECTORS), layer=linear_function(4, 96, 64))
    entries = outcomes(tmp_path)
    again = module.clone()
    module["other"] = linear_function(1, 96, 64)
    configuration = settings(kernels=libraries["riscv64"], reports=tmp_path)
    module = passes.CallLinearKernels(riscv64(*VECTORS), configuration)(module)
    assert len(module.attrs["external_mods"]) == len(again.attrs["external_mods"]) == 1
    assert set(outcomes(tmp_path)) == {*entries, ("other", "NT_matmul")}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_results_are_right(
    transform: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    packing: Packing | None,
    add: bool,
) -> None:
    """Built for this machine with the portable kernels, against float64."""
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    if shutil.which("g++") is None:
        pytest.skip("not installed: g++, with which TVM links a library for this machine")
    monkeypatch.setenv("TVM_NUM_THREADS", str(threads))
    n, k = 150, 300
    functions = {
        f"layer_{rows}": linear_function(rows, n, k, packing=packing, add=add).with_attr(
            "global_symbol", f"layer_{rows}"
        )
        for rows in ("seq_len", 1)
    }
    module, _ = transform(host(), "host", **functions)
    assert all(called(module[name]) for name in functions)
    path = tmp_path / "model.so"
    tvm.relax.build(module, host()).export_library(str(path))
    library = tvm.runtime.load_module(str(path))
    for name, rows in (("layer_1", 1), ("layer_seq_len", 1), ("layer_seq_len", 37)):
        arrays = linear_inputs(rows, n, k, packing=packing, add=add, seed=rows)
        out = tvm.runtime.tensor(np.full((1, rows, n), np.nan, np.float32))
        function = library.get_function(name, query_imports=True)
        function(*(tvm.runtime.tensor(a) for a in arrays), out)
        want = linear_reference(arrays, k, packing=packing, add=add)
        assert np.abs(out.numpy() - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("then", ["tanh", "erf", "log1p"])
def test_functions_of_a_product_are_arithmetic(transform: Any, then: str) -> None:
    """LLVM has no vectors of them: TVM refused the module."""
    import tvm  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    function = linear_function(5, 160, 64, then=then).with_attr("global_symbol", "layer")
    module, _ = transform(host(), "host", layer=function)
    assert called(module["layer"])
    text = module["layer"].script()
    assert "T.vectorized" in text
    assert f"T.{then}(" not in text
    tvm.relax.build(module, host())


def test_steps_can_be_chosen(
    passes: ModuleType, libraries: dict[str, Path], configure: Callable[..., None]
) -> None:
    hooks, module = load_pass("hooks"), module_of(layer=linear_function(4, 96, 64))

    def calls(*steps: str) -> list[str]:
        configure(kernels=libraries["riscv64"], steps=steps)
        return called(hooks.before_scheduling(riscv64(*VECTORS))(module)["layer"])

    configure(kernels=libraries["riscv64"])
    assert called(hooks.before_scheduling(riscv64(*VECTORS))(module)["layer"]) == calls("linear")
    assert calls("linear") == calls("-loops", "-noalias") == ["mlc_rvv_gemm_f32"]
    assert calls() == calls("rotary", "loops") == calls("-linear") == []
    with pytest.raises(RuntimeError, match="unknown fusion; the steps are: rows, attention, widen"):
        calls("linear", "fusion")
