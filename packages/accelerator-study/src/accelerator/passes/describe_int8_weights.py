# SPDX-License-Identifier: Apache-2.0
"""DescribeInt8Weights: writes the int8 parameters of CallAccelerator into a module's metadata."""

from __future__ import annotations

import json
from typing import Any

import tvm
from mlc_llm.compiler_pass.rvv.configuration import Configuration
from tvm import IRModule, relax
from tvm.target import Target

INT8_WEIGHTS, METADATA = "mlc_rvv_int8_weights", "_metadata"
SCALE_BYTES = 4


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
        (text,) = [node for node in _expressions(func.body) if isinstance(node, relax.StringImm)]
        about = json.loads(text.value)
        for number in numbers:
            param = about["params"][int(number)]
            rows, columns = param["shape"]
            param |= {"dtype": "int8", "shape": [rows, columns + SCALE_BYTES]}
        result = mod.clone()
        body = relax.SeqExpr([], relax.StringImm(json.dumps(about)))
        result[METADATA] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return result


def _expressions(body: Any) -> list[Any]:
    nodes: list[Any] = []
    relax.analysis.post_order_visit(body, nodes.append)
    return nodes
