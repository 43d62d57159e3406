# SPDX-License-Identifier: Apache-2.0
"""CallAccelerator: replaces linear layers by calls of a device that multiplies in int8.

A packed function (native/runtime/functions.cc) computes every product of float32 values by a
weight that is a parameter: it rounds the values to int8, runs the layer's stream, and scales the
sums. The program that loads parameters passes them to the device once, through the same entries as
weights in tiles (rvv/linear/tiles.py). A weight that the CPU does not read is a parameter in int8,
each row followed by its scale. A weight that the CPU reads, too, such as an embedding tied to the
last layer, stays float32, and the device rounds it when it is loaded. DescribeInt8Weights writes
the types into the module's metadata.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import tvm
from mlc_llm.compiler_pass.rvv.configuration import Configuration
from mlc_llm.compiler_pass.rvv.kernel_library import (
    BlockReport,
    add_reports,
    rewrite_with_kernels,
)
from mlc_llm.compiler_pass.rvv.linear.call_kernels import replace_product
from mlc_llm.compiler_pass.rvv.linear.match import LinearLayer, match_linear
from mlc_llm.compiler_pass.rvv.linear.tiles import (
    Places,
    TiledWeights,
    add_loading,
    choose_tiles,
    loaded_weights,
)
from mlc_llm.compiler_pass.rvv.stages import Stage, staged_functions
from mlc_llm.compiler_pass.rvv.tir import PatternMismatch, block_of, whole
from tvm import IRModule, ir, relax, tirx
from tvm.target import Target

INT8_WEIGHTS, METADATA = "mlc_rvv_int8_weights", "_metadata"
SCALE_BYTES = 4
MULTIPLY = "mlc_rvv.accelerator.multiply"
LOADS = {1: "mlc_rvv.accelerator.load_int8", 4: "mlc_rvv.accelerator.load_float32"}
INT8_BYTES, FLOAT_BYTES = 1, 4
LANES = 8

logger = logging.getLogger(__name__)


@tvm.transform.module_pass(opt_level=0, name="CallAccelerator")
class CallAccelerator:
    """Pass that replaces linear layers by calls of the accelerator."""

    def __init__(self, _target: Target, configuration: Configuration):
        self.configuration = configuration

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Replace the product in each TIR function that has a single linear layer.

        Raises:
            RuntimeError: the module has no linear layer for the accelerator.
        """
        layers = linear_layers(mod)
        places = {name: _place(mod[name], linear) for name, (linear, _) in layers.items()}
        weights = loaded_weights(mod, places)
        # Weights that the CPU does not read.
        int8 = choose_tiles(mod, {name: places[name] for name in weights.functions})

        def rewrite(name: str, func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[BlockReport]]:
            if name not in weights.functions:
                return func, []
            linear, stages = layers[name]
            weight = _int8_weight(linear) if name in int8.functions else linear.weight
            call = replace_product(func, stages, linear, partial(_multiply, linear, weight), LANES)
            params = [weight if p.same_as(linear.weight) else p for p in func.params]
            call = tirx.PrimFunc(params, call.body, call.ret_type, call.attrs)
            return call, [BlockReport(name, linear.stage.name, MULTIPLY)]

        result, reports = rewrite_with_kernels(mod, rewrite)
        if not reports:
            raise RuntimeError("CallAccelerator: the module has no linear layer for it")
        add_reports(reports, self.configuration.reports, logger)
        items = {n: INT8_BYTES if n in int8.items else FLOAT_BYTES for n in weights.items}
        result = _with_int8_parameters(result, int8)
        functions = {item: _load(item) for item in sorted(set(items.values()))}
        result = add_loading(result, TiledWeights(weights.functions, items), functions)
        return result.with_attr(INT8_WEIGHTS, sorted(int8.items))


