# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX whose layers a device computes in int8; the CPU computes the rest in float32.

Layers of pictures have scales from a calibration. Products of matrices, such as those of a
transformer, get a scale for each row and each output when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from accelerator.device import Device, load_device
from accelerator.errors import AcceleratorError
from accelerator.layer import Int8, LinearLayer
from accelerator.model import IntegerProduct, check_finite, lowered
from accelerator.model import quantise as quantise_rows
from accelerator.pictures.partition import (
    DeviceLayer,
    DeviceProduct,
    HostNode,
    Part,
    Partition,
    host_model,
    name_of,
)
from accelerator.pictures.quantise import QuantisedLayer, best_exponents, quantise, rounded
from accelerator.program import Program
from accelerator.study import execute
from accelerator.timing import simulate

Array = NDArray[Any]
Feed = Mapping[str, Array]


@dataclass(frozen=True)
class Step:
    """A row of the table of parts.

    Attributes:
        name: of the layer, or the operator's.
        place: "device" or "CPU".
        macs: multiply-accumulates; cycles: of the device, simulated.
    """

    name: str
    place: str
    macs: int
    cycles: float | None = None


@dataclass(frozen=True)
class HostPart:
    """Neighbouring nodes that the CPU computes.

    Attributes:
        number: among the parts of this kind.
        nodes: with their multiply-accumulates.
        model: of the nodes, in ONNX; its inputs and outputs have the names of the whole model's.
    """

    number: int
    nodes: Sequence[HostNode]
    model: Any

    @cached_property
    def session(self) -> Any:
        """The nodes in onnxruntime."""
        return _session(self.model)

    def __call__(self, feed: Feed) -> list[Array]:
        """Return the outputs of the nodes, computed by onnxruntime."""
        return _outputs(self.session, feed)


@dataclass
class Classifier:
    """A partitioned and calibrated model.

    Attributes:
        device: that computes layers.
        results: names of the model's outputs.
        parts: in order; a layer of the device is quantised.
        exponents: of the scales of tensors in int8.
        proved: check each stream and compare each result with numpy.
        on_cpu: computes the outputs of a part on the CPU.
        fixed: outputs that follow from constants alone.
        weights: of products, in int8 with a scale for each output.
    """

    device: Device
    results: list[str]
    parts: list[QuantisedLayer | DeviceProduct | HostPart]
    exponents: dict[str, int]
    proved: bool = False
    on_cpu: Callable[[HostPart, Feed], Sequence[Array]] = HostPart.__call__
    fixed: Feed = field(default_factory=dict)
    weights: dict[str, tuple[Int8, NDArray[np.float32]]] = field(default_factory=dict)

    @classmethod
    def calibrated(cls, model: Any, feeds: Sequence[Feed], device: Device) -> Classifier:
        """Divide a model, and find the scales of its tensors on inputs.

        Args:
            model: in ONNX.
            feeds: inputs by name, one for each run.
            device: that computes layers.

        Raises:
            AcceleratorError: onnxruntime cannot run the model, or a result is not a tensor.
        """
        runs = _tensors(model, feeds)
        first = next(runs)
        partition = Partition(model, first)
        parts = partition.parts()
        # The device reads or makes these tensors in int8.
        layers = [part for part in parts if isinstance(part, DeviceLayer)]
        scaled = {n for one in layers for n in (one.source, one.result, one.residual) if n}
        exponents = best_exponents(
            {key: run[key] for key in scaled if key in run} for run in chain([first], runs)
        )
        results = [value.name for value in model.graph.output]
        made = cls(device, results, [], exponents)
        made.fixed = {n: partition.constants[n] for n in results if n in partition.constants}
        fitting: list[QuantisedLayer | DeviceProduct | HostNode] = []
        for part in parts:
            try:
                fitting.append(part if isinstance(part, HostNode) else made._made(part, parts))
            except AcceleratorError:  # no tile fits, or the device has no such numbers
                nodes = part.nodes if isinstance(part, DeviceLayer) else (part.node,)
                fitting += map(partition.on_host, nodes)
        for on_host, group in groupby(fitting, lambda part: isinstance(part, HostNode)):
            listed: list[Any] = [*group]
            if on_host:
                alone = host_model(partition, [part.node for part in listed])
                listed = [HostPart(len(made.host_parts), listed, alone)]
            made.parts += listed
        return made

    @property
    def host_parts(self) -> list[HostPart]:
        """The parts on the CPU."""
        return [part for part in self.parts if isinstance(part, HostPart)]

    def _made(
        self, part: DeviceLayer | DeviceProduct, parts: Sequence[Part]
    ) -> QuantisedLayer | DeviceProduct:
        """Return a part for this device; a pooling has the scale of what it reads.

        Raises:
            AcceleratorError: the device cannot compute the part.
        """
        if isinstance(part, DeviceProduct):
            constants = [part.bias] if part.weights is None else [part.bias, part.weights]
            check_finite(name_of(part.node), *constants)
            _program(part, self.device)
            return part
        if not part.weights.size:
            self.exponents[part.result] = self.exponents[part.source]
        readers = [one for one in parts if isinstance(one, DeviceLayer)]
        read = any(part.result in (one.source, one.residual) for one in readers)
        exact = not read and not part.residual and part.limits == (None, None)
        made = quantise(part, self.exponents, self.device, exact)
        if made.exponent is not None:
            self.exponents[part.result] = made.exponent
        return made

    @property
    def steps(self) -> list[Step]:
        """The parts as rows of a table."""
        rows = []
        for part in self.parts:
            if isinstance(part, HostPart):
                rows += [Step(one.node.op_type, "CPU", one.macs) for one in part.nodes]
                continue
            if isinstance(part, DeviceProduct):
                one = simulate(_program(part, self.device).instructions, self.device)
                name = name_of(part.node)
                rows.append(Step(name, "device", part.macs, part.count * one.cycles))
                continue
            layer = part.program.layer
            timing = simulate(part.program.instructions, self.device)
            rows.append(Step(layer.name, "device", layer.macs, timing.cycles))
        return rows

    def __call__(self, feed: Feed) -> list[Array]:
        """Return the model's outputs for inputs by name.

        Raises:
            AcceleratorError: with ``proved``: a stream has a fault, or a result is not numpy's.
        """
        product = IntegerProduct(self.device, self.weights, proved=self.proved)
        floats: dict[str, Array] = {**self.fixed, **feed}
        whole: dict[str, Array] = {}

        def integers(name: str) -> Array:
            if name not in whole:
                value = floats[name].astype(np.float64)
                check_finite(name, value)
                whole[name] = rounded(value, self.exponents[name])
            return whole[name]

        def real(name: str) -> Array:
            if name not in floats:
                floats[name] = (whole[name] * 2.0 ** -self.exponents[name]).astype(np.float32)
            return floats[name]

        for part in self.parts:
            if isinstance(part, HostPart):
                graph = part.model.graph
                inputs = {each.name: real(each.name) for each in graph.input}
                names = [each.name for each in graph.output]
                floats.update(zip(names, self.on_cpu(part, inputs), strict=True))
                continue
            if isinstance(part, DeviceProduct):
                floats[part.node.output[0]] = _multiplied(part, product, real)
                continue
            found = self._run(part, integers)
            if part.exponent is None:
                shape = (1, -1, 1, 1)
                found = found * part.scales.reshape(shape) + part.part.bias.reshape(shape)
            tensors = floats if part.exponent is None else whole
            dtype = np.float32 if part.exponent is None else np.int8
            tensors[part.part.result] = found.astype(dtype)
        return [real(name) for name in self.results]

    def _run(self, part: QuantisedLayer, integers: Callable[[str], Array]) -> Array:
        """Return the device's result of a layer: 1 x channels x rows x columns."""
        residual = integers(part.part.residual) if part.part.residual else None
        given = (integers(part.part.source), part.weights, part.channels, residual)
        operands: tuple[Any, ...] = given if part.weights is not None else given[:1]
        return execute(part.program, operands, self.proved)[0]


