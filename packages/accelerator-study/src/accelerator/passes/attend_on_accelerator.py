# SPDX-License-Identifier: Apache-2.0
"""AttendOnAccelerator: replaces attention of a paged KV cache by calls of a device.

The cache calls a function for a prompt, for a prompt after cached tokens, and for a decoded token.
Each function passes its arguments to a packed function (native/runtime/functions.cc), which
multiplies queries by keys and probabilities by values on the device. Functions for sliding windows
and for trees of tokens stay on the CPU.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tvm
from mlc_llm.compiler_pass.rvv.configuration import Configuration
from mlc_llm.compiler_pass.rvv.kernel_library import (
    BlockReport,
    add_reports,
    rewrite_with_kernels,
)
from mlc_llm.compiler_pass.rvv.tir import block_of
from tvm import IRModule, tirx
from tvm.target import Target

RAGGED, PAGED = "mlc_rvv.accelerator.attend_ragged", "mlc_rvv.accelerator.attend_paged"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttentionFunction:
    """The positions of a KV cache function's parameters.

    Attributes:
        call: packed function that replaces the function.
        count: of the function's parameters.
        inputs: queries, their starts, keys and values or pages, and their starts; None: the
            function has no such parameter.
        results: output and log-sum-exp.
        causal: position of the flag; None: each query sees all tokens.
    """

    call: str
    count: int
    inputs: tuple[int | None, ...]
    results: tuple[int, int]
    causal: int | None


# By the functions' names in the module, which tvm.relax.frontend.nn.llm chooses.
FUNCTIONS = {
    "batch_prefill_ragged_kv": AttentionFunction(RAGGED, 14, (0, 1, 2, 3, 4), (7, 8), causal=9),
    "batch_prefill_paged_kv_cpu": AttentionFunction(
        PAGED, 15, (0, 1, 2, 3, 4, 5), (8, 9), causal=10
    ),
    "batch_decode_paged_kv_cpu": AttentionFunction(
        PAGED, 13, (0, None, 1, 2, 3, 4), (7, 8), causal=None
    ),
}


@tvm.transform.module_pass(opt_level=0, name="AttendOnAccelerator")
class AttendOnAccelerator:
    """Pass that moves attention's products to the accelerator."""

    def __init__(self, _target: Target, configuration: Configuration):
        self.configuration = configuration

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Replace the bodies of a module's attention functions by calls of the device.

        Raises:
            RuntimeError: the module has no attention function, or the device cannot compute it.
        """

        def rewrite(name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BlockReport]]:
            if name not in FUNCTIONS:
                return func, []
            calling = _calling(name, func, FUNCTIONS[name])
            return calling, [BlockReport(name, "attention", FUNCTIONS[name].call)]

        result, reports = rewrite_with_kernels(mod, rewrite)
        if not reports:
            raise RuntimeError(
                "AttendOnAccelerator: the module has no function of attention for it"
            )
        add_reports(reports, self.configuration.reports, logger)
        return result


def _calling(name: str, func: tirx.PrimFunc, known: AttentionFunction) -> tirx.PrimFunc:
    """Return the function with a call of the device as its body.

    Raises:
        RuntimeError: the function's parameters are unknown, or not in float32.
    """
    if len(func.params) != known.count:
        raise RuntimeError(f"{name} has {len(func.params)} parameters, {known.count} are known")
    buffers: list[Any] = [None if n is None else func.params[n] for n in known.inputs]
    out, lse = (func.params[n] for n in known.results)
    queries = buffers[0]
    if {str(queries.dtype), str(out.dtype), str(buffers[2].dtype)} != {"float32"}:
        raise RuntimeError(f"{name}: the accelerator rounds float32, not {queries.dtype}")
    heads, width = queries.shape[1:]
    # The starts of the cache's sequences, and the end of the last sequence.
    starts = buffers[4 if known.call == RAGGED else 3]
    count = starts.shape[0] - 1
    if known.call == RAGGED:
        kept, sizes = buffers[2].shape[1], []
        if int(buffers[3].shape[2]) != int(width):
            raise RuntimeError(f"{name}: values are as wide as keys on the accelerator")
    else:
        kept, sizes = buffers[2].shape[2], [buffers[2].shape[3]]
    rest = known.results[1] + 1 + (known.causal is not None)
    causal = tirx.const(0, "int32") if known.causal is None else func.params[known.causal]
    rotary, scale = func.params[rest], func.params[known.count - 1]
    null = tirx.reinterpret("handle", tirx.const(0, "uint64"))
    pointers = [null if b is None else b.access_ptr("r") for b in buffers]
    pointers += [out.access_ptr("w"), lse.access_ptr("w")]
    extents = [tirx.Cast("int64", e) for e in (count, heads, kept, *sizes, width, causal, rotary)]
    call = tirx.call_packed(known.call, *pointers, *extents, scale)
    body = block_of(block_of(tirx.Evaluate(call), "attention", [], []), "root", [], [])
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