@relax.expr_functor.mutator
class _Retyped(relax.PyExprMutator):  # type: ignore[misc]
    """A mutator of Relax functions that changes the types of some packed parameters to int8.

    Attributes:
        numbers: positions of the parameters in their tuple.
        callees: TIR functions with int8 parameters, by name.
    """

    def __init__(self, mod: IRModule, numbers: set[int], callees: dict[str, Any]):
        super().__init__(mod)
        self.numbers, self.callees = numbers, callees
        self.changed: dict[Any, Any] = {}

    def visit_var_(self, op: Any) -> Any:
        return self.changed[op] if op in self.changed else super().visit_var_(op)

    def visit_global_var_(self, op: Any) -> Any:
        return self.callees.get(op.name_hint, op)

    def function(self, func: relax.Function) -> relax.Function:
        inputs = int((func.attrs or {}).get("num_input", len(func.params)))
        params = list(func.params)
        for position, param in enumerate(params):
            if position < inputs or not isinstance(param.ty, ir.TupleType):
                continue
            fields = list(param.ty.fields)
            for number in self.numbers:
                fields[number] = _int8_type(fields[number])
            params[position] = relax.Var(param.name, relax.TupleType(fields))
            self.changed[param] = params[position]
        body = self.visit_expr(func.body)
        return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def _with_int8_parameters(mod: IRModule, weights: TiledWeights) -> IRModule:
    """Return a module whose Relax functions have int8 weights, like its TIR functions."""
    if not weights.items:
        return mod
    callees = {name: relax.BlockBuilder().add_func(mod[name], name) for name in weights.functions}
    functions = {}
    for g_var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            functions[g_var] = _Retyped(mod, set(weights.items), callees).function(func)
        else:
            functions[callees.get(g_var.name_hint, g_var)] = func
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _int8_type(matrix: Any) -> Any:
    rows, columns = matrix.shape
    return relax.TensorType((rows, columns + SCALE_BYTES), "int8")


def _int8_weight(linear: LinearLayer) -> Any:
    """Return a buffer for int8 rows, each followed by the bytes of its scale."""
    shape = (linear.n, linear.k + SCALE_BYTES)
    return tirx.decl_buffer(shape, "int8", linear.weight.name)


def linear_layers(mod: IRModule) -> dict[str, tuple[LinearLayer, list[Stage]]]:
    """Return TIR functions with a single linear layer, whose weight is a float32 parameter.

    Returns:
        the layer and all stages of the function, by name.
    """
    layers = {}
    for name, func, stages, products in staged_functions(mod):
        if len(products) != 1:
            continue
        try:
            linear = match_linear(products[0], stages)
        except PatternMismatch:
            continue
        if linear.packing is None and _place(func, linear):
            layers[name] = linear, stages
    return layers


def _place(func: tirx.PrimFunc, linear: LinearLayer) -> Places:
    params = enumerate(func.params)
    return {position: FLOAT_BYTES for position, param in params if param.same_as(linear.weight)}


def _multiply(linear: LinearLayer, weight: Any, out: Any) -> Any:
    """Return the statement that calls the device to compute a layer."""
    pointers = [out.access_ptr("w"), *(b.access_ptr("r") for b in (linear.data, weight))]
    call = tirx.call_packed(MULTIPLY, *pointers, linear.rows, linear.n, linear.k)
    reads = [whole(linear.data), whole(weight)]
    return block_of(tirx.Evaluate(call), linear.stage.name, reads, [whole(out)])


def _load(item: int) -> tirx.PrimFunc:
    """Return a function that gives the device matrices [count, rows, columns] of ``item`` bytes."""
    shape = tuple(tirx.Var(name, "int64") for name in ("count", "rows", "columns"))
    data = tirx.decl_buffer(shape, f"uint{8 * item}", "data")
    call = tirx.call_packed(LOADS[item], data.access_ptr("r"), *shape)
    body = block_of(tirx.Evaluate(call), "load", [whole(data)], [])
    func = tirx.PrimFunc([data], block_of(body, "root", [], []))
    return func.with_attrs({"tirx.is_scheduled": True, "tirx.noalias": True, "s_tir": True})


@tvm.transform.module_pass(opt_level=0, name="DescribeInt8Weights")
class DescribeInt8Weights:
    """Pass that corrects type and shape of int8 parameters in the module's metadata."""

    def __init__(self, _target: Target, _configuration: Configuration):
        pass

    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        """Change the function ``_metadata`` if CallAccelerator made parameters int8."""
        numbers = (mod.attrs or {}).get(INT8_WEIGHTS)
        if not numbers or METADATA not in [g_var.name_hint for g_var in mod.get_global_vars()]:
            return mod
        func = mod[METADATA]
        nodes: list[Any] = []
        relax.analysis.post_order_visit(func.body, nodes.append)
        (text,) = [node for node in nodes if isinstance(node, relax.StringImm)]
        about = json.loads(text.value)
        for number in numbers:
            param = about["params"][int(number)]
            rows, columns = param["shape"]
            param |= {"dtype": "int8", "shape": [rows, columns + SCALE_BYTES]}
        result = mod.clone()
        body = relax.SeqExpr([], relax.StringImm(json.dumps(about)))
        result[METADATA] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return result
