# SPDX-License-Identifier: Apache-2.0
"""Classifiers in ONNX on a device: the parts, their integers, and the outputs beside float32."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from accelerator.device import Device, load_device  # noqa: E402
from accelerator.errors import AcceleratorError  # noqa: E402
from accelerator.layer import MOST_ROUNDED, Convolution, LinearLayer, Pooling  # noqa: E402
from accelerator.pictures import classifier as classifier_module  # noqa: E402
from accelerator.pictures.classifier import Classifier  # noqa: E402
from accelerator.pictures.partition import DeviceProduct  # noqa: E402
from accelerator.pictures.quantise import MOST_LEFT, QuantisedLayer, best_exponents, rounded  # noqa: E402

DEVICE = load_device("vta-1x16x16")
SHAPE = [1, 3, 12, 12]
Nodes = list[Any]


def model_of(nodes: Nodes, weights: dict[str, Any], result: str = "y") -> Any:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
    tensors = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual_network() -> Any:
    """A stem, a residual block whose shortcut comes after it, a depthwise layer, and a head."""
    random, make = np.random.default_rng(2), helper.make_node
    square = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    weights = {
        "stem": random.normal(0, 0.3, (16, 3, 3, 3)),
        "first": random.normal(0, 0.1, (24, 16, 3, 3)),
        "second": random.normal(0, 0.1, (24, 24, 3, 3)),
        "short": random.normal(0, 0.3, (24, 16, 1, 1)),
        "each": random.normal(0, 0.3, (24, 1, 3, 3)),
        "head": random.normal(0, 0.3, (5, 24)),
        "bias": random.normal(0, 0.3, 5),
        **{name: random.uniform(0.5, 1.5, 16) for name in ("scale", "shift", "mean", "variance")},
        "low": np.array(0.0),
        "high": np.array(6.0),
    }
    norm = ["a", "scale", "shift", "mean", "variance"]
    nodes = [
        make("Conv", ["x", "stem"], ["a"], name="stem", **square),
        make("BatchNormalization", norm, ["b"]),
        make("Relu", ["b"], ["c"]),
        make("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        make("Conv", ["d", "first"], ["e"], name="first", **square),
        make("Relu", ["e"], ["f"]),
        make("Conv", ["f", "second"], ["g"], name="second", **square),
        make("Conv", ["d", "short"], ["h"], name="short", kernel_shape=[1, 1]),
        make("Add", ["g", "h"], ["i"]),
        make("Relu", ["i"], ["j"]),
        make("Conv", ["j", "each"], ["k"], name="each", group=24, **square),
        make("Clip", ["k", "low", "high"], ["l"]),
        make("GlobalAveragePool", ["l"], ["m"]),
        make("Flatten", ["m"], ["n"]),
        make("Gemm", ["n", "head", "bias"], ["y"], name="head", transB=1),
    ]
    return model_of(nodes, weights)


def pictures(count: int) -> list[Any]:
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(count)]


def in_float(model: Any, picture: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, picture)[0]


@pytest.mark.parametrize("device", [DEVICE, load_device("vta-16x16x16")], ids=lambda d: d.name)
def test_a_residual_network_is_near_to_float32(device: Device) -> None:
    """Each layer proved and equal to numpy; the output within the rounding of int8."""
    model = residual_network()
    classifier = Classifier.calibrated(model, pictures(6), device)
    classifier.proved = True
    for picture in pictures(8)[6:]:
        wanted = in_float(model, picture)
        assert np.abs(classifier(picture)[0] - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_residual_far_below_the_result_adds_nothing() -> None:
    """The device rounds by at most 15 bits at once; here the scales are 16 bits or more apart."""
    random, make = np.random.default_rng(4), helper.make_node
    weights = {
        "large": random.normal(0, 1000, (16, 3, 1, 1)),
        "small": random.normal(0, 1e-5, (16, 3, 1, 1)),
    }
    nodes = [
        make("Conv", ["x", "large"], ["a"], name="large", kernel_shape=[1, 1]),
        make("Conv", ["x", "small"], ["b"], name="small", kernel_shape=[1, 1]),
        make("Add", ["a", "b"], ["c"]),
        make("MaxPool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = model_of(nodes, weights)
    classifier = Classifier.calibrated(model, pictures(3), DEVICE)
    classifier.proved = True
    (layer,) = (
        p for p in classifier.parts if isinstance(p, QuantisedLayer) and p.part.residual == "b"
    )
    assert layer.program.layer.requantisation.residual == -MOST_ROUNDED
    wanted = in_float(model, pictures(1)[0])
    assert np.abs(classifier(pictures(1)[0])[0] - wanted).max() < 0.05 * np.abs(wanted).max()


def test_activations_additions_and_norms_are_part_of_a_layer() -> None:
    classifier = Classifier.calibrated(residual_network(), pictures(2), DEVICE)
    steps = classifier.steps
    assert [(step.name, step.place) for step in steps] == [
        *(("stem", "device"), ("d", "device"), ("first", "device")),
        *(("short", "device"), ("second", "device"), ("each", "device")),
        *(("GlobalAveragePool", "CPU"), ("Flatten", "CPU"), ("head", "device")),
    ]
    assert [step.macs for step in steps][:3] == [16 * 144 * 27, 0, 24 * 36 * 144]
    quantised = (p for p in classifier.parts if isinstance(p, QuantisedLayer))
    layers = {p.program.layer.name: p for p in quantised}
    second, each = layers["second"], layers["each"]
    assert (second.part.residual, second.part.limits) == ("h", (0.0, None))
    assert each.part.limits == (0.0, 6.0)
    assert isinstance(each.program.layer, Convolution)
    assert each.program.layer.groups == 24
    assert isinstance(layers["d"].program.layer, Pooling)
    head = classifier.parts[-1]
    assert isinstance(head, DeviceProduct)
    assert (head.rows, head.inputs, head.outputs, head.count) == (1, 24, 5, 1)


def test_random_numbers_are_drawn_in_each_run() -> None:
    """Two operators without inputs: the constant becomes a constant of the model."""
    make, weights = helper.make_node, {"w": np.ones((4, 3, 3, 3))}
    two = numpy_helper.from_array(np.array(2.0, np.float32))
    shape = [1, 4, *SHAPE[2:]]
    nodes = [
        make("Conv", ["x", "w"], ["a"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        make("RandomNormal", [], ["noise"], shape=shape),
        # Small, so that the sums of two runs do not both pass the range of int8.
        make("RandomNormalLike", ["w"], ["more"], scale=0.01),
        make("ReduceSum", ["more"], ["sum"], keepdims=0),
        make("Constant", [], ["two"], value=two),
        make("Add", ["noise", "two"], ["b"]),
        make("Add", ["b", "sum"], ["c"]),
        make("Add", ["a", "c"], ["y"]),
    ]
    classifier = Classifier.calibrated(model_of(nodes, weights), pictures(1), DEVICE)
    on_cpu = [step.name for step in classifier.steps if step.place == "CPU"]
    assert {"RandomNormal", "RandomNormalLike"} <= set(on_cpu) and "Constant" not in on_cpu
    first, second = (classifier(pictures(1)[0])[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_scale_has_the_least_error() -> None:
    values = np.random.default_rng(0).normal(size=4000)
    found = best_exponents([{"x": values}])["x"]
    errors = {
        at: ((rounded(values, at) * 2.0**-at - values) ** 2).sum() for at in range(found - 2, 9)
    }
    assert errors[found] == min(errors.values())


def test_one_scale_for_all_tensors_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """VTA's tutorial has a common scale of 8 / 128 for all activations (global_scale)."""
    model, (picture,) = residual_network(), pictures(1)
    wanted = in_float(model, picture)

    def error() -> float:
        classifier = Classifier.calibrated(model, [picture], DEVICE)
        return float(np.abs(classifier(picture)[0] - wanted).max())

    own = error()
    common = lambda runs: {name: 4 for run in runs for name in run}  # noqa: E731
    monkeypatch.setattr(classifier_module, "best_exponents", common)
    assert error() > 1.1 * own


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/2/first/Conv", "2.first"),
        ("/0/Conv", "Conv 0"),
        ("stem", "stem"),
        ("", "y"),
    ],
)
def test_a_layer_has_the_name_of_its_module(path: str, name: str) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name=path, kernel_shape=[1, 1])
    model = model_of([node], {"w": np.ones((1, 3, 1, 1))})
    (step,) = Classifier.calibrated(model, pictures(1), DEVICE).steps
    assert step.name == name


