# SPDX-License-Identifier: Apache-2.0
"""ApplyTunedSchedules: a record of the function and of the target's vectors is applied."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import VECTORS, riscv64, settings

from crosslab.compile.overlaypass import load_pass


def _function(size: int) -> Any:
    from tvm import te  # noqa: PLC0415 - the patched tree's

    x = te.placeholder((size,), name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] + 1.0, name="y")])


@pytest.mark.parametrize(("features", "applied"), [(VECTORS, ["f"]), (("+zve64d",), [])])
def test_a_record_is_applied_to_its_workload_and_vectors(
    tvm: ModuleType,
    tmp_path: Path,
    features: tuple[str, ...],
    applied: list[str],
) -> None:
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord  # noqa: PLC0415

    tuned = load_pass("apply_tuned_schedules")
    workload = tuned.workload_of(_function(8))
    schedule = tvm.s_tir.Schedule(workload)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[0])
    database = JSONDatabase(work_dir=str(tmp_path))
    entry = database.commit_workload(workload)
    record = TuningRecord(schedule.trace, entry, [1e-6], riscv64(*features), [])
    database.commit_tuning_record(record)
    configuration = settings(tuned=tmp_path, reports=tmp_path)
    mod = tvm.IRModule({"f": _function(8), "g": _function(16)})
    result = tuned.ApplyTunedSchedules(riscv64(*VECTORS), configuration)(mod)
    assert ("T.vectorized" in result["f"].script()) == bool(applied)
    assert "T.vectorized" not in result["g"].script()
    assert json.loads((tmp_path / tuned.TUNED).read_text(encoding="utf-8")) == applied
    left = tvm.script.from_source((tmp_path / tuned.UNSCHEDULED).read_text(encoding="utf-8"))
    assert {g.name_hint for g in left.functions} == {"f", "g"} - set(applied)


@pytest.mark.parametrize(("transposed", "kinds"), [(True, {True, False}), (False, {False})])
def test_with_strided_elements_either_loop_may_become_vectors(
    tvm: ModuleType, transposed: bool, kinds: set[bool]
) -> None:
    from tvm import te  # noqa: PLC0415
    from tvm.s_tir import meta_schedule as ms  # noqa: PLC0415

    # With the patched tree's tvm.
    from boardfarm.tune.search import without_intrinsics  # noqa: PLC0415
    from boardfarm.tune.space import design_space  # noqa: PLC0415

    x = te.placeholder((32, 64), name="x")
    size = (64, 32) if transposed else (32, 64)
    y = te.compute(size, lambda i, j: (x[j, i] if transposed else x[i, j]) + 1.0, name="y")
    mod = load_pass("apply_tuned_schedules").workload_of(te.create_prim_func([x, y]))
    target = tvm.target.Target({**riscv64(*VECTORS).export(), "num-cores": 1})
    with without_intrinsics():
        context = ms.TuneContext(
            mod=mod, target=target, space_generator=design_space(), search_strategy="replay-trace"
        )
        found = context.generate_design_space()
    assert {"T.vectorized" in one.mod.script() for one in found} == kinds
    for one in found:
        one.trace.apply_to_schedule(tvm.s_tir.Schedule(mod), remove_postproc=False)


def test_the_script_of_a_widened_function_gives_the_same_workload(tvm: ModuleType) -> None:
    from tvm import te  # noqa: PLC0415

    x = te.placeholder((4, 8), "float16", name="x")
    y = te.compute((32,), lambda i: x[i // 8, i % 8], name="y")
    z = te.compute((8, 4), lambda i, j: y[i * 4 + j], name="z")
    widened = load_pass("half.compute_in_float32").compute_in_float32(te.create_prim_func([x, z]))
    tuned = load_pass("apply_tuned_schedules")
    workload = tuned.workload_of(widened)
    assert 'T.Cast("float32"' in workload.script()
    read = tvm.script.from_source(workload.script())
    tvm.ir.assert_structural_equal(tuned.workload_of(read[tuned.FUNCTION]), workload)


def test_a_sigmoid_becomes_arithmetic_with_its_schedule(tvm: ModuleType) -> None:
    from tvm import te  # noqa: PLC0415

    x = te.placeholder((8,), name="x")
    y = te.compute((8,), lambda i: te.sigmoid(x[i]), name="y")
    tuned = load_pass("apply_tuned_schedules")
    mod = tuned.workload_of(te.create_prim_func([x, y]))
    assert "T.sigmoid" in mod.script()
    assert "T.sigmoid" not in tuned.compiled_form(mod).script()
