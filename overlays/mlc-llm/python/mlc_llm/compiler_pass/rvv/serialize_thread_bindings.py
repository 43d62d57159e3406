# SPDX-License-Identifier: Apache-2.0
"""SerializeThreadBindings: serial loops in place of loops bound to a GPU's threads.

The choice of experts (op/moe_misc.py) is written with loops bound to thread blocks and threads,
whatever the target; no CPU has these. Run one iteration after another, they compute the same: what
a thread keeps for itself may be one buffer for all of them. A function whose threads wait for each
other is left as it is, as loops cannot do that.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from .functions import Rewrite, function_pass
from .tir import nodes_of

BARRIER = "tirx.tvm_storage_sync"


@function_pass
def SerializeThreadBindings(target: Target) -> Rewrite | None:
    """Pass that makes thread-bound loops serial, in functions without barriers, for CPUs."""
    return (lambda _, func: serialize(func)) if target.kind.name == "llvm" else None


def serialize(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Make a function's thread-bound loops serial; None without such loops, or with a barrier."""
    bound = [loop for loop in nodes_of(func.body, tirx.For) if _is_bound(loop)]
    calls = nodes_of(func.body, tvm.ir.Call)
    if not bound or any(getattr(call.op, "name", "") == BARRIER for call in calls):
        return None

    def replace(loop: Any) -> Any:
        if not _is_bound(loop):
            return None
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tirx.stmt_functor.ir_transform(func.body, None, replace, ["tirx.For"]))


def _is_bound(loop: Any) -> bool:
    return bool(loop.kind == tirx.ForKind.THREAD_BINDING)
