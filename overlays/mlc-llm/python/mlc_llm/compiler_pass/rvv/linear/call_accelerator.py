# SPDX-License-Identifier: Apache-2.0
"""CallAccelerator: linear layers become calls of a device that multiplies in int8.

With ``MLC_RVV_PRODUCTS=accelerator`` every product of float32 values by a weight that is a
parameter is done by a packed function (accelerators/runtime/functions.cc), which rounds values
and weights to int8, runs the layer's stream, and scales the sums. Whoever loads parameters hands
them to the device once, through the same entries as weights in tiles (tiles.py).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.target import Target

from ..functions import is_scheduled
from ..kernel_library import BlockReport, rewrite_with_kernels, write_reports
from ..stages import Stage, is_product, stages_of
from ..tir import PatternMismatch, block_of, whole
from .call_kernels import chosen_setting, replace_product
from .match import LinearLayer, match_linear
from .tiles import Places, add_loading, loaded_weights

PRODUCTS_VARIABLE = "MLC_RVV_PRODUCTS"
MULTIPLY, LOAD = "mlc_rvv.accelerator.multiply", "mlc_rvv.accelerator.load"
FLOAT_BYTES = 4
LANES = 8

logger = logging.getLogger(__name__)


@tvm.transform.module_pass(opt_level=0, name="CallAccelerator")
class CallAccelerator:
    """Pass that replaces linear layers by calls of the accelerator, where that is asked for."""

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Transform all TIR functions of a module that have one linear layer.

        Raises:
            RuntimeError: ``MLC_RVV_PRODUCTS`` has another value than cpu or accelerator; or
                there is no layer that an accelerator can do.
        """
        if chosen_setting(PRODUCTS_VARIABLE, ("cpu", "accelerator")) == "cpu":
            return mod
        layers = linear_layers(mod)
        places = {name: _place(mod[name], linear) for name, (linear, _) in layers.items()}
        weights = loaded_weights(mod, places)

        def rewrite(name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BlockReport]]:
            if name not in weights.functions:
                return func, []
            linear, stages = layers[name]
            new = replace_product(func, stages, linear, partial(_multiply, linear), LANES)
            return new, [BlockReport(name, linear.stage.name, MULTIPLY)]

        result, reports = rewrite_with_kernels(mod, rewrite)
        if not reports:
            raise RuntimeError(f"{PRODUCTS_VARIABLE}=accelerator: no linear layer is one for it")
        write_reports(reports, after=True)
        for report in reports:
            logger.info("%s", report)
        return add_loading(result, weights, {FLOAT_BYTES: _load()})


def linear_layers(mod: IRModule) -> dict[str, tuple[LinearLayer, list[Stage]]]:
    """TIR functions with one linear layer, whose weight is a float32 parameter.

    Returns:
        by name, the layer and all stages of the function.
    """
    found = {}
    for g_var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        stages = stages_of(func) or []
        products = [stage for stage in stages if is_product(stage)]
        if len(products) != 1:
            continue
        try:
            linear = match_linear(products[0], stages)
        except PatternMismatch:
            continue
        if linear.packing is None and _place(func, linear):
            found[g_var.name_hint] = linear, stages
    return found


def _place(func: tirx.PrimFunc, linear: LinearLayer) -> Places:
    params = enumerate(func.params)
    return {place: FLOAT_BYTES for place, param in params if param.same_as(linear.weight)}


def _multiply(linear: LinearLayer, out: Any) -> Any:
    """The statement that lets the device compute a layer."""
    pointers = [out.access_ptr("w"), *(b.access_ptr("r") for b in (linear.data, linear.weight))]
    call = tirx.call_packed(MULTIPLY, *pointers, linear.rows, linear.n, linear.k)
    reads = [whole(linear.data), whole(linear.weight)]
    return block_of(tirx.Evaluate(call), linear.stage.name, reads, [whole(out)])


def _load() -> tirx.PrimFunc:
    """A function of matrices [count, rows, columns] that hands them to the device."""
    shape = tuple(tirx.Var(name, "int64") for name in ("count", "rows", "columns"))
    data = tirx.decl_buffer(shape, f"uint{8 * FLOAT_BYTES}", "data")
    call = tirx.call_packed(LOAD, data.access_ptr("r"), *shape)
    body = block_of(tirx.Evaluate(call), "load", [whole(data)], [])
    func = tirx.PrimFunc([data], block_of(body, "root", [], []))
    return func.with_attrs({"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True})
