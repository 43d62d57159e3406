# SPDX-License-Identifier: Apache-2.0
"""Models in ONNX become what onnxruntime computes, here built for this CPU, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
tvm = pytest.importorskip("tvm")

from onnx import helper  # noqa: E402
from onnxruntime import quantization  # noqa: E402
from tvm import relax  # noqa: E402

from crosslab.errors import UserError  # noqa: E402
from torchroad.example import load_factory, make_example  # noqa: E402
from torchroad.job import compare  # noqa: E402
from torchroad.onnx_file import inputs_of, read_onnx  # noqa: E402
from torchroad.onnx_model import import_onnx, onnxruntime_outputs  # noqa: E402

MODELS = Path(__file__).parents[4] / "tests" / "support" / "models" / "torch_models.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def exported(module: Any, inputs: tuple[Any, ...], file: Path) -> Path:
    torch.onnx.export(module.eval(), inputs, str(file), dynamo=False)
    return file


def outputs_of(model: Any, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of an imported model, without the project's passes."""
    module, params, _ = import_onnx({"main": (model, inputs)})
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target("llvm")), tvm.cpu())
    tensors = [tvm.runtime.tensor(value) for value in inputs.values()]
    outputs = machine["main"](*tensors, *([list(params.values())] if params else []))
    outputs = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else list(outputs)
    return [output.numpy() for output in outputs]


def difference(model: Any, inputs: dict[str, Any] | None = None) -> float:
    """The largest relative difference from onnxruntime's outputs; infinite for other shapes."""
    inputs = inputs or inputs_of(model)
    pairs = (outputs_of(model, inputs), onnxruntime_outputs(model, inputs))
    error, _ = compare(*({str(i): each for i, each in enumerate(listed)} for listed in pairs))
    return error


class Block(torch.nn.Module):
    """A residual block, a depthwise convolution, and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.each = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.down = torch.nn.Conv2d(8, 8, 1, stride=2)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.nn.functional.relu6(self.each(x) + self.down(x))
        x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
        return self.head(x.mean(dim=(2, 3)))


def block(file: Path) -> Path:
    torch.manual_seed(0)
    return exported(Block(), (torch.randn(1, 3, 16, 16),), file)


OTHERS = ("perceptron", "vision", "encoder")


@pytest.mark.parametrize(
    "factory", ["convnet", *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS)]
)
def test_a_model_that_torch_exports(factory: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = make_example(load_factory(MODELS, factory), MODELS)
    file = exported(example.model, tuple(example.tensors()), tmp_path / "model.onnx")
    model = read_onnx(file)
    assert difference(model) < 1e-5


def test_a_recurrent_layer_that_torch_exports_is_refused_by_its_name(tmp_path: Path) -> None:
    file = exported(torch.nn.LSTM(2, 3), (torch.randn(4, 1, 2),), tmp_path / "model.onnx")
    model = read_onnx(file)
    with pytest.raises(UserError, match="cannot be imported:\n  LSTM"):
        import_onnx({"main": (model, inputs_of(model))})


def test_convolutions_become_products(tmp_path: Path) -> None:
    model = read_onnx(block(tmp_path / "block.onnx"))
    module, _, _ = import_onnx({"main": (model, inputs_of(model))})
    assert "nn.conv2d" not in module.script()
    assert difference(model) < 1e-5


class Digits(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Pictures of noise, for the ranges of activations."""

    def __init__(self, name: str) -> None:
        random = np.random.default_rng(1)
        shape = (1, 3, 16, 16)
        self.left = [{name: random.normal(size=shape).astype(np.float32)} for _ in range(4)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def test_a_quantised_model_is_within_a_step(tmp_path: Path) -> None:
    """QuantizeLinear and DequantizeLinear around each operator; halves may round either way."""
    plain, quantised = block(tmp_path / "block.onnx"), tmp_path / "quantised.onnx"
    reader = Digits(read_onnx(plain).graph.input[0].name)
    form = quantization.QuantFormat.QDQ
    quantization.quantize_static(str(plain), str(quantised), reader, form, per_channel=True)
    model = read_onnx(quantised)
    assert {"QuantizeLinear", "DequantizeLinear"} <= {n.op_type for n in model.graph.node}
    inputs = inputs_of(model, seed=3)
    (ours,), (theirs,) = outputs_of(model, inputs), onnxruntime_outputs(model, inputs)
    scales = {tensor.name: tensor for tensor in model.graph.initializer}
    last = [n for n in model.graph.node if n.op_type == "DequantizeLinear"][-1]
    step = float(onnx.numpy_helper.to_array(scales[last.input[1]]))
    assert np.abs(ours - theirs).max() <= 1.01 * step


Arrays = dict[str, np.ndarray]
PADS: Arrays = {"pads": np.ones(8, np.int64)}
PICTURE: Arrays = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}