def _program(part: DeviceProduct, device: Device) -> Program:
    """Return the program of a product.

    Raises:
        AcceleratorError: no tile of the product fits the device.
    """
    return lowered(LinearLayer("", part.rows, part.outputs, part.inputs), device)


def _multiplied(
    part: DeviceProduct, product: IntegerProduct, real: Callable[[str], Array]
) -> Array:
    """Return a product in float32, of operands rounded to int8: a scale for each row and output."""
    values = real(part.node.input[0])
    if part.weights is not None:
        # The weights are cached by the name of the product's result.
        name = part.node.output[0]
        flat = values.reshape(-1, part.inputs)
        found = product(flat, name, {name: part.weights.astype(np.float32)})
        return (found + part.bias).reshape(*values.shape[:-1], part.outputs).astype(np.float32)
    other = real(part.node.input[1])
    lead = np.broadcast_shapes(values.shape[:-2], other.shape[:-2])
    pairs = (
        np.broadcast_to(each, lead + each.shape[-2:]).reshape(-1, *each.shape[-2:])
        for each in (values, other)
    )
    results = []
    for left, right in zip(*pairs, strict=True):
        (rows, row_scales), (columns, scales) = quantise_rows(left), quantise_rows(right.T)
        results.append(product.sums(rows, columns) * row_scales[:, None] * scales)
    return (np.stack(results) + part.bias).reshape(*lead, part.rows, -1).astype(np.float32)


def calibrated(file: Path, feeds: Sequence[Feed], device: str) -> Classifier:
    """Return the classifier of a file in ONNX on a device.

    Raises:
        AcceleratorError: onnxruntime cannot run the model, or a result is not a tensor.
        CostError: no device has that name, or its description is wrong.
    """
    return Classifier.calibrated(onnx.load(str(file)), feeds, load_device(device))


def _session(model: Any) -> Any:
    """Return onnxruntime's session of a model.

    Raises:
        AcceleratorError: onnxruntime cannot run the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    providers = ["CPUExecutionProvider"]
    with _of_onnxruntime():
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


def _outputs(session: Any, feed: Feed) -> list[Array]:
    """Return the outputs of a session.

    Raises:
        AcceleratorError: onnxruntime cannot run the model.
    """
    with _of_onnxruntime():
        return list(session.run(None, dict(feed)))


@contextmanager
def _of_onnxruntime() -> Iterator[None]:
    """Turn any error in a ``with`` block into an AcceleratorError with its first line."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise AcceleratorError(f"onnxruntime cannot run the model: {reason}") from error


def _tensors(model: Any, feeds: Sequence[Feed]) -> Iterator[dict[str, Array]]:
    """Yield the inputs and all computed tensors of a model, by name, for each feed.

    Raises:
        AcceleratorError: onnxruntime cannot run the model, or a result is not a tensor.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {value.name for value in whole.graph.output}
    for node in model.graph.node:
        for output in node.output:
            if output and output not in known:
                whole.graph.output.append(helper.make_empty_tensor_value_info(output))
    session = _session(whole)
    names = [value.name for value in session.get_outputs()]
    for feed in feeds:
        found = dict(zip(names, _outputs(session, feed), strict=True))
        if other := [name for name, value in found.items() if not isinstance(value, np.ndarray)]:
            node = next(node for node in model.graph.node if other[0] in node.output)
            raise AcceleratorError(f"{node.op_type}: its result {other[0]!r} is not a tensor")
        yield {**feed, **found}
