# SPDX-License-Identifier: Apache-2.0
"""Loops in place of a GPU's threads, for functions that come scheduled for one.

The choice of experts (op/moe_misc.py) is written with loops bound to thread blocks and threads,
whatever the target; no CPU has these. :class:`ThreadsAsLoops` makes ordinary loops of them, one
iteration after another: what a thread keeps for itself may be one buffer for all of them. A
function whose threads wait for each other is left as it is, as loops cannot do that.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.target import Target

from .each_function import change_functions

BARRIER = "tirx.tvm_storage_sync"


@tvm.transform.module_pass(opt_level=0, name="ThreadsAsLoops")
class ThreadsAsLoops:
    """Unbinds loops from threads on CPUs; the identity on other targets."""

    def __init__(self, target: Target):
        """Remember the target, which decides what the pass does."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform the functions of a module that have bound loops and no barrier."""
        if self.target.kind.name != "llvm":
            return mod
        return change_functions(
            mod, lambda _, func: threads_as_loops(func) if _has_threads_alone(func) else None
        )


def _has_threads_alone(func: tirx.PrimFunc) -> bool:
    bound, barriers = [], []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.For) and node.kind == tirx.ForKind.THREAD_BINDING:
            bound.append(node)
        elif isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == BARRIER:
            barriers.append(node)

    tirx.stmt_functor.post_order_visit(func.body, visit)
    return bool(bound) and not barriers


def threads_as_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function with serial loops where it has bound ones."""

    def replace(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return None
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tirx.stmt_functor.ir_transform(func.body, None, replace, ["tirx.For"]))