SQUARE: Arrays = {"x": PICTURE["x"][0, :, :2, :2].copy()}


def single(
    operator: str, inputs: Arrays = PICTURE, constants: Arrays | None = None, **attributes: Any
) -> Any:
    """A model of an operator on inputs and constants, which have the arrays' types."""
    constants = constants or {}
    node = helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    values = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([node], "graph", given, outputs, values)
    opsets = [helper.make_opsetid(domain, 18) for domain in ("", attributes.get("domain", ""))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def twice(model: Any) -> Any:
    """The model with its node twice."""
    model.graph.node.append(model.graph.node[0])
    return model


def scales(*numbers: float) -> Arrays:
    """Constants of Resize: no region, and scales."""
    return {"region": np.empty(0, np.float32), "scales": np.float32(numbers)}


UPWARDS = np.float32([1, 1, 2, 3])
NORM: Arrays = {name: np.ones(2, np.float32) for name in ("scale", "b", "mean", "variance")}


def of_set(model: Any, version: int) -> Any:
    """The model in an operator set."""
    for each in model.opset_import:
        each.version = version
    return model


def upsampled_twice() -> Any:
    """A model of Upsample in operator set 9 whose scales are results of Constant."""
    shown = onnx.numpy_helper.from_array
    nodes = [
        node
        for x, y, numbers in (("x", "a", UPWARDS), ("a", "y", np.float32([1, 1, 1.25, 1.5])))
        for node in (
            helper.make_node("Constant", [], [f"{y} scales"], value=shown(numbers)),
            helper.make_node("Upsample", [x, f"{y} scales"], [y]),
        )
    ]
    model = of_set(single("Upsample", PICTURE), 9)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def of_no_own_set() -> Any:
    """A model whose only operator is of another domain, as is its only operator set."""
    model = single("Mine", PICTURE, domain="company")
    del model.opset_import[0]
    return model


def sequence(model: Any) -> Any:
    """The model with a sequence of pictures as its output."""
    kind = onnx.TensorProto.FLOAT
    shape = PICTURE["x"].shape
    model.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("y", kind, shape))
    return model


def with_node(model: Any, **value: Any) -> Any:
    """The model with its constant c as the result of a node."""
    graph = model.graph
    del graph.initializer[:]
    graph.node.insert(0, helper.make_node("Constant", [], ["c"], **value))
    return model


