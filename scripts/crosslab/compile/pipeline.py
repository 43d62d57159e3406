# SPDX-License-Identifier: Apache-2.0
"""From the model's IRModule to what the Relax VM runs, for CPUs.

The order is that of MLC-LLM's own pipeline where both have a pass, so that the two paths
compile the same loops: graph, fused TIR functions, tensorization, schedules, memory, VM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from crosslab.compile.overlaypass import SHAPE_FUNCTIONS, load_pass_module
from crosslab.errors import LabError

# What a file of passes gives: a function of the target, or failing that a pass of the target.
PASS_NAMES = ("rvv_passes", "TensorizePrefill")

# TVM 0.26: common subexpression elimination leaves variables without a definition in host code.
PASS_CONFIG = {"tirx.disable_cse_tir": True}


def load_tensorize_pass(path: Path, target: Any) -> Any:
    """The pass from its own file.

    Raises:
        LabError: the file cannot be loaded, or does not define the pass.
    """
    module = load_pass_module(path)
    for name in PASS_NAMES:
        if hasattr(module, name):
            return getattr(module, name)(target)
    raise LabError(f"{path} defines no {' and no '.join(PASS_NAMES)}")


def _module_pass(function: Callable[[Any, Any], Any], name: str) -> Any:
    return tvm.transform.module_pass(function, opt_level=0, name=name)


def attach_bounds(bounds: Mapping[str, int]) -> Any:
    """A pass that tells memory planning how large the symbolic sizes get."""

    def attach(module: Any, _: Any) -> Any:
        for var, function in module.functions_items():
            if isinstance(function, relax.Function):
                module[var] = function.with_attrs(
                    {
                        "tir_var_upper_bound": dict(bounds),
                        "relax.memory_plan_dynamic_func_output": True,
                    }
                )
        return module

    return _module_pass(attach, "AttachBounds")


def drop_pattern_attributes() -> Any:
    """A pass that removes fusion's notes from TIR functions: schedules must not see them."""

    def drop(module: Any, _: Any) -> Any:
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and "op_pattern" in (function.attrs or {}):
                module[var] = function.without_attr("op_pattern")
        return module

    return _module_pass(drop, "DropPatternAttributes")


def promise_noalias() -> Any:
    """A pass that marks every TIR function: memory it writes is reached by one parameter only.

    Most functions carry the mark already, but TVM 0.26 declares all functions of a module before
    it emits any, and its LLVM code generator remembers the mark of the one declared last
    (``is_restricted_`` in codegen_llvm.cc, set in ``DeclareFunctionInternal``): one function
    without it, late in the alphabet, takes it from all, and every loop reloads what it could
    keep in registers.

    The promise holds for this module: a function's outputs are either allocated for the call
    (``CallTIRRewrite``; memory planning reuses only what no argument needs any more), or are the
    paged cache's pages and scratch tensors, each an allocation of its own
    (paged_kv_cache.cc: ``pages_``, ``temp_attn_*``, ``merged_attn_lse``). What arguments do
    share, the cache's one buffer of index arrays, kernels only read.
    """

    def promise(module: Any, _: Any) -> Any:
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                module[var] = function.with_attr("tirx.noalias", True)
        return module

    return _module_pass(promise, "PromiseNoAlias")


def order_shape_functions() -> Any:
    """A pass that gives ``VMShapeLower``'s functions one order, the same in every run."""
    in_order = load_pass_module(SHAPE_FUNCTIONS).in_order

    def order(module: Any, _: Any) -> Any:
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc):
                module[var] = in_order(function)
        return module

    return _module_pass(order, "OrderShapeFunctions")


def add_metadata(metadata: Mapping[str, Any]) -> Any:
    """A pass that adds ``_metadata()``, which gives the table as JSON text."""

    def add(module: Any, _: Any) -> Any:
        builder = relax.BlockBuilder()
        with builder.function("_metadata", params=[]):
            builder.emit_func_output(relax.utils.convert_to_expr(json.dumps(metadata)))
        module["_metadata"] = builder.finalize()["_metadata"]
        return module

    return _module_pass(add, "AddMetadata")


def pipeline(
    target: Any,
    bounds: Mapping[str, int],
    metadata: Mapping[str, Any],
    *,
    tensorize: Any | None = None,
    gemv: bool = True,
    noalias: bool = True,
) -> Any:
    """The whole lowering as one pass.

    Args:
        target: what code is generated for.
        bounds: symbolic size to its largest value.
        metadata: what ``_metadata()`` tells.
        tensorize: a pass over TIR functions that runs before they are scheduled, or None.
        gemv: schedule matrix-vector products by dlight's rule, as MLC-LLM does.
        noalias: tell the code generator that no function's output overlaps its inputs.
    """
    r = relax.transform
    graph = [attach_bounds(bounds), tirx.transform.BindTarget(target)]
    fuse = [
        r.LegalizeOps(),
        r.AnnotateTIROpPattern(),
        r.FoldConstant(),
        r.FuseOps(),
        r.FuseTIR(),
        r.DeadCodeElimination(),
        drop_pattern_attributes(),
    ]
    schedule = [
        *([tensorize] if tensorize else []),
        *([dlight.ApplyDefaultSchedule(dlight.cpu.GEMV())] if gemv else []),
        tirx.transform.ForceNarrowIndexToInt32(),
    ]
    plan = [
        r.RewriteDataflowReshape(),
        r.ToNonDataflow(),
        r.RemovePurityChecking(),
        r.CallTIRRewrite(),
        r.StaticPlanBlockMemory(),
        add_metadata(metadata),
    ]
    lower = [
        r.LowerAllocTensor(),
        r.KillAfterLastUse(),
        r.LowerRuntimeBuiltin(),
        r.VMShapeLower(),
        order_shape_functions(),
        r.AttachGlobalSymbol(),
        *([promise_noalias()] if noalias else []),
        r.AttachExternModules([]),
    ]
    return tvm.transform.Sequential([*graph, *fuse, *schedule, *plan, *lower])
