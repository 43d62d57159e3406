# SPDX-License-Identifier: Apache-2.0
"""The ordered list of the project's passes, and one hook for each phase of a compile pipeline.

A pass is a file of this package and a line of :data:`PASSES`. Hooks are called by MLC-LLM's
pipeline (compiler_pass/pipeline.py), and by the project's own where there is no MLC-LLM
(crosslab/compile/pipeline.py).

``MLC_RVV_STEPS`` chooses among the passes that have a step's name, for whoever wants to see what
each is worth: names separated by commas are the steps that run, ``-name`` is one that does not
although all others do. Unset, all run; passes without a name always do.
"""

from __future__ import annotations

import enum
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

STEPS_VARIABLE = "MLC_RVV_STEPS"


class HookPhase(enum.Enum):
    """HookPhase of a compile pipeline."""

    FUSION = "before FuseOps, with annotated patterns"
    SCHEDULING = "before default schedules, with functions in their last TIR form"
    EMISSION = "before external modules are attached, when no pass adds functions any more"


@dataclass(frozen=True)
class Pass:
    """One pass of the list.

    Attributes:
        phase: the hook that runs it.
        module: file in this package; imported by the hook, as some files need TVM's overlay,
            which a tree without the project's patches lacks.
        name: of the pass in the file.
        step: name of the pass in ``MLC_RVV_STEPS``; empty: it always runs.
        argument: keyword of the hook that the pass is made with.
    """

    phase: HookPhase
    module: str
    name: str
    step: str = ""
    argument: str = "target"


PASSES = (
    Pass(HookPhase.FUSION, "serialize_thread_bindings", "SerializeThreadBindings"),
    Pass(HookPhase.FUSION, "keep_scalar_params_opaque", "KeepScalarParamsOpaque"),
    Pass(HookPhase.SCHEDULING, "cost.estimate_cost", "EstimateCost", argument="debug_dump"),
    Pass(HookPhase.SCHEDULING, "attention.tensorize_prefill", "TensorizePrefill", "attention"),
    Pass(HookPhase.SCHEDULING, "attention.attend_on_accelerator", "AttendOnAccelerator"),
    Pass(HookPhase.SCHEDULING, "half.compute_in_float32", "ComputeInFloat32", "widen"),
    Pass(HookPhase.SCHEDULING, "linear.call_accelerator", "CallAccelerator"),
    Pass(HookPhase.SCHEDULING, "linear.call_kernels", "CallLinearKernels", "linear"),
    Pass(HookPhase.SCHEDULING, "vectors.vectorize_rotary", "VectorizeRotary", "rotary"),
    Pass(HookPhase.SCHEDULING, "vectors.vectorize_loops", "VectorizeLoops", "loops"),
    Pass(HookPhase.SCHEDULING, "apply_tuned_schedules", "ApplyTunedSchedules"),
    Pass(HookPhase.SCHEDULING, "half.convert_by_bits", "ConvertByBits", "halves"),
    Pass(HookPhase.EMISSION, "linear.describe_int8_weights", "DescribeInt8Weights"),
    Pass(HookPhase.EMISSION, "sort_shape_stores", "SortShapeStores"),
    Pass(HookPhase.EMISSION, "promise_noalias", "PromiseNoAlias", "noalias"),
    Pass(HookPhase.EMISSION, "prefix_symbols", "PrefixSymbols"),
)


def before_fusion(target: Target) -> Any:
    """The passes of :attr:`HookPhase.FUSION`.

    Raises:
        RuntimeError: ``MLC_RVV_STEPS`` names an unknown step.
    """
    return _passes(HookPhase.FUSION, target=target)


def before_scheduling(target: Target, debug_dump: Path | None = None) -> Any:
    """The passes of :attr:`HookPhase.SCHEDULING`.

    Args:
        target: code is generated for it.
        debug_dump: folder for dumps, or None.

    Raises:
        RuntimeError: ``MLC_RVV_STEPS`` names an unknown step.
    """
    return _passes(HookPhase.SCHEDULING, target=target, debug_dump=debug_dump)


def before_emission(target: Target) -> Any:
    """The passes of :attr:`HookPhase.EMISSION`.

    Raises:
        RuntimeError: ``MLC_RVV_STEPS`` names an unknown step.
    """
    return _passes(HookPhase.EMISSION, target=target)


def _passes(phase: HookPhase, **arguments: Any) -> Any:
    steps = _chosen_steps()
    made = []
    for item in PASSES:
        if item.phase is phase and (not item.step or item.step in steps):
            module = importlib.import_module(f".{item.module}", __package__)
            made.append(getattr(module, item.name)(arguments[item.argument]))
    return tvm.transform.Sequential(made, name=f"Rvv{phase.name.title()}")


def _chosen_steps() -> set[str]:
    steps = [item.step for item in PASSES if item.step]
    names = [name for name in os.environ.get(STEPS_VARIABLE, ",".join(steps)).split(",") if name]
    if unknown := [name for name in names if name.removeprefix("-") not in steps]:
        raise RuntimeError(
            f"{STEPS_VARIABLE} names {', '.join(unknown)}; the steps are: {', '.join(steps)}"
        )
    left_out = {name[1:] for name in names if name.startswith("-")}
    return set(steps) - left_out if left_out else set(names)
