# SPDX-License-Identifier: Apache-2.0
"""Models in ONNX: the tests of backends in the package onnx, and models that torch exports."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from crosslab.errors import UserError
from torchroad.example import Example, make_example
from torchroad.onnx_file import read_onnx
from torchroad.onnx_model import onnxruntime_outputs

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
# Operators and modules that torch exported, and models of several operators.
FOLDERS = ("pytorch-converted", "pytorch-operator", "simple")


@dataclass(frozen=True)
class OnnxCase:
    """A model in ONNX, inputs by name, and the expected outputs."""

    model: Any
    inputs: dict[str, NDArray[Any]]
    outputs: list[NDArray[Any]]


def onnx_cases() -> dict[str, Any]:
    """Return a function for each test, which reads its case, by name."""
    folders = [path for name in FOLDERS for path in sorted((DATA / name).iterdir())]
    return {path.name: partial(read_case, path) for path in folders}


def read_case(folder: Path) -> OnnxCase:
    """Return a test's model, inputs and outputs.

    Raises:
        UserError: an input or output is not a tensor.
    """
    model, data = read_onnx(folder / "model.onnx"), folder / "test_data_set_0"
    names = [value.name for value in model.graph.input]
    inputs = {name: _array(data / f"input_{place}.pb") for place, name in enumerate(names)}
    outputs = [_array(data / f"output_{place}.pb") for place in range(len(model.graph.output))]
    return OnnxCase(model, inputs, outputs)


def exported_cases(factories: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return a function for each model of torch, which exports it and computes its outputs."""
    return {f"{name} in ONNX": partial(_exported, make) for name, make in factories.items()}


def _exported(make: Callable[[], Any]) -> OnnxCase:
    """Export a model with torch's exporter by traces, and return it with onnxruntime's outputs.

    Raises:
        UserError: torch cannot export the model, or onnxruntime cannot run it.
    """
    example = make_example(make, Path("survey"))
    with tempfile.TemporaryDirectory(prefix="onnx-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(_ByPlace(example), tuple(example.tensors()), str(file), dynamo=False)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"torch cannot export the model: {reason}") from error
        model = read_onnx(file)
    names = [value.name for value in model.graph.input]
    values = [tensor.numpy() for tensor in example.tensors()]
    if len(names) != len(values):
        raise UserError("torch's exporter leaves out inputs that it reads as constants")
    inputs = dict(zip(names, values, strict=True))
    return OnnxCase(model, inputs, onnxruntime_outputs(model, inputs))


class _ByPlace(torch.nn.Module):  # type: ignore[misc]
    """A model whose inputs have places, as torch's exporter by traces wants them."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model, self.names, self.count = example.model, example.by_name, len(example.by_place)

    def forward(self, *values: Any) -> Any:
        """Return the model's outputs."""
        named = dict(zip(self.names, values[self.count :], strict=True))
        return self.model(*values[: self.count], **named)


def _array(file: Path) -> NDArray[Any]:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(file.read_bytes())
    array: NDArray[Any] = numpy_helper.to_array(tensor)
    return array
