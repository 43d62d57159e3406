# SPDX-License-Identifier: Apache-2.0
"""KeepScalarParamsOpaque: functions with scalar parameters are kept out of fusion.

A function over a buffer of ``batch_size * 2`` rows, as after the choice of two experts a token,
cannot read ``batch_size`` off the buffer, so that TVM passes it as a parameter. FuseOps gives a
group of such functions the size twice, as a number and as a shape, and FuseTIR (TVM 0.26 and 0.27)
makes a function with the same variable as two parameters of it, which it then refuses:
``Check failed: (remap_.count(source) == 0)``. The defect is in TVM's native library. Outside of
fusion such functions compute the same, in more passes over memory.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.target import Target

from .functions import Rewrite, function_pass

# As relax.transform.AnnotateTIROpPattern numbers them.
OPAQUE = 8


@function_pass
def KeepScalarParamsOpaque(target: Target) -> Rewrite | None:
    """Pass that marks functions with scalar parameters as opaque to FuseOps, for CPUs.

    It runs on a module whose patterns have been annotated.
    """

    def mark(_: str, func: tirx.PrimFunc) -> tirx.PrimFunc | None:
        has_scalars = any(isinstance(p.ty, tvm.ir.PrimType) for p in func.params)
        return func.with_attr("op_pattern", OPAQUE) if has_scalars else None

    return mark if target.kind.name == "llvm" else None
