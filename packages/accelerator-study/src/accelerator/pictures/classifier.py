# SPDX-License-Identifier: Apache-2.0
"""A model in ONNX whose layers a device computes in int8; the CPU computes the rest in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from accelerator import functional
from accelerator.checker import check
from accelerator.device import Device, load_device
from accelerator.errors import AcceleratorError
from accelerator.pictures.partition import DeviceLayer, HostNode, Part, Partition, single_nodes
from accelerator.pictures.quantise import QuantisedLayer, Ranges, quantise, rounded
from accelerator.timing import simulate

Array = NDArray[Any]


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


@dataclass
class Classifier:
    """A partitioned and calibrated model.

    Attributes:
        device: that computes layers.
        source, result: names of the model's input and output.
        parts: in order; a layer of the device is quantised.
        exponents: of the scales of tensors in int8.
        sessions: of the CPU's nodes, by their first output.
        proved: check each stream and compare each result with numpy.
    """

    device: Device
    source: str
    result: str
    parts: list[QuantisedLayer | HostNode]
    exponents: dict[str, int]
    sessions: dict[str, Any]
    proved: bool = False

    @classmethod
    def calibrated(cls, model: Any, pictures: Sequence[Array], device: Device) -> Classifier:
        """Divide a model, and find the scales of its tensors on pictures.

        Args:
            model: in ONNX, with one input of one picture and one output.
            pictures: of the model's input shape.
            device: that computes layers.

        Raises:
            AcceleratorError: the model has another form, or onnxruntime cannot run it.
        """
        graph = model.graph
        if len(graph.input) != 1 or len(graph.output) != 1:
            raise AcceleratorError(
                f"a model with {len(graph.input)} inputs and {len(graph.output)} outputs",
                remedy="give a classifier with one input of pictures and one output",
            )
        name = graph.input[0].name
        runs = list(_tensors(model, name, pictures))
        shapes = {tensor: value.shape for tensor, value in runs[0].items()}
        parts = Partition(model, shapes).parts()
        ranges = Ranges.of({key: run[key] for key in _scaled(parts) if key in run} for run in runs)
        exponents = {tensor: ranges.exponent(tensor) for tensor in ranges.errors}
        made = cls(device, name, graph.output[0].name, [], exponents, {})
        for part in parts:
            made.parts.append(made._made(part, parts))
        nodes = (part.node for part in made.parts if isinstance(part, HostNode))
        made.sessions = {n: _session(one) for n, one in single_nodes(model, nodes).items()}
        return made

    def _made(self, part: Part, parts: Sequence[Part]) -> QuantisedLayer | HostNode:
        """Return a part for this device; a pooling has the scale of what it reads."""
        if isinstance(part, HostNode):
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
            if isinstance(part, HostNode):
                rows.append(Step(part.node.op_type, "CPU", part.macs))
                continue
            layer = part.program.layer
            timing = simulate(part.program.instructions, self.device)
            rows.append(Step(layer.name, "device", layer.macs, timing.cycles))
        return rows

    def __call__(self, picture: Array) -> Array:
        """Return the model's output for a picture.

        Raises:
            AcceleratorError: with ``proved``: a stream has a fault, or a result is not numpy's.
        """
        floats: dict[str, Array] = {self.source: picture}
        whole: dict[str, Array] = {}

        def integers(name: str) -> Array:
            if name not in whole:
                value = floats[name].astype(np.float64)
                whole[name] = rounded(value, self.exponents[name])
            return whole[name]

        def real(name: str) -> Array:
            if name not in floats:
                floats[name] = (whole[name] * 2.0 ** -self.exponents[name]).astype(np.float32)
            return floats[name]

        for part in self.parts:
            if isinstance(part, HostNode):
                session = self.sessions[part.node.output[0]]
                inputs = {each.name: real(each.name) for each in session.get_inputs()}
                floats.update(zip(part.node.output, session.run(None, inputs), strict=True))
                continue
            found = self._run(part, integers)
            if part.exponent is None:
                shape = (1, -1, 1, 1)
                found = found * part.scales.reshape(shape) + part.part.bias.reshape(shape)
            tensors = floats if part.exponent is None else whole
            dtype = np.float32 if part.exponent is None else np.int8
            tensors[part.part.result] = _ranked(found.astype(dtype), part.part.flat)
        return real(self.result)

    def _run(self, part: QuantisedLayer, integers: Callable[[str], Array]) -> Array:
        """Return the device's result of a layer: 1 x channels x rows x columns."""
        residual = integers(part.part.residual) if part.part.residual else None
        program, layer = part.program, part.program.layer
        values = integers(part.part.source)
        values = values.reshape(1, -1, 1, 1) if part.part.flat else values
        given = (values, part.weights, part.channels, residual)
        operands: tuple[Any, ...] = given if part.weights is not None else given[:1]
        memory = program.image(*operands)
        if self.proved:
            check(part.stream, self.device, memory)
        functional.run(self.device, part.stream, memory)
        found = program.result(memory)
        if self.proved and (found != layer.reference(*operands)).any():
            raise AcceleratorError(f"{layer.name}: results differ from numpy's", exit_code=1)
        return found


def _scaled(parts: Iterable[Part]) -> set[str]:
    """Return the names of the tensors that the device reads or makes in int8."""
    layers = [part for part in parts if isinstance(part, DeviceLayer)]
    return {n for one in layers for n in (one.source, one.result, one.residual) if n}


def calibrated(file: Path, pictures: Sequence[Array], device: str) -> Classifier:
    """Return the classifier of a file in ONNX on a device.

    Raises:
        AcceleratorError: no device has that name, or the model does not fit it.
        CostError: the device's description is wrong.
    """
    return Classifier.calibrated(onnx.load(str(file)), pictures, load_device(device))


def _ranked(values: Array, flat: bool) -> Array:
    return values[:, :, 0, 0] if flat else values


def _session(model: Any) -> Any:
    """Return onnxruntime's session of a model.

    Raises:
        AcceleratorError: onnxruntime cannot run the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise AcceleratorError(f"onnxruntime cannot run the model: {reason}") from error


def _tensors(model: Any, name: str, pictures: Sequence[Array]) -> Iterator[dict[str, Array]]:
    """Yield all tensors of a model for each picture, in float32."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    known = {value.name for value in whole.graph.output}
    for node in model.graph.node:
        for output in node.output:
            if output and output not in known:
                whole.graph.output.append(helper.make_empty_tensor_value_info(output))
    session = _session(whole)
    names = [value.name for value in session.get_outputs()]
    for picture in pictures:
        found = dict(zip(names, session.run(None, {name: picture}), strict=True))
        yield {name: picture} | found
