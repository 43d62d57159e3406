# SPDX-License-Identifier: Apache-2.0
"""ApplyTunedSchedules: schedules from a MetaSchedule database, for functions without one.

The configuration names the folder of the database. A function takes the fastest record of its
workload that was found for as long vectors as the target's. The folder of reports gets two files:
``tuned.json``, a list of the functions that took a record, and ``unscheduled.py``, the other
functions of static shapes as TVMScript, which a tuner may read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, s_tir, tirx
from tvm.target import Target

from .configuration import Configuration
from .functions import is_reshape, is_scheduled
from .targets import Vectors, vectors_of

UNSCHEDULED, TUNED = "unscheduled.py", "tuned.json"
# Name of the one function of a workload.
FUNCTION = "main"
RULE = "schedule_rule"
# Records of a workload that are looked through for one of the target's vectors.
RECORDS = 64


@tvm.transform.module_pass(opt_level=0, name="ApplyTunedSchedules")
class ApplyTunedSchedules:
    """Pass that applies the tuned schedules of a database to TIR functions."""

    def __init__(self, target: Target, configuration: Configuration) -> None:
        self.target, self.configuration = target, configuration

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Schedule the functions that have a record, and write the report."""
        folder, report = self.configuration.tuned, self.configuration.reports
        vectors = vectors_of(self.target)
        if not (folder or report):
            return mod
        left = {
            g_var: func
            for g_var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and may_be_tuned(func)
        }
        found = _best_schedules(left, folder, vectors) if folder and vectors else {}
        if report:
            _write_report(report, left, found)
        result = mod.clone()
        for g_var, func in found.items():
            result.update_func(g_var, func)
        return result


def may_be_tuned(func: tirx.PrimFunc) -> bool:
    """Return True if a function can be tuned: static shapes, no schedule, and no reshape."""
    shapes = [getattr(param.ty, "shape", None) for param in func.params]
    return (
        not is_scheduled(func)
        and isinstance(func.body, tirx.SBlockRealize)
        and all(s is not None and all(isinstance(e, tirx.IntImm) for e in s) for s in shapes)
        and not is_reshape(func)
    )


def alone(func: tirx.PrimFunc) -> IRModule:
    """Return a module with a function as `main`; attributes for a search replace its own."""
    for name in dict(func.attrs or {}):
        func = func.without_attr(name)
    about = {"global_symbol": FUNCTION, "tirx.noalias": True, "s_tir": True}
    return IRModule({FUNCTION: func.with_attrs(about)})


def workload_of(func: tirx.PrimFunc) -> IRModule:
    """Return the module that is a function's key in a database, and the start of a search.

    The annotation ``schedule_rule`` is removed from its blocks: a search applies no rule of its
    own to a block that has one.
    """
    schedule = s_tir.Schedule(alone(func))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if RULE in (schedule.get(block).annotations or {}):
            schedule.unannotate(block, RULE)
    return schedule.mod


def compiled_form(mod: IRModule) -> IRModule:
    """Return a scheduled workload in the form that a model's compile emits.

    Elementary functions, such as exp, become arithmetic: a call of a library makes no vectors.
    """
    # Here, as it needs TVM's overlay: the pass runs on trees without patches, too.
    from .vectors.vectorize_loops import with_arithmetic  # noqa: PLC0415

    func = mod[FUNCTION]
    return IRModule({FUNCTION: func.with_body(with_arithmetic(func.body))})


def _best_schedules(functions: dict[Any, Any], folder: Path, vectors: Vectors) -> dict[Any, Any]:
    """Return the functions with a record, each scheduled by its fastest for these vectors.

    Raises:
        RuntimeError: there is no database in the folder.
    """
    # It is slow to import, and only this function needs it.
    from tvm.s_tir.meta_schedule.database import JSONDatabase  # noqa: PLC0415

    try:
        database = JSONDatabase(work_dir=str(folder), allow_missing=False)
    except Exception as error:
        raise RuntimeError(f"no MetaSchedule database can be read in {folder}") from error
    result = {}
    for g_var, func in functions.items():
        workload = workload_of(func)
        if not database.has_workload(workload):
            continue
        for record in database.get_top_k(database.commit_workload(workload), RECORDS):
            if record.target is not None and vectors_of(record.target) == vectors:
                schedule = s_tir.Schedule(workload)
                record.trace.apply_to_schedule(schedule, remove_postproc=False)
                result[g_var] = _named_as(compiled_form(schedule.mod)[FUNCTION], func)
                break
    return result


def _named_as(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    for name in dict(scheduled.attrs):
        scheduled = scheduled.without_attr(name)
    return scheduled.with_attrs({**dict(func.attrs or {}), "tirx.is_scheduled": True})


def _write_report(folder: Path, left: dict[Any, Any], found: dict[Any, Any]) -> None:
    names = sorted(g_var.name_hint for g_var in found)
    (folder / TUNED).write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
    others = {g.name_hint: alone(f)[FUNCTION] for g, f in left.items() if g not in found}
    named = {n: f.with_attr("global_symbol", n) for n, f in sorted(others.items())}
    (folder / UNSCHEDULED).write_text(IRModule(named).script() + "\n", encoding="utf-8")
