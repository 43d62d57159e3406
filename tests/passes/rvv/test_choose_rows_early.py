# SPDX-License-Identifier: Apache-2.0
"""ChooseRowsEarly: what no logit depends on is not computed, and the logits stay the same."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from crosslab.compile.overlaypass import load_pass
from crosslab.models.config import LlamaConfig


@pytest.fixture(scope="module")
def model(tvm: ModuleType) -> Any:
    return importlib.import_module("support.passes.rows_model")


def chosen(model: Any, before: Any, kind: str = "llvm") -> Any:
    target = model.tvm.target.Target({"kind": kind})
    return load_pass("choose_rows_early").ChooseRowsEarly(target)(before)


def inputs(model: Any, name: str) -> list[Any]:
    x = np.random.default_rng(1).standard_normal((1, model.ROWS, model.WIDTH)).astype("float32")
    # The ends of sequences of 2, 1 and 2 tokens.
    return [x, np.array([1, 2, 4], "int32")] if name == "batch_prefill" else [x]


@pytest.mark.parametrize(
    ("name", "rows", "choice"),
    [("prefill", "1", "last_row"), ("batch_prefill", "batch", "take_rows")],
)
def test_rows_are_chosen_right_after_attention(
    model: Any, name: str, rows: str, choice: str
) -> None:
    before = model.module()
    after = chosen(model, before)
    order = model.calls(after, name)
    # Attention computes all rows; those of its result and of what is added to it are chosen.
    assert sorted(shape[1] for _, shape in order if shape[1] != rows) == ["rows"]
    assert order[-1][1][1] == rows
    assert [function for function, _ in order].count(choice) == 2
    arguments = inputs(model, name)
    for want, got in zip(
        model.run(before, name, *arguments), model.run(after, name, *arguments), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["prefill", "batch_prefill"])
@pytest.mark.parametrize("mixes", [False, True])
def test_a_mixture_of_experts_moves_as_a_whole(model: Any, name: str, mixes: bool) -> None:
    """Also if its gate reads the sum of all rows, which stays that of all."""
    from tvm.relax.frontend import nn  # noqa: PLC0415
    from tvm.relax.frontend.nn import op  # noqa: PLC0415

    from crosslab.compile.mixture import Mixture  # noqa: PLC0415

    class Gate(nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            scores = super().forward(x)
            return scores + op.sum(scores, axis=1, keepdims=True) if mixes else scores

    experts, width, chosen_of_all = 4, model.WIDTH, 2
    config = LlamaConfig(
        *(width, width, 1, 1, width, 1, 8), experts=experts, chosen=chosen_of_all, family="mixtral"
    )
    before = model.module(Mixture(config, Gate(width, experts, bias=False)))
    after = chosen(model, before)
    products = [shape for function, shape in model.calls(after, name, 2) if "experts" in function]
    assert len(products) == 3
    assert not any("rows" in shape[0] for shape in products)
    weights = [(experts, width), (experts, 2 * width, width), (experts, width, width)]
    arguments = inputs(model, name)
    both = [model.run(mod, name, *arguments, between=weights) for mod in (before, after)]
    for want, got in zip(*both, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["verify", "both"])
def test_rows_that_are_read_elsewhere_are_computed(model: Any, name: str) -> None:
    before = model.module()
    assert model.calls(chosen(model, before), name) == model.calls(before, name)


def test_a_function_of_the_rows_number_gets_all_rows(model: Any) -> None:
    before = model.module(model.by_its_number)
    assert model.calls(chosen(model, before), "prefill") == model.calls(before, "prefill")


@pytest.mark.parametrize("between", [False, True])
def test_rows_of_a_part_of_a_tuple_are_chosen(tvm: ModuleType, model: Any, between: bool) -> None:
    """Such as the largest values of each row, which a C function finds with their places."""
    from tvm import relax, tirx  # noqa: PLC0415

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, tirx.Var("rows", "int64"), 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = builder.emit(relax.op.topk(x, 4, axis=2))
            values = builder.emit(relax.TupleGetItem(found, 0))
            if between:
                values = builder.emit(relax.op.exp(values))
            last = builder.emit_output(builder.emit_te(model.last_row, values))
        builder.emit_func_output(last)
    before = relax.transform.LegalizeOps()(builder.get())
    numbers = np.random.default_rng(2).standard_normal((1, 5, 16)).astype("float32")
    library = relax.build(chosen(model, before), model.LLVM)
    found = relax.VirtualMachine(library, tvm.cpu())["main"](tvm.runtime.tensor(numbers))
    want = np.sort(numbers[:, -1:])[..., :-5:-1]
    np.testing.assert_allclose(found.numpy(), np.exp(want) if between else want, rtol=1e-6)


def test_layers_in_a_files_blocks_work_on_rows(model: Any) -> None:
    configuration = load_pass("configuration")
    part = configuration.StoredPart("quants", model.WIDTH, 1)
    segment = configuration.StoredSegment(2 * model.WIDTH, "q8_0", model.WIDTH, (part,))
    store = load_pass("stored_layers").store_layers
    before = model.module(stored=lambda made: store(made, {"up.weight": (segment,)}))
    (shape,) = [s for f, s in model.calls(chosen(model, before), "prefill") if "stored" in f]
    assert shape[1] == "1"


def test_other_targets_keep_their_order(model: Any) -> None:
    before = model.module()
    after = chosen(model, before, "c")
    assert model.calls(after, "prefill") == model.calls(before, "prefill")