def test_what_the_device_lacks_stays_on_the_cpu() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="deep", auto_pad="SAME_UPPER"),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    model = model_of(nodes, {"w": np.random.default_rng(0).normal(size=(4, 3, 3, 3))})
    classifier = Classifier.calibrated(model, pictures(1), DEVICE)
    assert [step.place for step in classifier.steps] == ["CPU"] * 3
    assert classifier.steps[0].macs == 4 * 144 * 27
    (picture,) = pictures(1)
    np.testing.assert_allclose(classifier(picture)[0], in_float(model, picture), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "fused"),
    [
        *(((12, 1, 1), True), ((1, 12, 1, 1), True), ((), True), ((1, 1, 1, 1), True)),
        *(((12,), False), ((1, 1, 1, 12), False), ((1, 1, 12, 1), False), ((1,) * 5, False)),
    ],
    ids=str,
)
def test_a_constant_is_a_bias_only_along_the_channels(shape: tuple[int, ...], fused: bool) -> None:
    """The convolution has as many channels as rows and columns."""
    random, make = np.random.default_rng(6), helper.make_node
    weights = {"w": random.normal(0, 0.3, (12, 3, 1, 1)), "b": random.normal(0, 2, shape)}
    nodes = [make("Conv", ["x", "w"], ["a"], kernel_shape=[1, 1]), make("Add", ["a", "b"], ["y"])]
    model = model_of(nodes, weights)
    classifier = Classifier.calibrated(model, pictures(2), DEVICE)
    assert [step.place for step in classifier.steps] == ["device", *["CPU"] * (not fused)]
    (picture,) = pictures(1)
    wanted = in_float(model, picture)
    found = classifier(picture)[0]
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