def one_hot(dtype: str) -> Any:
    """A model of OneHot, whose indices are from -4 to 3, with values of a type."""
    constants = {"depth": np.int64(3), "values": np.array([-1, 5], dtype)}
    return single("OneHot", {"x": np.arange(-4, 4)}, constants)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (twice(single("LpNormalization")), r"1 operators of ONNX.*LpNormalization \(2 times\)"),
        (single("Mine", domain="company"), "company::Mine"),
        (single("Pad", PICTURE, PADS, mode="reflect"), "Pad with the mode reflect"),
        (single("IsInf", detect_negative=0), "IsInf with the detect_negative 0"),
        (single("Resize", PICTURE, scales(1, 1, 0.5, 0.5), antialias=1), "the antialias 1"),
        (single("Resize", PICTURE, scales(1, 1, 1.3, 2)), "scales that do not give whole sizes"),
        (one_hot("float32"), "OneHot without constant values of float64 or int64"),
        (
            single("BatchNormalization", PICTURE, NORM, training_mode=1),
            "BatchNormalization with the training_mode 1",
        ),
        (of_set(single("Upsample", PICTURE, scales=[1.0, 1.0, 1.3, 2.0]), 7), "whole sizes"),
        (single("MaxPool", PICTURE, kernel_shape=[2, 2], storage_order=1), "the storage_order 1"),
        (
            of_set(single("Add", SQUARE, {"c": np.float32([2, 3])}, axis=1, broadcast=1), 6),
            "axis 1",
        ),
        (sequence(single("SequenceConstruct")), "the output y is not a tensor"),
        (single("Reshape", PICTURE, {"c": np.int64([0, 5])}, allowzero=1), "the allowzero 1"),
        (single("Shape"), "the output y is a shape, not a tensor"),
        (single("BitwiseNot", {"x": PICTURE["x"]}), "TVM cannot compile .*BitwiseNot"),
        (of_no_own_set(), "company::Mine"),
    ],
)
def test_what_would_be_computed_wrong_is_named(model: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        import_onnx({"main": (model, inputs_of(model))})


SMALL: Arrays = {"x": PICTURE["x"] * np.float32(1e-6)}
TABLE: Arrays = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}
COLUMNS = np.array([[-1, -3], [0, 2]])
NUMBERS = np.arange(-5, 6)
DEEP: Arrays = {"x": PICTURE["x"] - np.float32(30)}
ENDS: Arrays = {"x": np.float32([-np.inf, -1, np.nan, np.inf])}
NANS: Arrays = {"x": np.float32([np.nan, -1, 0.25, 0.75, np.inf])}
PAIR: Arrays = {**NANS, "z": NANS["x"][::-1].copy()}
FEW: Arrays = {
    "i": np.array([[[-1, 2, 0], [0, 1, 3]], [[1, 0, -2], [2, 3, 0]]]),
    "new": np.arange(12, dtype=np.float32).reshape(2, 2, 3) + 30,
}
TRUTHS: Arrays = {"x": np.array([True, False]), "z": np.array([[True], [False]])}
NEW: Arrays = {"new": np.float32([[7, 8, 9, 10], [11, 12, 13, 14]])}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (one_hot("int64"), {"x": np.arange(-4, 4)}),
        (single("Resize", PICTURE, scales(1, 1, 0.25, 1.5)), PICTURE),
        *(
            (of_set(model, version), PICTURE)
            for model, version in (
                (single("Upsample", PICTURE, scales=[1.0, 1.0, 2.0, 3.0]), 7),
                (single("Upsample", PICTURE, {"scales": UPWARDS}), 9),
                (single("Upsample", PICTURE, {"scales": UPWARDS}, mode="linear"), 9),
                (single("Resize", PICTURE, {"scales": UPWARDS}), 10),
                (single("Slice", PICTURE, starts=[1, -5], ends=[1000, -1], axes=[1, 3]), 9),
                (single("Slice", PICTURE, starts=[0, 1], ends=[1, 3]), 7),
            )
        ),
        (upsampled_twice(), PICTURE),
        (single("IsInf", TABLE, detect_negative=1), {"x": TABLE["x"] / np.float32(0)}),
        *(
            (single(name, {**TABLE, "i": i}, rest, **about), {**TABLE, "i": i})
            for name, i, rest, about in (
                ("GatherElements", np.array([[[-1, 0]], [[-4, 3]]]), {}, {"axis": 2}),
                ("GatherND", COLUMNS, {}, {}),
                ("GatherND", np.array([[-1], [0]], np.int64), {}, {"batch_dims": 1}),
                ("ScatterND", COLUMNS, NEW, {}),
                ("ScatterND", COLUMNS, NEW, {"reduction": "add"}),
            )
        ),
        (single("GatherND", TABLE, {"i": COLUMNS}), TABLE),
        *((single(name, DEEP), DEEP) for name in ("Softplus", "Mish")),
        (single("ThresholdedRelu", NANS, alpha=0.5), NANS),
        *((single(name, NANS), NANS) for name in ("Relu", "Sign", "HardSigmoid", "Softplus")),
        (single("Clip", NANS, {"min": np.float32(0), "max": np.float32(0.5)}), NANS),
        (of_set(single("Clip", NANS, min=0.0, max=0.5), 6), NANS),
        *((of_set(single("Clip", ENDS, **limits), 6), ENDS) for limits in ({}, {"min": 0.0})),
        *((single("Clip", ENDS, limits), ENDS) for limits in ({}, {"min": np.float32(0)})),
        *((single(name, PAIR), PAIR) for name in ("Max", "Min", "Mean")),
        (single("Max", {}, {"x": NUMBERS, "c": np.int64(0)}), {}),
        (single("Min", {}, {"x": NUMBERS, "c": NUMBERS[::-1].copy()}), {}),
        (single("PRelu", PICTURE, {"slope": PICTURE["x"][0, :, :1]}), PICTURE),
        (single("Mod", {}, {"x": NUMBERS, "c": np.int64([4])}), {}),
        (single("Mod", {}, {"x": NUMBERS, "c": np.int64([4])}, fmod=1), {}),
        (single("Sum", PICTURE, {"on": np.float32([1]), "x:": np.float32([2])}), PICTURE),
        (with_node(single("Add", PICTURE, {"c": np.float32(2)}), value_float=2.0), PICTURE),
        (with_node(single("Add", PICTURE, {"c": np.float32(2)}), value_floats=[2.0] * 4), PICTURE),
        (with_node(single("Reshape", PICTURE, {"c": np.int64([2])}), value_ints=[2, 16]), PICTURE),
        (single("Reshape", PICTURE, {"c": np.int64([-1, 4])}, allowzero=1), PICTURE),
        (single("Equal", TRUTHS), TRUTHS),
        (single("Equal", {"x": TRUTHS["x"]}, {"c": np.array([True])}), {"x": TRUTHS["x"]}),
        (single("ScatterElements", {**TABLE, **FEW}, axis=2), {**TABLE, **FEW}),
        (single("ScatterElements", {**TABLE, **FEW}, axis=2, reduction="add"), {**TABLE, **FEW}),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_an_operator_of_onnx(model: Any, given: Arrays) -> None:
    assert difference(model, given) < 1e-5


