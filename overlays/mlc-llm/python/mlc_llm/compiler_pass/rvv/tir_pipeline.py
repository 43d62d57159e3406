# SPDX-License-Identifier: Apache-2.0
"""TVM's lowering of TIR functions, without the search for buffers that could be smaller.

``CompactBufferAllocation`` shrinks each buffer that a schedule left too large to the region that is
accessed. For that it estimates every access under all conditions around it: a third of what TVM
itself computes for a model of one layer goes into attention, whose kernels are written with
buffers of the size that they need. Functions with the attribute :data:`COMPACT` are lowered without
that pass.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, tirx

NAME = "mlc_rvv"
# Attribute of functions that allocate nothing which could be smaller.
COMPACT = "mlc_rvv.compact"
COMPACTION = "s_tir.CompactBufferAllocation"


def registered() -> str:
    """Register the pipeline; return its name for ``relax.build`` and ``tvm.compile``."""
    tirx.register_tir_pipeline(NAME, _pipeline)
    return NAME


def _pipeline() -> tuple[Any, Any, Any]:
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")

    def transform(mod: IRModule, context: tvm.transform.PassContext) -> IRModule:
        functions = dict(mod.functions_items())
        compact = {g: f for g, f in functions.items() if f.attrs and COMPACT in f.attrs}
        if not compact:
            return lower(mod)
        others = {g: f for g, f in functions.items() if g not in compact}
        with tvm.transform.PassContext(
            opt_level=context.opt_level,
            required_pass=list(context.required_pass),
            disabled_pass=[*context.disabled_pass, COMPACTION],
            instruments=list(context.instruments),
            config=dict(context.config),
        ):
            result = lower(IRModule(compact, attrs=mod.attrs))
        result.update(lower(IRModule(others, attrs=mod.attrs)))
        return result

    whole = tvm.transform.module_pass(transform, opt_level=0, name="LowerWithCompactBuffers")
    return whole, finalize_host, finalize_device
