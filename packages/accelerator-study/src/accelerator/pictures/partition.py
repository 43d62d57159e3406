# SPDX-License-Identifier: Apache-2.0
"""The parts of a model in ONNX: layers for the device, and the nodes that stay on the CPU.

A layer is a convolution with what follows it and reads it alone: a batch norm, an addition of
another tensor, an activation with limits. Max pooling is a layer, too, and so is a product of
matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from accelerator.errors import AcceleratorError
from accelerator.layer import Convolution, Pooling
from costmodel.estimate.window import Axis

Floats = NDArray[np.floating[Any]]
# Operators whose results differ from run to run, whatever their inputs are.
RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


@dataclass(frozen=True)
class DeviceLayer:
    """A layer that the device can compute.

    Attributes:
        nodes: that the layer computes, in their order.
        layer: with the sizes of a picture; its requantisation comes from the calibration.
        source, result: names of tensors; residual: added before the activation, or "".
        weights: outputs x inputs of a group x kernel, in float; empty for a pooling.
        bias: of the outputs, in float.
        limits: of the activation, in float.
    """

    nodes: tuple[Any, ...]
    layer: Convolution | Pooling
    source: str
    result: str
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    bias: Floats = field(default_factory=lambda: np.zeros(0))
    residual: str = ""
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class HostNode:
    """A node that the CPU computes in float32, and its multiply-accumulates."""

    node: Any
    macs: int = 0


@dataclass(frozen=True)
class DeviceProduct:
    """A product of matrices that the device computes for tensors in float.

    Attributes:
        node: MatMul, or a Gemm of which the first matrix is not transposed.
        rows, inputs, outputs: of a product; count: their number, one after the other.
        weights: outputs x inputs in float; None: both operands are computed.
        bias: of the outputs.
    """

    node: Any
    rows: int
    inputs: int
    outputs: int
    count: int = 1
    weights: Floats | None = None
    bias: Floats | float = 0.0

    @property
    def macs(self) -> int:
        """The multiply-accumulates."""
        return self.count * self.rows * self.inputs * self.outputs


Part = DeviceLayer | DeviceProduct | HostNode


@dataclass
class Partition:
    """Divides the nodes of a model.

    Attributes:
        model: in ONNX; tensors: all of them, of one run.
    """

    model: Any
    tensors: Mapping[str, Floats]

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.shapes: dict[str, tuple[int, ...]] = {n: v.shape for n, v in self.tensors.items()}
        self.constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.results = {value.name for value in graph.output}
        computed = []
        for node in graph.node:
            if self._is_constant(node):
                self.constants |= {name: self.tensors[name] for name in node.output if name}
            else:
                computed.append(node)
        self.nodes: list[Any] = []
        self.readers = Counter(self.results)
        for node in reversed(computed):
            if any(self.readers[name] for name in node.output):
                self.nodes.insert(0, node)
                self.readers.update(_read(node))

    def _is_constant(self, node: Any) -> bool:
        """Return True if a node's results follow from constants and from shapes."""
        inner = any(a.HasField("g") for a in node.attribute)
        if inner or node.op_type in RANDOM:
            return False
        return node.op_type in ("Shape", "Size") or self.constants.keys() >= {*node.input} - {""}

    def parts(self) -> list[Part]:
        """Return the parts of the model in the order of its nodes."""
        parts: list[Part] = []
        made = {value.name for value in self.model.graph.input}
        for node in self.nodes:
            fused = self._fused(node, parts, made)
            if not fused:
                part = self._is_float(node) and (self._layer(node) or self._product(node))
                parts.append(part or self.on_host(node))
            made.update(node.output)
        return parts

    def on_host(self, node: Any) -> HostNode:
        """Return a node as a part of the CPU."""
        return HostNode(node, self._macs(node))

    def _is_float(self, node: Any) -> bool:
        """Return True if all inputs and results of a node are float32."""
        tensors = map(self._tensor, {*node.input, *node.output} - {""})
        return all(tensor is not None and tensor.dtype == np.float32 for tensor in tensors)

    def _fused(self, node: Any, parts: list[Part], made: set[str]) -> bool:
        """Make a node part of the layer whose result it alone reads; return False if it cannot."""
        for place, part in enumerate(parts):
            if not isinstance(part, DeviceLayer) or part.result not in node.input:
                continue
            if self.readers[part.result] > 1 or not part.weights.size:
                continue
            if wider := self._with(part, node, made):
                # A residual operand may be made after the layer: the layer moves behind it.
                parts.pop(place)
                parts.insert(len(parts) if wider.residual else place, wider)
                return True
        return False

    def _with(self, part: DeviceLayer, node: Any, made: set[str]) -> DeviceLayer | None:
        """Return a layer with a node that reads its result, or None if the device cannot."""
        active = part.limits != (None, None)
        follows = replace(part, nodes=(*part.nodes, node), result=node.output[0])
        match node.op_type:
            case "Relu" if not active:
                return replace(follows, limits=(0.0, None))
            case "Clip" if not active and (limits := self._limits(node)):
                return replace(follows, limits=limits)
            case "BatchNormalization" if not active and not part.residual:
                return self._normed(follows, node)
            case "Add" if not active and not part.residual:
                (other,) = [name for name in node.input if name != part.result] or [""]
                if other in self.constants:
                    return self._biased(follows, self.constants[other])
                same = other and self.shapes.get(other) == self.shapes.get(part.result)
                if same and len(self.shapes[other]) == 4 and other in made:
                    return replace(follows, residual=other)
        return None

    def _limits(self, node: Any) -> tuple[float, float | None] | None:
        """Return a Clip's limits; None if they are not constant, not from 0, or in wrong order."""
        values = _attributes(node)
        for name, operand in zip(("min", "max"), node.input[1:], strict=False):
            if operand and operand not in self.constants:
                return None
            if operand:
                values[name] = float(self.constants[operand])
        if values.get("min") != 0.0 or not values.get("max", 1.0) > 0.0:
            return None
        return 0.0, values.get("max")

    def _normed(self, part: DeviceLayer, node: Any) -> DeviceLayer | None:
        """Return a layer with a batch norm; None if its statistics are the picture's."""
        about, known = _attributes(node), self.constants.keys() >= {*node.input[1:5]}
        if about.get("training_mode") or not known:
            return None
        scale, shift, mean, variance = (self.constants[n].astype(float) for n in node.input[1:5])
        if scale.size != part.bias.size:  # until opset 8, with an element for each position
            return None
        factor = scale / np.sqrt(variance + about.get("epsilon", 1e-5))
        weights = part.weights * factor.reshape(-1, *[1] * (part.weights.ndim - 1))
        return replace(part, weights=weights, bias=(part.bias - mean) * factor + shift)

    def _biased(self, part: DeviceLayer, addend: Floats) -> DeviceLayer | None:
        """Return a layer with a constant added; None if the constant differs inside a channel."""
        channels = (part.bias.size, 1, 1)
        per_channel = addend.shape in (channels, (1, *channels))
        if addend.ndim > 4 or not (per_channel or addend.size == 1):
            return None
        return replace(part, bias=part.bias + addend.reshape(-1).astype(float))

    def _layer(self, node: Any) -> DeviceLayer | None:
        """Return the layer of a node, or None if the device cannot compute it."""
        try:
            match node.op_type:
                case "Conv":
                    return self._convolution(node)
                case "MaxPool":
                    return self._pooling(node)
        except (AcceleratorError, KeyError):
            return None
        return None

    def _convolution(self, node: Any) -> DeviceLayer | None:
        weights = self.constants[node.input[1]].astype(float)
        channels, rows, columns = self._picture(node, weights.shape[2:])
        bias = np.zeros(len(weights))
        if len(node.input) > 2:
            bias = self.constants[node.input[2]].astype(float)
        groups = _attributes(node).get("group", 1)
        layer = Convolution(name_of(node), channels, len(weights), rows, columns, groups)
        return DeviceLayer((node,), layer, node.input[0], node.output[0], weights, bias)

    def _product(self, node: Any) -> DeviceProduct | None:
        """Return the product of a MatMul or Gemm, or None if the device cannot compute it."""
        about = _attributes(node)
        plain = all(about.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        turned = [about.get(name, 0) for name in ("transA", "transB")]
        bias = self.constants.get(node.input[2]) if len(node.input) > 2 else np.zeros(1)
        if node.op_type not in ("Gemm", "MatMul") or not plain or turned[0] or bias is None:
            return None
        first, second = map(self._shape, node.input[:2])
        if min(len(first), len(second)) < 2 or 0 in (*first, *second):
            return None
        weights = self.constants.get(node.input[1])
        if weights is not None and weights.ndim == 2:
            weights = weights if turned[1] else weights.T
            rows = int(np.prod(first[:-1]))
            return DeviceProduct(node, rows, first[-1], len(weights), 1, weights, bias)
        if turned[1] or any(name in self.constants for name in node.input[:2]):
            return None
        count = int(np.prod(np.broadcast_shapes(first[:-2], second[:-2])))
        return DeviceProduct(node, first[-2], first[-1], second[-1], count, None, bias)

    def _tensor(self, name: str) -> Floats | None:
        """Return a computed or constant tensor; None if it is unknown."""
        return self.tensors.get(name, self.constants.get(name))

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a computed or constant tensor; () for an unknown one."""
        tensor = self._tensor(name)
        return () if tensor is None else tensor.shape

    def _pooling(self, node: Any) -> DeviceLayer | None:
        about = _attributes(node)
        if len(node.output) > 1 or about.get("ceil_mode"):
            return None
        layer = Pooling(name_of(node), *self._picture(node, about["kernel_shape"]))
        return DeviceLayer((node,), layer, node.input[0], node.output[0])

    def _picture(self, node: Any, kernel: Any) -> tuple[int, Axis, Axis]:
        """Return the channels, rows and columns that a node reads.

        Raises:
            AcceleratorError: the input is not one picture, or the padding is to be found at run
                time.
        """
        shape = self.shapes[node.input[0]]
        if len(shape) != 4 or shape[0] != 1:
            raise AcceleratorError(f"{node.name}: an input of shape {shape}, not of one picture")
        about = _attributes(node)
        mode = about.get("auto_pad", b"NOTSET").decode()
        if mode not in ("NOTSET", "VALID"):
            raise AcceleratorError(f"{node.name}: auto_pad {mode}")
        stride, dilation = about.get("strides", [1, 1]), about.get("dilations", [1, 1])
        pads = about.get("pads", [0, 0, 0, 0])
        rows, columns = (
            Axis(shape[d + 2], int(kernel[d]), stride[d], pads[d], dilation[d], pads[d + 2])
            for d in range(2)
        )
        return shape[1], rows, columns

    def _macs(self, node: Any) -> int:
        """Return the multiply-accumulates of a convolution or product; 0 for another node."""
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return 0
        results = int(np.prod(self.shapes.get(node.output[0], (0,))))
        given, weight = map(self._shape, node.input[:2])
        if node.op_type == "ConvTranspose":
            return int(np.prod(given) * np.prod(weight[1:]))
        if node.op_type == "Conv":
            return results * int(np.prod(weight[1:]))
        return results * given[0 if _attributes(node).get("transA") else -1]


def _attributes(node: Any) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _read(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, also inside of the graphs in its attributes."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from _read(inner)


def name_of(node: Any) -> str:
    """Return a node's name; of torch's paths, such as /layer1/layer1.0/conv1/Conv, the module."""
    path = str(node.name or node.output[0]).strip("/").split("/")
    path = path[:-1] if len(path) > 1 and path[-1].startswith(node.op_type) else path
    inner = [*path[1:], ""]
    kept = [one for one, after in zip(path, inner, strict=True) if not after.startswith(f"{one}.")]
    name = ".".join(kept)
    return f"{node.op_type} {name}" if name.isdecimal() else name


def host_model(partition: Partition, nodes: Sequence[Any]) -> Any:
    """Return a model in ONNX of neighbouring nodes, whose outputs are those that others read."""
    made = dict.fromkeys(name for node in nodes for name in node.output if name)
    constants, tensors = partition.constants, partition.tensors
    inside = Counter(name for node in nodes for name in _read(node))
    # A graph inside of a node also reads what it makes itself.
    read = [name for name in inside if name in constants or name in tensors]
    graph = helper.make_graph(
        nodes,
        "part",
        [_typed(n, tensors[n]) for n in read if n not in constants and n not in made],
        [_typed(n, tensors[n]) for n in made if partition.readers[n] > inside[n]],
        [numpy_helper.from_array(constants[n], n) for n in read if n in constants],
    )
    about = partition.model
    return helper.make_model(graph, opset_imports=about.opset_import, ir_version=about.ir_version)


def _typed(name: str, tensor: NDArray[Any]) -> Any:
    dtype = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    return helper.make_tensor_value_info(name, dtype, tensor.shape)
