# SPDX-License-Identifier: Apache-2.0
"""Lowering of a model's IRModule to code of the Relax VM, for CPUs.

The order is that of MLC-LLM's pipeline for passes that both have, so that both compilers produce
the same loops: graph, fused TIR functions, the project's passes, schedules, memory, VM. The
project's passes are those of the MLC-LLM overlay, called through the same hooks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight

from crosslab.compile.overlaypass import load_pass

# TVM 0.26: common subexpression elimination leaves variables without a definition in host code.
PASS_CONFIG = {"tirx.disable_cse_tir": True}


def _module_pass(function: Callable[[Any, Any], Any], name: str) -> Any:
    return tvm.transform.module_pass(function, opt_level=0, name=name)


def attach_bounds(bounds: Mapping[str, int]) -> Any:
    """Return a pass that gives memory planning the upper bounds of symbolic sizes."""

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
    """Return a pass that removes fusion's attributes from TIR functions, for the schedules."""

    def drop(module: Any, _: Any) -> Any:
        for var, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and "op_pattern" in (function.attrs or {}):
                module[var] = function.without_attr("op_pattern")
        return module

    return _module_pass(drop, "DropPatternAttributes")


def narrow_indices() -> Any:
    """Return a pass that makes indices 32 bits wide, except in functions with 64-bit values.

    TVM's pass fails on such functions, for example on a model's token ids from PyTorch.
    """

    def narrow(module: Any, _: Any) -> Any:
        fitting = {
            var: function
            for var, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc) and not _has_wide_values(function)
        }
        narrowed = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule(fitting))
        for var, function in narrowed.functions_items():
            module[var] = function
        return module

    return _module_pass(narrow, "NarrowIndices")


def _has_wide_values(function: Any) -> bool:
    # Parameters count: a function that only passes its buffers on neither loads nor stores. Every
    # variable is an instance of Buffer, but only buffers have a shape.
    dtypes = {str(param.dtype) for param in function.params if hasattr(param, "shape")}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.BufferLoad | tirx.BufferStore):
            dtypes.add(str(node.buffer.dtype))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return "int64" in dtypes


def add_metadata(metadata: Mapping[str, Any]) -> Any:
    """Return a pass that adds ``_metadata()``, a function that returns the table as JSON text."""

    def add(module: Any, _: Any) -> Any:
        builder = relax.BlockBuilder()
        with builder.function("_metadata", params=[]):
            builder.emit_func_output(relax.utils.convert_to_expr(json.dumps(metadata)))
        module["_metadata"] = builder.finalize()["_metadata"]
        return module

    return _module_pass(add, "AddMetadata")


def pipeline(
    target: Any, bounds: Mapping[str, int], metadata: Mapping[str, Any], *, gemv: bool = True
) -> Any:
    """Return a pass that does the whole lowering.

    Args:
        target: target of the generated code.
        bounds: largest value of each symbolic size.
        metadata: table that ``_metadata()`` returns.
        gemv: schedule matrix-vector products by dlight's rule, as MLC-LLM does.
    """
    r, hooks = relax.transform, load_pass("hooks")
    graph = [attach_bounds(bounds), tirx.transform.BindTarget(target)]
    fuse = [
        r.LegalizeOps(),
        r.AnnotateTIROpPattern(),
        r.FoldConstant(),
        hooks.before_fusion(target),
        r.FuseOps(),
        r.FuseTIR(),
        r.DeadCodeElimination(),
        drop_pattern_attributes(),
    ]
    schedule = [
        hooks.before_scheduling(target),
        *([dlight.ApplyDefaultSchedule(dlight.cpu.GEMV())] if gemv else []),
        narrow_indices(),
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
        r.AttachGlobalSymbol(),
        hooks.before_emission(target),
        r.AttachExternModules([]),
    ]
    return tvm.transform.Sequential([*graph, *fuse, *schedule, *plan, *lower])
