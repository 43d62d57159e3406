# SPDX-License-Identifier: Apache-2.0
"""Odd models become what torch computes, here built for this CPU, or are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

from crosslab.errors import UserError  # noqa: E402
from torchroad.example import load_factory, make_example  # noqa: E402
from torchroad.importer import export, function_of, run  # noqa: E402
from torchroad.job import compare  # noqa: E402

MODELS = Path(__file__).parents[4] / "tests" / "support" / "models" / "odd_torch_models.py"
pytestmark = pytest.mark.slow


def imported(factory: str, bounds: dict[str, tuple[int, int]] | None = None) -> Any:
    """The example of a factory, and the module and parameters that it becomes."""
    torch.manual_seed(0)
    example = make_example(load_factory(MODELS, factory), MODELS)
    return example, *function_of(example, bounds or {})[1:]


def compiled(module: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """A function of torch's tensors, without the project's passes."""
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    given = [list(params.values())] if params else []

    def call(*tensors: Any) -> Any:
        inputs = [tvm.runtime.tensor(np.asarray(t.numpy(), order="C")) for t in tensors]
        return machine["main"](*inputs, *given)

    return call


@pytest.mark.parametrize(
    ("factory", "least", "most"),
    [
        ("places_from_the_end", -3, 2),
        ("places_of_a_table", 0, 8),
        ("places_of_rows", 0, 8),
        ("places_of_bags", 0, 8),
        ("places_that_are_written", 0, 8),
        ("places_of_classes", 0, 8),
        ("places_that_are_counted", 0, 8),
    ],
)
def test_an_index_beyond_its_axis_is_an_error(factory: str, least: int, most: int) -> None:
    example, module, params = imported(factory)
    call = compiled(module, params)
    *others, places = example.tensors()
    call(*others, places)
    for wrong in (least - 1, most + 1, 1 << 32):
        told = rf"index {wrong} is beyond its axis, whose .* {least} to {most}$"
        with pytest.raises(IndexError, match=told):
            call(*others, places.clone().fill_(0).index_fill(-1, torch.tensor([1]), wrong))


@pytest.mark.parametrize("factory", ["bags_by_offsets", "bags_by_offsets_with_the_end"])
def test_offsets_of_bags_are_verified(factory: str) -> None:
    example, module, params = imported(factory)
    call = compiled(module, params)
    places, right = example.tensors()
    call(places, right)
    for wrong, told in (
        ([1, 2, 5], "offset 0 is 1; "),
        ([0, 3, 2], "offset 2 is 2; "),
        ([0, 2, 6], "offset 2 is 6; .* the number of indices, 5$"),
        ([0, -1, 5], "offset 1 is -1; "),
    ):
        with pytest.raises(IndexError, match=told):
            call(places, torch.tensor(wrong))


@pytest.mark.parametrize(
    "factory",
    [
        "whole_numbers_with_others",
        "counts",
        "rounded_quotients",
        "rounded_quotients_of_floats",
        "factors_of_sums",
        "clamped_integers",
        "constants_of_another_type",
        "last_of_an_axis",
        "sorted_places",
        "rows_without_a_key",
        "attention_without_a_scale",
        "numbers_without_an_axis",
        "largest_of_axes",
        "places_from_the_end",
        "places_on_several_axes",
        "places_on_two_axes",
        "bags_of_rows",
        "bags_at_a_step",
        "triangles",
        "exponential_units",
        "resized_images",
        "pools_of_a_given_size",
        "averages_of_a_given_divisor",
        "norm_of_groups_without_weights",
        "places_of_maxima",
        "grid_of_points",
        "points_of_a_grid",
        "points_of_a_volume",
        "variances",
        "functions_near_zero",
        "functions_far_below_zero",
        "not_a_number",
        "orders",
        "orders_of_short_integers",
        "axis_of_a_number",
        "descending_ranges",
        "larger_of_numbers",
        "products_with_a_vector",
        "joined_dtypes",
        "negated_bytes",
        "weights_without_use",
        "truth_values",
        "moved_elements",
        "shifts",
        "written_elements",
        "written_parts",
        "written_by_a_reduction",
        "replaced_parts",
        "bits_of_numbers",
        "sums_of_products",
        "lists_of_classes",
        "products_of_integers",
        "lengths",
        "infinite_sides",
        "axes_without_elements",
        "steps_in_memory",
    ],
)
def test_an_odd_model_computes_what_torch_does(factory: str) -> None:
    example, module, params = imported(factory)
    made = compiled(module, params)(*example.tensors())
    made = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
    expected = {str(i): value.numpy() for i, value in enumerate(example.outputs())}
    error, _ = compare({str(i): value.numpy() for i, value in enumerate(made)}, expected)
    assert error < 1e-5


def test_functions_of_float64_have_all_its_digits() -> None:
    """Beside 1, an error of float32 would be 1e-8."""
    example, module, params = imported("functions_of_float64")
    made = compiled(module, params)(*example.tensors())
    for own, wanted in zip(made, example.outputs(), strict=True):
        np.testing.assert_allclose(own.numpy(), wanted.numpy(), rtol=1e-12, atol=1e-17)


def test_norms_of_large_means_are_as_near_to_float64_as_those_of_torch() -> None:
    example, module, params = imported("norms_of_large_means")
    made = compiled(module, params)(*example.tensors())
    wide = replace(example, model=copy.deepcopy(example.model).double())
    exact = replace(wide, by_place=tuple(x.double() for x in example.by_place)).outputs()
    for own, theirs, wanted in zip(made, example.outputs(), exact, strict=True):
        errors = [
            abs(one.double() - wanted).max() for one in (torch.from_numpy(own.numpy()), theirs)
        ]
        assert errors[0] < max(2 * errors[1], 1e-5)


@pytest.mark.parametrize(
    "factory",
    ["parts_of_an_axis", "several_that_vary", "table_of_positions", "keys_of_all_batches"],
)
def test_an_axis_that_varies_is_right_at_each_size(factory: str) -> None:
    example, module, params = imported(factory, {"n": (2, 32)})
    call = compiled(module, params)
    for size in (2, 10, 32):
        resized = example.resized({"n": size})
        made = call(*resized.tensors())
        made = [made] if isinstance(made, tvm.runtime.Tensor) else list(made)
        wanted = {str(i): value.numpy() for i, value in enumerate(resized.outputs())}
        error, _ = compare({str(i): value.numpy() for i, value in enumerate(made)}, wanted)
        assert error < 1e-5


def test_an_axis_that_varies_may_be_counted_from_the_end() -> None:
    inputs, dynamic = (torch.randn(2, 3),), {"input": {-1: "n"}}
    example = make_example(lambda: (torch.nn.ReLU(), inputs, dynamic), MODELS)
    program = export(example, {"n": (2, 9)})
    (bounds,) = program.range_constraints.values()
    assert (bounds.lower, bounds.upper) == (2, 9)


def test_steps_without_feeds_are_refused(tmp_path: Path) -> None:
    spec = {"file": str(MODELS), "factory": "weights_without_use", "dynamic": {}, "paged": False}
    with pytest.raises(UserError, match="--steps: the factory names no feeds"):
        run({**spec, "steps": 3}, tmp_path)


def test_numbers_of_a_larger_example_differ_along_both_axes() -> None:
    inputs, dynamic = (torch.randn(3, 2),), {"input": {0: "n", 1: "m"}}
    example = make_example(lambda: (torch.nn.Identity(), inputs, dynamic), MODELS)
    (larger,) = example.resized({"n": 40, "m": 30}).tensors()
    assert larger.shape == (40, 30) and larger.unique().numel() == larger.numel()
    assert torch.equal(larger[:3, :2], *inputs)
    assert larger.abs().max() <= 4 * inputs[0].abs().max()
    (smaller,) = example.resized({"n": 2}).tensors()
    assert torch.equal(smaller, inputs[0][:2])


def test_modules_in_training_mode_are_named() -> None:
    parts = torch.nn.Linear(2, 2), torch.nn.Dropout(0.1), torch.nn.BatchNorm1d(2).eval()
    example = make_example(lambda: (torch.nn.Sequential(*parts), (torch.ones(1, 2),)), MODELS)
    assert example.trained == ("1",)


@pytest.mark.parametrize(
    ("factory", "bounds", "message"),
    [
        ("counter", {}, "changes its buffer calls"),
        ("halves", {}, r"p_weight .* torch.float16"),
        ("short_inside", {}, r"odd_torch_models.py:\d+ has the dtype torch.bfloat16"),
        ("random_numbers", {}, r"randn_like.default in .*odd_torch_models.py:\d+ draws random"),
        ("random_attention", {}, "drops weights at random"),
        ("keys_of_more_batches", {}, r"its batches have the sizes .*1.* and .*3"),
        ("branch", {}, r"GuardOnDataDependent\w+ in .*odd_torch_models.py:\d+"),
        ("chosen_by_a_library", {}, r"Node in gaussian_nll_loss, .*odd_torch_models.py:\d+"),
        ("resized_by_a_factor", {"n": (2, 8)}, r"  sym_float in .*odd_torch_models.py:\d+"),
        ("without_inputs", {}, "no input"),
        ("number_as_output", {}, "an output of the model is int"),
        ("one_row", {"n": (2, 8)}, "n=2:8: in the example input has 1"),
        ("axis_that_is_not_there", {"n": (2, 8)}, r"n is axis 5 of input, whose shape is \(3, 8\)"),
        ("fails", {}, "the model fails on its inputs: RuntimeError: mat1"),
        ("branch_of_torch", {}, "cond in the model itself"),
        ("leaves", {}, "SystemExit: 3"),
        ("sizes_as_a_list", {}, r"\['n'\]} for sizes"),
        ("feeds_as_a_list", {}, r"\[0\] for feeds"),
        ("nested_inputs", {}, "is tuple, not a dense tensor"),
        ("sparse_input", {}, "is torch.sparse_coo, not a dense tensor"),
        ("division_by_nothing", {}, "operator divide of the model: .*Divide by zero"),
        ("powers_of_integers", {}, "cannot compile the operator power of the model: "),
        ("memory_of_a_view", {}, "as_strided.*reads the memory of a view"),
        ("complex_input", {}, "has the dtype torch.complex64: it computes complex numbers"),
        ("values_at_a_mask", {}, r"aten.index_put.default in the model itself, .*.py:\d+ cannot"),
        ("mask_beside_index", {}, r"index_put.*: it has a mask beside other indices"),
        ("packed_sequence", {}, "cannot export pack_padded_sequence"),
    ],
)
def test_what_would_be_computed_wrong_is_refused(
    factory: str, bounds: dict[str, tuple[int, int]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        imported(factory, bounds)
