# SPDX-License-Identifier: Apache-2.0
"""The ordered list of the project's passes, and one hook for each phase of a compile pipeline.

A pass is a file of this package and a line of :data:`ORDER`. MLC-LLM's pipeline
(compiler_pass/pipeline.py) calls the hooks, and so does the project's own pipeline where there is
no MLC-LLM (crosslab/compile/pipeline.py).

Other packages add passes. Such a package has an entry point in the group ``mlc_rvv.passes`` that
names an :class:`ExtraPass`, which comes at one of the named places of the list. An extra pass runs
only where the configuration names it.

The configuration also chooses steps, so that the worth of each can be measured: a pass with the
name of a step runs if the step does, a pass without one always runs.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import tvm
from tvm.target import Target

from .configuration import VARIABLE, Configuration, Extra, configured

GROUP = "mlc_rvv.passes"


class HookPhase(enum.Enum):
    """Phase of a compile pipeline in which a hook runs."""

    FUSION = "before FuseOps, with annotated patterns"
    SCHEDULING = "before default schedules, with functions in their last TIR form"
    EMISSION = "before external modules are attached, when no pass adds functions any more"


@dataclass(frozen=True)
class Pass:
    """A pass of the list, and the targets and settings that it runs for.

    Attributes:
        phase: the hook that runs it.
        module: file in this package. The hook imports it, because some files need TVM's overlay,
            which a tree without the project's patches lacks.
        name: of the pass in the file.
        step: name of its step; empty: it always runs.
        configured: it is made with the configuration, too.
    """

    phase: HookPhase
    module: str
    name: str
    step: str = ""
    configured: bool = False


@dataclass(frozen=True)
class Place:
    """A position in the list where passes of other packages run.

    Attributes:
        phase: the hook that runs them.
        name: of the place.
    """

    phase: HookPhase
    name: str


@dataclass(frozen=True)
class ExtraPass:
    """A pass that another package registers by an entry point.

    Attributes:
        place: name of the place in the list.
        make: makes the pass of the target, the configuration, and the extra's options as keywords.
    """

    place: str
    make: Callable[..., Any]


_FUSION, _SCHEDULING, _EMISSION = HookPhase
ORDER: tuple[Pass | Place, ...] = (
    Pass(_FUSION, "serialize_thread_bindings", "SerializeThreadBindings"),
    Pass(_FUSION, "choose_rows_early", "ChooseRowsEarly", "rows"),
    Pass(_FUSION, "keep_scalar_params_opaque", "KeepScalarParamsOpaque"),
    Place(_SCHEDULING, "fused"),
    Pass(_SCHEDULING, "attention.tensorize_prefill", "TensorizePrefill", "attention", True),
    Place(_SCHEDULING, "attention"),
    Pass(_SCHEDULING, "half.compute_in_float32", "ComputeInFloat32", "widen"),
    Place(_SCHEDULING, "linear"),
    Pass(_SCHEDULING, "linear.call_kernels", "CallLinearKernels", "linear", True),
    Pass(_SCHEDULING, "vectors.vectorize_rotary", "VectorizeRotary", "rotary"),
    Pass(_SCHEDULING, "vectors.vectorize_loops", "VectorizeLoops", "loops"),
    Pass(_SCHEDULING, "apply_tuned_schedules", "ApplyTunedSchedules", configured=True),
    Pass(_SCHEDULING, "half.convert_by_bits", "ConvertByBits", "halves"),
    Place(_EMISSION, "metadata"),
    Pass(_EMISSION, "sort_shape_stores", "SortShapeStores"),
    Pass(_EMISSION, "promise_noalias", "PromiseNoAlias", "noalias"),
    Pass(_EMISSION, "prefix_symbols", "PrefixSymbols", configured=True),
)
PASSES = tuple(item for item in ORDER if isinstance(item, Pass))
PLACES = tuple(item.name for item in ORDER if isinstance(item, Place))


def before_fusion(target: Target) -> Any:
    """Return the passes of :attr:`HookPhase.FUSION`.

    Raises:
        RuntimeError: the configuration is wrong, or an extra pass is not installed.
    """
    return _passes(HookPhase.FUSION, target)


def before_scheduling(target: Target) -> Any:
    """Return the passes of :attr:`HookPhase.SCHEDULING`.

    Raises:
        RuntimeError: the configuration is wrong, or an extra pass is not installed.
    """
    return _passes(HookPhase.SCHEDULING, target)


def before_emission(target: Target) -> Any:
    """Return the passes of :attr:`HookPhase.EMISSION`.

    Raises:
        RuntimeError: the configuration is wrong, or an extra pass is not installed.
    """
    return _passes(HookPhase.EMISSION, target)


def _passes(phase: HookPhase, target: Target) -> Any:
    configuration = configured()
    steps = _chosen_steps(configuration)
    extras = [(extra, _load_extra(extra)) for extra in configuration.extras]
    made: list[Any] = []
    for item in ORDER:
        if item.phase is not phase:
            continue
        if isinstance(item, Place):
            made += [
                found.make(target, configuration, **extra.options)
                for extra, found in extras
                if found.place == item.name
            ]
        elif not item.step or item.step in steps:
            module = importlib.import_module(f".{item.module}", __package__)
            settings = [configuration] if item.configured else []
            made.append(getattr(module, item.name)(target, *settings))
    return tvm.transform.Sequential(made, name=f"Rvv{phase.name.title()}")


def _load_extra(extra: Extra) -> ExtraPass:
    """Load the pass of another package that a configuration names.

    Raises:
        RuntimeError: no installed package has it, or it asks for an unknown place.
    """
    points = metadata.entry_points(group=GROUP, name=extra.name)
    if not points:
        raise RuntimeError(
            f"{VARIABLE}: extras: no installed package has the pass {extra.name}; "
            f"install {extra.package}"
        )
    found: ExtraPass = next(iter(points)).load()
    if found.place not in PLACES:
        raise RuntimeError(
            f"the pass {extra.name} of {extra.package} asks for the place {found.place!r}; "
            f"the places are: {', '.join(PLACES)}"
        )
    return found


def _chosen_steps(configuration: Configuration) -> set[str]:
    steps = [item.step for item in PASSES if item.step]
    names = steps if configuration.steps is None else configuration.steps
    if unknown := [name for name in names if name.removeprefix("-") not in steps]:
        raise RuntimeError(
            f"{VARIABLE}: steps: unknown {', '.join(unknown)}; the steps are: {', '.join(steps)}"
        )
    left_out = {name[1:] for name in names if name.startswith("-")}
    if left_out and len(left_out) < len({*names}):
        raise RuntimeError(
            f"{VARIABLE}: steps: {', '.join(names)}: name the steps that run, or those that do not "
            "(-NAME), not both"
        )
    return set(steps) - left_out if left_out else set(names)
