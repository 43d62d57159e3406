# SPDX-License-Identifier: Apache-2.0
"""The tests of backends in the package onnx: models, inputs and outputs as files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from torchroad.onnx_file import read_onnx

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


def _array(file: Path) -> NDArray[Any]:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(file.read_bytes())
    array: NDArray[Any] = numpy_helper.to_array(tensor)
    return array
