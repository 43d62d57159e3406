# SPDX-License-Identifier: Apache-2.0
"""CallAccelerator: which functions call the device, what the module says, and what is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import (
    VECTORS,
    calls_of_packed,
    host,
    module_of,
    outcomes,
    riscv64,
    settings,
)
from support.passes.linear import Q4, VOCABULARY, WIDTH, linear_function, model

MULTIPLY, LOAD = "mlc_rvv.accelerator.multiply", "mlc_rvv.accelerator.load_float32"


@pytest.fixture
def transform(tvm: ModuleType, tmp_path: Path) -> Any:
    def run(module: Any, target: Any = None) -> Any:
        configuration = settings(reports=tmp_path)
        # It imports the patched tree, which is on sys.path only in a test.
        found = importlib.import_module("accelerator.passes.call_accelerator")
        return found.CallAccelerator(target or host(), configuration)(module)

    return run


@pytest.mark.parametrize("target", ["riscv64", "host"])
def test_layers_call_the_device_and_rows_are_taken_by_the_cpu(transform: Any, target: str) -> None:
    before = model(None)
    after = transform(before, target=riscv64(*VECTORS) if target == "riscv64" else host())
    assert (
        calls_of_packed(after["prefill_tir"]) == calls_of_packed(after["decode_tir"]) == [MULTIPLY]
    )
    assert after["embed_tir"].same_as(before["embed_tir"])
    assert calls_of_packed(after["reorder_weights_32"]) == [LOAD]
    text = after["weights_in_tiles"].script().replace('\\"', '"')
    assert json.dumps({"parameters": [{"index": 0, "item": 4}]}) in text


def test_a_weight_that_the_cpu_does_not_read_is_a_parameter_in_int8(transform: Any) -> None:
    from tvm import IRModule, relax  # noqa: PLC0415 - as above

    functions = model(None).functions_items()
    module = IRModule({v: f for v, f in functions if not v.name_hint.startswith("embed")})
    about = {"params": [{"name": "w", "shape": [VOCABULARY, WIDTH], "dtype": "float32"}]}
    builder = relax.BlockBuilder(module)
    with builder.function("_metadata", params=[]):
        builder.emit_func_output(relax.utils.convert_to_expr(json.dumps(about)))
    after = transform(builder.finalize())
    found = importlib.import_module("accelerator.passes.call_accelerator")
    describe = found.DescribeInt8Weights(host(), settings())
    after = describe(after)
    (weight,) = after["prefill"].params[1].ty.fields
    assert ([int(size) for size in weight.shape], str(weight.dtype)) == ([150, 84], "int8")
    assert calls_of_packed(after["reorder_weights_8"]) == ["mlc_rvv.accelerator.load_int8"]
    text = after["_metadata"].script().replace('\\"', '"')
    assert json.dumps({"name": "w", "shape": [150, 84], "dtype": "int8"}) in text
    assert describe(model(None)).script() == model(None).script()


def test_a_layer_whose_weight_is_no_parameter_of_the_model_stays(
    transform: Any, tmp_path: Path
) -> None:
    module = model(None)
    module["alone"] = linear_function("rows", 48, 32, add=True)
    after = transform(module)
    assert after["alone"].same_as(module["alone"])
    assert set(outcomes(tmp_path)) == {
        ("decode_tir", "NT_matmul"),
        ("prefill_tir", "NT_matmul"),
    }


def test_a_module_without_a_layer_for_the_device_is_refused(transform: Any) -> None:
    for module in (model(Q4), module_of(product=linear_function(4, 48, 32))):
        with pytest.raises(RuntimeError, match="the module has no linear layer for it"):
            transform(module)
