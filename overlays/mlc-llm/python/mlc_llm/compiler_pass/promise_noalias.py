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

As the last pass over TIR it also gives the functions that compute shapes one order:
``VMShapeLower`` walks a table that is hashed by address, so that their stores come in another
order with each process, and the same model as other bytes.

This module imports nothing but TVM.
"""

import tvm
from tvm import IRModule, tirx
from tvm.target import Target


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
        result = mod.clone()
        for g_var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                result.update_func(g_var, in_order(func).with_attr("tirx.noalias", True))
        return result


def in_order(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that only stores at constant places, none of which it reads, in their order.

    Any other function stays as it is.
    """
    stores = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else []
    places = [_place(store) for store in stores]
    if len(stores) < 2 or None in places or len({buffer for buffer, _ in places}) > 1:
        return func
    written = {index for _, index in places}
    read = [_place(load) for store in stores for load in _loads(store.value)]
    if len(written) < len(places) or any(p is None or p[1] in written for p in read):
        return func
    order = sorted(range(len(stores)), key=lambda n: places[n][1])
    return func.with_body(tirx.SeqStmt([stores[n] for n in order]))


def _place(access):
    """Buffer and constant index of a load or store; None for any other."""
    kinds = (tirx.BufferStore, tirx.BufferLoad)
    if not isinstance(access, kinds) or len(access.indices) != 1:
        return None
    (index,) = access.indices
    return (access.buffer, int(index)) if isinstance(index, tirx.IntImm) else None


def _loads(value):
    """Every load in an expression."""
    found = []
    tirx.stmt_functor.post_order_visit(
        value, lambda node: found.append(node) if isinstance(node, tirx.BufferLoad) else None
    )
    return found
