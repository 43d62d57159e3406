# SPDX-License-Identifier: Apache-2.0
"""All that is done to TIR functions for RVV CPUs, as one pass for a compile pipeline.

``MLC_RVV_STEPS`` names the steps that are taken, separated by commas, for whoever wants to see
what each is worth; without it all are:

* ``widen``: what is stored in half precision is computed in float32 (:mod:`half_precision`);
* ``attention``: micro-kernels in tiled prefill attention (:mod:`tensorization`);
* ``linear``: kernels for the linear layers (:mod:`linear_layers`);
* ``rotary``: rotary embeddings in vectors (:mod:`rotary`);
* ``loops``: activations, norms and copies in vectors (:mod:`vector_loops`);
* ``halves``: half precision converted without instructions for it (:mod:`half_precision`).

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

import os
from typing import Any

import tvm
from tvm.target import Target

from .half_precision import ComputeInFloat32, ConvertByBits
from .linear_layers import CallLinearKernels
from .rotary import VectorizeRotary
from .tensorization import TensorizePrefill
from .vector_loops import VectorizeLoops

STEPS_VARIABLE = "MLC_RVV_STEPS"
STEPS = {
    "widen": ComputeInFloat32,
    "attention": TensorizePrefill,
    "linear": CallLinearKernels,
    "rotary": VectorizeRotary,
    "loops": VectorizeLoops,
    "halves": ConvertByBits,
}


def rvv_passes(target: Target) -> Any:
    """All steps for a target, in their order; each is the identity where it does not apply.

    Raises:
        RuntimeError: ``MLC_RVV_STEPS`` names a step that there is not.
    """
    return _sequence(target, list(STEPS))


def beyond_attention(target: Target) -> Any:
    """The steps after ``attention``, for a pipeline that has TensorizePrefill on its own.

    Raises:
        RuntimeError: ``MLC_RVV_STEPS`` names a step that there is not.
    """
    return _sequence(target, [name for name in STEPS if name != "attention"])


def _sequence(target: Target, names: list[str]) -> Any:
    chosen = os.environ.get(STEPS_VARIABLE)
    wanted = list(STEPS) if chosen is None else [name for name in chosen.split(",") if name]
    if unknown := [name for name in wanted if name not in STEPS]:
        raise RuntimeError(
            f"{STEPS_VARIABLE} names {', '.join(unknown)}; the steps are: {', '.join(STEPS)}"
        )
    passes = [STEPS[name](target) for name in names if name in wanted]
    return tvm.transform.Sequential(passes, name="RvvPasses")
