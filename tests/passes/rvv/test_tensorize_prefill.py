# SPDX-License-Identifier: Apache-2.0
"""TensorizePrefill: transformed and unchanged functions, and its reports of both."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import (
    VECTORS,
    called,
    host,
    module_of,
    outcomes,
    riscv64,
    settings,
    tile_function,
)

from crosslab.assemble.kernels import INDEX
from crosslab.compile.overlaypass import load_pass

QK, PV = "mlc_rvv_qk_f32_16x16x64", "mlc_rvv_pv_f32_16x16x64"
NAME = "tir_attention_prefill_cpu"


@pytest.fixture
def lab(tvm: ModuleType) -> ModuleType:
    return load_pass("attention.tensorize_prefill")


@pytest.fixture
def without_kernels(tmp_path: Path) -> Any:
    """A configuration that has reports."""
    return settings(reports=tmp_path)


@pytest.fixture
def with_kernels(without_kernels: Any, kernels: Path) -> Any:
    """The same with kernels."""
    return replace(without_kernels, kernels=kernels)


def assert_untouched(before: Any, after: Any) -> None:
    from tvm import ir  # noqa: PLC0415 - the patched tree is on sys.path only in a test

    ir.assert_structural_equal(before, after)


def test_both_products_become_calls(lab: ModuleType, with_kernels: Any) -> None:
    before = module_of(**{NAME: tile_function()})
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(before)
    assert called(after[NAME]) == [QK, PV]
    assert outcomes(with_kernels.reports) == {
        (NAME, "S_gemm"): {"function": NAME, "block": "S_gemm", "symbol": QK, "reason": None},
        (NAME, "O_gemm"): {"function": NAME, "block": "O_gemm", "symbol": PV, "reason": None},
    }
    assert called(before[NAME]) == [], "the module that went in is as it was"


def test_attributes_stay_and_default_schedules_are_kept_off(
    lab: ModuleType, with_kernels: Any
) -> None:
    from tvm.s_tir import dlight  # noqa: PLC0415

    target = riscv64(*VECTORS)
    function = tile_function().with_attr("global_symbol", "batch_prefill_paged_kv_cpu")
    after = lab.TensorizePrefill(target, with_kernels)(module_of(**{NAME: function}))
    assert after[NAME].attrs["global_symbol"] == "batch_prefill_paged_kv_cpu"
    assert bool(after[NAME].attrs["tirx.noalias"])
    with target:
        scheduled = dlight.ApplyDefaultSchedule(dlight.cpu.GEMV(), dlight.cpu.Reduction())(after)
    assert_untouched(after[NAME], scheduled[NAME])


@pytest.mark.parametrize(
    ("q_tile", "kv_tile", "d"), [(16, 32, 64), (16, 16, 80), (16, 16, 96), (16, 32, 128)]
)
def test_the_kernel_is_chosen_by_shape(
    lab: ModuleType, with_kernels: Any, q_tile: int, kv_tile: int, d: int
) -> None:
    module = module_of(**{NAME: tile_function(q_tile, kv_tile, d)})
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module)
    shape = f"f32_{q_tile}x{kv_tile}x{d}"
    assert called(after[NAME]) == [f"mlc_rvv_qk_{shape}", f"mlc_rvv_pv_{shape}"]


@pytest.mark.parametrize(
    "name",
    [
        "tir_attention_prefill_ragged_cpu",
        "tir_attention_prefill_cpu_sliding_window",
        "batch_prefill",
    ],
)
def test_prefill_functions_are_known_by_name(lab: ModuleType, with_kernels: Any, name: str) -> None:
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(
        module_of(**{name: tile_function()})
    )
    assert called(after[name]) == [QK, PV]


def test_other_functions_are_left_alone(lab: ModuleType, with_kernels: Any) -> None:
    functions = {NAME: tile_function(), "tir_attention_decode_cpu": tile_function(d=80)}
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module_of(**functions))
    assert called(after["tir_attention_decode_cpu"]) == []
    assert {function for function, _ in outcomes(with_kernels.reports)} == {NAME}


@pytest.mark.parametrize("features", [("+v",), ("+zve64d",), ("+zve32f",), ("+zvl256b",)])
def test_targets_with_vectors(
    lab: ModuleType, with_kernels: Any, features: tuple[str, ...]
) -> None:
    after = lab.TensorizePrefill(riscv64(*features), with_kernels)(
        module_of(**{NAME: tile_function()})
    )
    assert called(after[NAME]) == [QK, PV]


@pytest.mark.parametrize(
    "features", [(), ("-v",), ("+v", "-v"), ("+zve32x",), ("+zvfoo", "+xv"), ("-zve64d",)]
)
def test_riscv_without_float_vectors_is_left_alone(
    lab: ModuleType, with_kernels: Any, features: tuple[str, ...]
) -> None:
    with_kernels = replace(with_kernels, require_tensorize=True)
    module = module_of(**{NAME: tile_function()})
    assert_untouched(module, lab.TensorizePrefill(riscv64(*features), with_kernels)(module))
    assert not (with_kernels.reports / "tensorized.json").exists()


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+v"]},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
        {"kind": "llvm", "mtriple": "riscv32-unknown-elf", "mattr": ["+v"]},
        {"kind": "cuda", "tag": "riscv64+v"},
        {"kind": "c"},
    ],
)
def test_other_targets_are_left_alone(
    lab: ModuleType, with_kernels: Any, target: dict[str, Any]
) -> None:
    from tvm.target import Target  # noqa: PLC0415

    module = module_of(**{NAME: tile_function()})
    assert_untouched(module, lab.TensorizePrefill(Target(target), with_kernels)(module))
    assert not (with_kernels.reports / "tensorized.json").exists()


def test_an_unlisted_shape_is_declined(
    lab: ModuleType, with_kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of(**{NAME: tile_function(d=72), "batch_prefill": tile_function()})
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module)
    assert_untouched(module[NAME], after[NAME])
    assert called(after["batch_prefill"]) == [QK, PV]
    declined = outcomes(with_kernels.reports)[NAME, "S_gemm"]
    assert declined["symbol"] is None
    assert declined["reason"].startswith("no kernel for qk float32 16x16x72 in ")
    assert "pv float32 16x16x72" in caplog.text


def test_another_type_is_declined(lab: ModuleType, with_kernels: Any) -> None:
    module = module_of(**{NAME: tile_function(dtype="float16")})
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module)
    assert_untouched(module, after)
    assert "qk float16 16x16x64" in outcomes(with_kernels.reports)[NAME, "S_gemm"]["reason"]


def test_a_block_that_computes_something_else_is_declined(
    lab: ModuleType, with_kernels: Any
) -> None:
    function = tile_function(product="T.max(S[i, j], Q[i, k] * K[j, k])")
    after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module_of(**{NAME: function}))
    assert called(after[NAME]) == [PV]
    reason = outcomes(with_kernels.reports)[NAME, "S_gemm"]["reason"]
    assert reason.startswith("the block is not qk float32 16x16x64: ")
    assert "T.max" in reason or "mismatch" in reason


def test_a_function_without_tiles_is_reported(
    lab: ModuleType, with_kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from tvm.script import from_source  # noqa: PLC0415

    plain = from_source(
        "# from tvm.script import tirx as T\n"
        "@T.prim_func(s_tir=True)\n"
        "def plain(x: T.Buffer((4,), 'float32')):\n"
        "    for i in range(4):\n"
        "        x[i] = T.float32(1)\n"
    )
    tree = "tir_attention_prefill_with_tree_mask_cpu"
    module = module_of(**{NAME: tile_function(), tree: plain})
    with caplog.at_level(logging.WARNING):
        after = lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module)
    assert_untouched(module[tree], after[tree])
    assert "not tiled" in outcomes(with_kernels.reports)[tree, "S_gemm"]["reason"]
    assert caplog.text == "", "what was never meant for kernels is no cause for a warning"


def test_a_missing_library_is_reported(
    lab: ModuleType, without_kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of(**{NAME: tile_function()})
    assert_untouched(module, lab.TensorizePrefill(riscv64(*VECTORS), without_kernels)(module))
    reasons = {o["reason"] for o in outcomes(without_kernels.reports).values()}
    assert reasons == {
        "no kernel library: the configuration of the passes names no folder of kernels"
    }
    assert "Nothing was tensorized" in caplog.text
    assert "names no folder of kernels" in caplog.text


@pytest.mark.parametrize("functions", [{}, {NAME: tile_function}])
def test_nothing_tensorized_is_an_error_where_it_is_required(
    lab: ModuleType, without_kernels: Any, functions: dict[str, Any]
) -> None:
    module = module_of(**{name: make() for name, make in functions.items()})
    lab.TensorizePrefill(riscv64(*VECTORS), without_kernels)(module)
    required = replace(without_kernels, require_tensorize=True)
    with pytest.raises(RuntimeError, match="Nothing was tensorized") as failure:
        lab.TensorizePrefill(riscv64(*VECTORS), required)(module)
    assert "require_tensorize is set" in str(failure.value)


def test_a_module_without_prefill_is_reported(
    lab: ModuleType, with_kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = module_of()
    assert_untouched(module, lab.TensorizePrefill(riscv64(*VECTORS), with_kernels)(module))
    assert outcomes(with_kernels.reports) == {}
    assert "no prefill attention function" in caplog.text


def test_a_library_for_another_machine_is_declined(
    lab: ModuleType,
    without_kernels: Any,
    kernels: Path,
    tmp_path: Path,
) -> None:
    directory = shutil.copytree(kernels, tmp_path / "other")
    index = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps({**index, "target": "host", "arch": "s390x"}))
    configuration = replace(without_kernels, kernels=directory)
    module = module_of(**{NAME: tile_function()})
    assert_untouched(module, lab.TensorizePrefill(riscv64(*VECTORS), configuration)(module))
    assert (
        "are for s390x, the target is riscv64"
        in outcomes(without_kernels.reports)[NAME, "S_gemm"]["reason"]
    )
    assert_untouched(module, lab.TensorizePrefill(host(), configuration)(module))


def test_a_host_with_kernels_for_riscv_is_left_alone(lab: ModuleType, with_kernels: Any) -> None:
    module = module_of(**{NAME: tile_function()})
    assert_untouched(module, lab.TensorizePrefill(host(), with_kernels)(module))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_an_unusable_library_is_refused(
    lab: ModuleType,
    without_kernels: Any,
    tmp_path: Path,
    content: str | None,
) -> None:
    if content is not None:
        (tmp_path / INDEX).write_text(content)
    configuration = replace(without_kernels, kernels=tmp_path)
    with pytest.raises(RuntimeError, match=str(tmp_path / INDEX)):
        lab.TensorizePrefill(riscv64(*VECTORS), configuration)(module_of(**{NAME: tile_function()}))


def test_a_library_without_its_object_is_refused(
    lab: ModuleType,
    without_kernels: Any,
    kernels: Path,
    tmp_path: Path,
) -> None:
    shutil.copy(kernels / INDEX, tmp_path / INDEX)
    configuration = replace(without_kernels, kernels=tmp_path)
    with pytest.raises(RuntimeError, match=r"mlc_rvv_kernels\.o, which is not there"):
        lab.TensorizePrefill(riscv64(*VECTORS), configuration)(module_of(**{NAME: tile_function()}))


def test_external_modules_that_are_there_stay(lab: ModuleType, with_kernels: Any) -> None:
    import tvm  # noqa: PLC0415

    target = riscv64(*VECTORS)
    first = lab.TensorizePrefill(target, with_kernels)(module_of(**{NAME: tile_function()}))
    second = lab.TensorizePrefill(target, with_kernels)(
        module_of(batch_prefill=tile_function()).with_attr(
            "external_mods", list(first.attrs["external_mods"])
        )
    )
    attached = tvm.relax.transform.AttachExternModules([])(second).attrs["external_mods"]
    assert len(attached) == 2
    assert all(module.kind == "static_library" for module in attached)