FAR: Arrays = {"x": PICTURE["x"] + np.float32(3000)}
GROUPS: Arrays = {"scale": np.float32([2, 3]), "b": np.float32([-1, 1])}


def normal(axes: tuple[int, ...]) -> np.ndarray:
    """FAR, whose mean is subtracted, and then divided by its deviation."""
    x = FAR["x"].astype(np.float64)
    return np.asarray((x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True))


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (single("Elu", SMALL, alpha=1.5), SMALL, lambda x: np.where(x > 0, x, 1.5 * np.expm1(x))),
        (
            single("Selu", SMALL, alpha=1.5, gamma=2.0),
            SMALL,
            lambda x: 2 * np.where(x > 0, x, 1.5 * np.expm1(x)),
        ),
        (
            single("GroupNormalization", FAR, GROUPS, num_groups=2, epsilon=0.0),
            FAR,
            lambda _: normal((2, 3)) * [[[2]], [[3]]] + [[[-1]], [[1]]],
        ),
        (
            of_set(single("GroupNormalization", FAR, GROUPS, num_groups=1, epsilon=0.0), 21),
            FAR,
            lambda _: normal((1, 2, 3)) * [[[2]], [[3]]] + [[[-1]], [[1]]],
        ),
        (single("MeanVarianceNormalization", FAR), FAR, lambda _: normal((0, 2, 3))),
        (
            of_set(single("PRelu", SQUARE, {"slope": np.float32([2, 3])}), 6),
            SQUARE,
            lambda x: np.where(x < 0, x * [[2], [3]], x),
        ),
        (
            of_set(single("Add", SQUARE, {"c": np.float32([2, 3])}, axis=2, broadcast=1), 6),
            SQUARE,
            lambda x: np.add(x, [2, 3]),
        ),
    ],
)
def test_an_operator_that_onnxruntime_lacks_or_rounds(
    model: Any, given: Arrays, expected: Any
) -> None:
    (output,) = outputs_of(model, given)
    right = np.asarray(expected(given["x"].astype(np.float64)), np.float32)
    error, _ = compare({"y": output}, {"y": right})
    assert error < 1e-5


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cat.onnx"
    file.write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match=r"cat.onnx is not a model in ONNX"):
        read_onnx(file)


def test_a_model_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = block(tmp_path / "block.onnx")
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 1000)
    with pytest.raises(UserError, match=r"block.onnx has [\d,]+ bytes .* at most 1,000 "):
        read_onnx(file)
