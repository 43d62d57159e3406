# SPDX-License-Identifier: Apache-2.0
"""Frame of the passes that rewrite the TIR functions of a module one at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

# Gives the new function for a name and a function; None keeps the old one.
Rewrite = Callable[[str, tirx.PrimFunc], tirx.PrimFunc | None]


def function_pass(choose: Callable[[Target], Rewrite | None]) -> Callable[[Target], Any]:
    """Return the constructor of a module pass that rewrites each TIR function.

    Args:
        choose: gives the rewrite for a target, or None where the pass is the identity; its name
            is the pass's.
    """

    @functools.wraps(choose)
    def make(target: Target) -> Any:
        def transform(mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
            rewrite = choose(target)
            return mod if rewrite is None else rewrite_functions(mod, rewrite)

        return tvm.transform.module_pass(transform, opt_level=0, name=choose.__name__)

    return make


def rewrite_functions(mod: IRModule, rewrite: Rewrite) -> IRModule:
    """Return a copy of a module with its TIR functions rewritten; if None, the old one stays."""
    result = mod.clone()
    for g_var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            new = rewrite(g_var.name_hint, func)
            if new is not None:
                result.update_func(g_var, new)
    return result


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Return True if a schedule or an earlier pass has marked the function as scheduled."""
    return bool(func.attrs is not None and func.attrs.get("tirx.is_scheduled"))


def is_reshape(func: tirx.PrimFunc) -> bool:
    """Return True if the function copies its elements in order; a later pass makes it a view."""
    try:
        return bool(relax.analysis.has_reshape_pattern(func))
    # It does not take indices of two integer types, which MLC-LLM's copies of experts' rows have.
    except tvm.error.InternalError:
        return False
