# SPDX-License-Identifier: Apache-2.0
"""CallAccelerator: which functions call the device, what the module says, and what is refused."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from support.passes.functions import VECTORS, calls_of_packed, host, module_of, outcomes, riscv64
from support.passes.linear import Q4, VOCABULARY, WIDTH, linear_function, model

from crosslab.compile.overlaypass import load_pass

MULTIPLY, LOAD = "mlc_rvv.accelerator.multiply", "mlc_rvv.accelerator.load_float32"


@pytest.fixture
def transform(tvm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(module: Any, products: str = "accelerator", target: Any = None) -> Any:
        monkeypatch.setenv("MLC_RVV_PRODUCTS", products)
        return load_pass("linear.call_accelerator").CallAccelerator(target or host())(module)

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
    describe = load_pass("linear.describe_int8_weights").DescribeInt8Weights(host())
    after = describe(after)
    (weight,) = after["prefill"].params[1].ty.fields
    assert ([int(size) for size in weight.shape], str(weight.dtype)) == ([150, 84], "int8")
    assert calls_of_packed(after["reorder_weights_8"]) == ["mlc_rvv.accelerator.load_int8"]
    text = after["_metadata"].script().replace('\\"', '"')
    assert json.dumps({"name": "w", "shape": [150, 84], "dtype": "int8"}) in text
    assert describe(model(None)).script() == model(None).script()


def test_a_layer_whose_weight_is_no_parameter_of_the_model_stays(
    transform: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("MLC_RVV_TENSORIZE_REPORT", str(tmp_path / "report.json"))
    module = model(None)
    module["alone"] = linear_function("rows", 48, 32, add=True)
    after = transform(module)
    assert after["alone"].same_as(module["alone"])
    assert set(outcomes(tmp_path / "report.json")) == {
        ("decode_tir", "NT_matmul"),
        ("prefill_tir", "NT_matmul"),
    }


def test_without_the_setting_nothing_changes(transform: Any) -> None:
    before = model(None)
    assert transform(before, "cpu").same_as(before)
    assert transform(before, "").same_as(before)


@pytest.mark.parametrize(
    ("products", "packing", "message"),
    [
        ("gpu", None, "MLC_RVV_PRODUCTS is 'gpu'; it takes cpu or accelerator"),
        ("accelerator", Q4, "no linear layer is one for it"),
    ],
)
def test_a_mistake_is_named(transform: Any, products: str, packing: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        transform(model(packing), products)


def test_a_module_without_a_model_has_nothing_for_the_device(transform: Any) -> None:
    with pytest.raises(RuntimeError, match="no linear layer"):
        transform(module_of(product=linear_function(4, 48, 32)))