SQUARE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
NORM = ["a", "scale", "shift", "mean", "variance"]


def odd_models() -> dict[str, tuple[Any, list[str]]]:
    """Models with something that the device lacks, and the places of their parts."""
    random, make = np.random.default_rng(9), helper.make_node
    conv = make("Conv", ["x", "w"], ["a"], name="conv", **SQUARE)
    weights = {"w": random.normal(0, 0.3, (16, 3, 3, 3))}
    norm = {name: random.uniform(0.5, 1.5, 16) for name in NORM[1:]}
    everywhere = {name: random.uniform(0.5, 1.5, (16, 12, 12)) for name in NORM[1:]}
    training = make("BatchNormalization", NORM, ["y", "m", "v"], training_mode=1)
    cast = [make("Cast", ["x"], ["b"], to=to) for to in (TensorProto.FLOAT16, TensorProto.INT64)]
    rows = make("Reshape", ["b", "rows"], ["c"])
    half = model_of(
        [cast[0], make("Conv", ["b", "h"], ["c"], **SQUARE), make("Cast", ["c"], ["y"], to=1)], {}
    )
    half.graph.initializer.append(
        numpy_helper.from_array(weights["w"].astype(np.float16), "h"),
    )
    whole = model_of(
        [cast[1], rows, make("MatMul", ["c", "i"], ["d"]), make("Cast", ["d"], ["y"], to=1)], {}
    )
    whole.graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in (("rows", np.array([36, 12])), ("i", random.integers(0, 999, (12, 5))))
    )
    value = helper.make_empty_tensor_value_info("t")
    branches = [
        helper.make_graph([make(op, names, ["t"])], op, [], [value])
        for op, names in (("Add", ["a", "r"]), ("Identity", ["a"]))
    ]
    branch = make("If", ["positive"], ["y"], then_branch=branches[0], else_branch=branches[1])
    condition = [
        make("Relu", ["a"], ["r"]),
        make("ReduceMean", ["r"], ["mean"], keepdims=0),
        make("Greater", ["mean", "zero"], ["positive"]),
    ]
    clip = make("Clip", ["a", "zero", "below"], ["y"])
    last = make("Conv", ["b", "last"], ["y"], name="last", kernel_shape=[1, 1])
    wide = make("Conv", ["x", "wide"], ["a"], name="wide", kernel_shape=[31, 31], pads=[15] * 4)
    large = {"wide": random.normal(0, 0.05, (16, 3, 31, 31)), "last": np.ones((4, 16, 1, 1))}
    infinite = weights | {"bias": np.array([np.inf, *np.zeros(15)]), "last": large["last"]}
    biased = make("Conv", ["x", "w", "bias"], ["a"], name="conv", **SQUARE)
    relu = make("Relu", ["a"], ["b"])
    older = model_of([conv, make("BatchNormalization", NORM, ["y"], spatial=0)], {})
    older.opset_import[0].version = 7
    older.graph.initializer.extend(model_of([], weights | everywhere).graph.initializer)
    return {
        "statistics of the picture": (
            model_of([conv, training], weights | norm),
            ["device", "CPU"],
        ),
        "a norm of each position": (older, ["device", "CPU"]),
        "float16": (half, ["CPU"] * 3),
        "integers": (whole, ["CPU"] * 4),
        "names read by inner graphs": (
            model_of([conv, *condition, branch], weights | {"zero": np.array(-9.0)}),
            ["device", *["CPU"] * 4],
        ),
        "limits in wrong order": (
            model_of([conv, clip], weights | {"zero": np.array(0.0), "below": np.array(-1.0)}),
            ["device", "CPU"],
        ),
        "a kernel without a tile": (model_of([wide, relu, last], large), ["CPU", "CPU", "device"]),
        "infinity": (model_of([biased, relu, last], infinite), ["CPU", "CPU", "device"]),
    }


