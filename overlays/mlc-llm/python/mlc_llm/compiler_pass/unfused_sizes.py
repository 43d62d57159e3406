# SPDX-License-Identifier: Apache-2.0
"""Keeps functions that take a size as a parameter out of fusion.

A function over a buffer of ``batch_size * 2`` rows, as after the choice of two experts a token,
cannot read ``batch_size`` off the buffer, so that TVM passes it as a parameter. FuseOps gives a
group of such functions the size twice, as a number and as a shape, and FuseTIR (TVM 0.26 and 0.27)
makes a function with the same variable as two parameters of it, which it then refuses:
``Check failed: (remap_.count(source) == 0)``. It is in TVM's native library; left out of fusion,
such functions do the same, in more passes over memory.
"""

from __future__ import annotations

import tvm
from tvm import IRModule, tirx
from tvm.target import Target

from .each_function import change_functions

# As relax.transform.AnnotateTIROpPattern numbers them.
OPAQUE = 8


@tvm.transform.module_pass(opt_level=0, name="KeepSizesUnfused")
class KeepSizesUnfused:
    """Marks functions with numbers among their parameters as opaque to FuseOps on CPUs."""

    def __init__(self, target: Target):
        """Remember the target: what is compiled for others stays as it is."""
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Mark the functions of a module whose patterns have been annotated."""
        if self.target.kind.name != "llvm":
            return mod

        def mark(_: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
            takes_sizes = any(map(_is_number, func.params))
            return func.with_attr("op_pattern", OPAQUE) if takes_sizes else None

        return change_functions(mod, mark)


def _is_number(parameter: tirx.Var) -> bool:
    return isinstance(parameter.ty, tvm.ir.PrimType)
