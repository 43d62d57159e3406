# SPDX-License-Identifier: Apache-2.0
"""Tells the code generator that what a function writes is reached by one parameter only.

Most TIR functions carry this mark (``tirx.noalias``) already. But TVM 0.26 declares all functions
of a module before it emits any, and its LLVM code generator remembers the mark of the one declared
last (``is_restricted_`` in codegen_llvm.cc): one function without it takes it from all, and every
loop stores and reloads what it could keep in registers.

The promise holds for MLC-LLM's modules: a function's outputs are either allocated for the call
(memory planning reuses only what no argument needs any more), or are the paged cache's pages and
scratch tensors, each an allocation of its own (paged_kv_cache.cc). What arguments do share, the
cache's one buffer of index arrays, functions only read.

As the last pass over TIR it also puts the stores of the functions that compute shapes in order
(:mod:`shape_functions`).

This module imports nothing but TVM.
"""

import tvm
from tvm import IRModule
from tvm.target import Target

from .each_function import change_functions
from .shape_functions import in_order


@tvm.transform.module_pass(opt_level=0, name="PromiseNoAlias")
class PromiseNoAlias:
    """Marks every TIR function of a module for CPUs; the identity on other targets.

    It has to run when no pass adds functions any more, ``VMShapeLower`` being the last that does.
    """

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the module."""
        if self.target.kind.name != "llvm":
            return mod
        return change_functions(mod, lambda _, func: in_order(func).with_attr("tirx.noalias", True))