@pytest.mark.parametrize("name", odd_models())
def test_nodes_that_the_device_cannot_compute_stay_on_the_cpu(name: str) -> None:
    model, places = odd_models()[name]
    classifier = Classifier.calibrated(model, pictures(3), DEVICE)
    classifier.proved = True
    assert [step.place for step in classifier.steps] == places
    if name == "infinity":
        with pytest.raises(AcceleratorError, match="b: NaN and infinity have no value in int8"):
            classifier(pictures(1)[0])
        return
    (found,), wanted = classifier(pictures(1)[0]), in_float(model, pictures(1)[0])
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_sum_beyond_32_bits_stays_on_the_cpu() -> None:
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["a"]),
        helper.make_node("Reshape", ["a", "row"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    model = model_of(nodes, {"w": np.random.default_rng(0).normal(size=(432 * 400, 2))})
    for name, value in (("times", [1, 1, 1, 400]), ("row", [1, 432 * 400])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    classifier = Classifier.calibrated(model, pictures(1), DEVICE)
    assert [step.place for step in classifier.steps] == ["CPU"] * 3


def test_an_output_may_be_a_constant_and_a_sequence_is_refused_by_its_operator() -> None:
    make, weights = helper.make_node, {"w": np.ones((4, 3, 1, 1)), "k": np.arange(3.0)}
    model = model_of([make("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])], weights)
    model.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [3]))
    (picture,) = pictures(1)
    _, constant = Classifier.calibrated(model, [picture], DEVICE)(picture)
    np.testing.assert_array_equal(constant, np.arange(3.0))
    nodes = [
        make("SplitToSequence", ["x"], ["s"]),
        make("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]
    with pytest.raises(AcceleratorError, match="SplitToSequence: its result 's' is not a tensor"):
        Classifier.calibrated(model_of(nodes, {}), [picture], DEVICE)


@pytest.mark.parametrize("factor", [1e-9, 1e6, 1e13])
def test_scales_follow_tensors_of_any_size(factor: float) -> None:
    random, make = np.random.default_rng(3), helper.make_node
    weights = {
        "w": random.normal(0, 0.3 * factor, (16, 3, 3, 3)),
        "last": random.normal(size=(4, 16, 3, 3)),
    }
    nodes = [
        make("Conv", ["x", "w"], ["a"], **SQUARE),
        make("Conv", ["a", "last"], ["y"], **SQUARE),
    ]
    model = model_of(nodes, weights)
    classifier = Classifier.calibrated(model, pictures(2), DEVICE)
    (picture,) = pictures(1)
    wanted = in_float(model, picture)
    assert np.abs(classifier(picture)[0] - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_residual_is_shifted_left_by_at_most_16_bits() -> None:
    """A residual is 0 or far below 0, and the sum of both has steps of a hundredth."""
    random, make = np.random.default_rng(4), helper.make_node
    weights = {
        "small": random.normal(0, 0.01, (4, 3, 1, 1)),
        "large": np.full((4, 3, 1, 1), -1e6),
    }
    nodes = [
        make("Conv", ["x", "small"], ["a"], kernel_shape=[1, 1]),
        make("Relu", ["x"], ["r"]),
        make("Conv", ["r", "large"], ["b"], kernel_shape=[1, 1]),
        make("Add", ["a", "b"], ["c"]),
        make("Relu", ["c"], ["d"]),
        make("MaxPool", ["d"], ["y"], kernel_shape=[1, 1]),
    ]
    model, (picture,) = model_of(nodes, weights), pictures(1)
    classifier = Classifier.calibrated(model, [picture], DEVICE)
    classifier.proved = True
    forms = [p.program.layer.requantisation for p in classifier.parts if hasattr(p, "program")]
    assert [form.residual for form in forms] == [None, MOST_LEFT, None]
    assert not classifier(picture)[0][in_float(model, picture) == 0].any()


def test_a_calibration_keeps_the_tensors_of_few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Any]] = []
    outputs, alive = classifier_module._outputs, []

    def watched(*given: Any) -> Any:
        alive.append(sum(each() is not None for each in kept))
        found = outputs(*given)
        kept.append(weakref.ref(found[0]))
        return found

    monkeypatch.setattr(classifier_module, "_outputs", watched)
    Classifier.calibrated(residual_network(), pictures(8), DEVICE)
    assert len(alive) == 8 and max(alive) <= 2  # the first picture's, whose shapes divide the model


def test_a_batch_of_pictures_stays_on_the_cpu() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[1, 1])]
    model = model_of(nodes, {"w": np.ones((4, 3, 1, 1))})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    feed = {"x": np.concatenate([each["x"] for each in pictures(2)])}
    classifier = Classifier.calibrated(model, [feed], DEVICE)
    assert [step.place for step in classifier.steps] == ["CPU"]
    np.testing.assert_allclose(classifier(feed)[0], in_float(model, feed), rtol=1e-5)


@pytest.mark.parametrize(("operands", "shape"), [(("w", "x"), (12, 12)), (("x", "w"), (3, 12, 12))])
def test_a_product_with_another_constant_than_a_matrix_of_weights_stays_on_the_cpu(
    operands: tuple[str, str], shape: tuple[int, ...]
) -> None:
    weights = {"w": np.random.default_rng(7).normal(size=shape)}
    model = model_of([helper.make_node("MatMul", operands, ["y"])], weights)
    (picture,) = pictures(1)
    classifier = Classifier.calibrated(model, [picture], DEVICE)
    assert [(s.place, s.macs) for s in classifier.steps] == [("CPU", 3 * 12**3)]
    np.testing.assert_allclose(classifier(picture)[0], in_float(model, picture), rtol=1e-5)


def transformer_block() -> Any:
    """Tokens of a table, a layer of attention of two heads, and a shared weight, as in BERT."""
    random, make = np.random.default_rng(4), helper.make_node
    weights = {name: random.normal(0, 0.2, (24, 24)) for name in ("q", "k", "v", "o")}
    weights |= {"table": random.normal(size=(30, 24)), "bias": random.normal(0, 0.2, 24)}
    weights |= {"scale": random.uniform(0.5, 1.5, 24), "root": np.array(12**-0.5)}
    integers = {"heads": [1, 7, 2, 12], "flat": [1, 7, 24], "last": [7, 24]}
    nodes = [
        make("Gather", ["table", "x"], ["t"]),
        make("LayerNormalization", ["t", "scale", "bias"], ["n"]),
    ]
    for name, turns in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            make("MatMul", ["n", name], [f"{name}1"], name=f"/{name}/MatMul"),
            make("Reshape", [f"{name}1", "heads"], [f"{name}2"]),
            make("Transpose", [f"{name}2"], [f"{name}3"], perm=turns),
        ]
    nodes += [
        make("MatMul", ["q3", "k3"], ["s"], name="/attention/MatMul"),
        make("Mul", ["s", "root"], ["s1"]),
        make("Softmax", ["s1"], ["p"], axis=-1),
        make("MatMul", ["p", "v3"], ["m"], name="/attention/MatMul_1"),
        make("Transpose", ["m"], ["m1"], perm=[0, 2, 1, 3]),
        make("Reshape", ["m1", "flat"], ["m2"]),
        make("Identity", ["o"], ["same"]),
        make("Reshape", ["m2", "last"], ["m3"]),
        make("Gemm", ["m3", "same", "bias"], ["y"], name="/out/Gemm", transB=1),
    ]
    model = model_of(nodes, weights)
    tensors = (numpy_helper.from_array(np.array(v), n) for n, v in integers.items())
    model.graph.initializer.extend(tensors)
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.INT64, [1, 7]))
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("device", [DEVICE, load_device("vta-16x16x16")], ids=lambda d: d.name)
def test_a_transformers_products_run_on_the_device(device: Device) -> None:
    """Also those of two computed matrices; two outputs, integers as the input."""
    random, model = np.random.default_rng(8), transformer_block()
    feeds = [{"x": random.integers(0, 30, (1, 7))} for _ in range(3)]
    classifier = Classifier.calibrated(model, feeds[:2], device)
    classifier.proved = True
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for found, wanted in zip(classifier(feeds[2]), session.run(None, feeds[2]), strict=True):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    steps = [step for step in classifier.steps if step.macs]
    assert {step.place for step in steps} == {"device"}
    assert [step.macs for step in steps] == [7 * 24 * 24] * 3 + [2 * 7 * 7 * 12] * 2 + [7 * 24 * 24]
    assert all(step.cycles for step in steps)


def test_a_product_that_differs_from_numpys_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = {"x": np.arange(7)[None]}
    classifier = Classifier.calibrated(transformer_block(), [feed], DEVICE)
    classifier.proved = True
    reference = LinearLayer.reference
    monkeypatch.setattr(LinearLayer, "reference", lambda *given: reference(*given) + 1)
    with pytest.raises(AcceleratorError, match="results differ from numpy's"):
        classifier(feed)
