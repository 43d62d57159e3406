# SPDX-License-Identifier: Apache-2.0
"""The tests of backends in the package onnx: operators and modules that torch exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("tvm")

from judging import Compiled, Judged, by_place  # noqa: E402
from onnx import numpy_helper  # noqa: E402

from torchroad.job import compare  # noqa: E402
from torchroad.onnx_file import read_onnx  # noqa: E402
from torchroad.onnx_model import import_onnx  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = {
    folder.name: folder
    for kind in ("pytorch-converted", "pytorch-operator", "simple")
    for folder in sorted((DATA / kind).iterdir())
}
QUICK = ("test_Conv2d", "test_Conv2d_groups", "test_operator_pad")
REFUSED = {
    *("test_ReflectionPad2d", "test_ReplicationPad2d", "test_operator_pad"),
    *(f"test_expand_shape_model{number}" for number in (1, 2, 3, 4)),
    *(f"test_sequence_model{number}" for number in (6, 8)),
    *(name for name in FOLDERS if name.startswith(("test_gradient_of_", "test_strnorm_model_"))),
}


@dataclass(frozen=True)
class OnnxCase:
    """A model in ONNX, inputs by name, and the expected outputs."""

    model: Any
    inputs: dict[str, Any]
    outputs: list[Any]


def read_case(folder: Path) -> OnnxCase:
    """Return a test's model, inputs and outputs."""

    def array(name: str) -> Any:
        return numpy_helper.to_array(onnx.load_tensor(folder / "test_data_set_0" / f"{name}.pb"))

    model = read_onnx(folder / "model.onnx")
    names = [value.name for value in model.graph.input]
    inputs = {name: array(f"input_{place}") for place, name in enumerate(names)}
    return OnnxCase(model, inputs, [array(f"output_{n}") for n in range(len(model.graph.output))])


def judged_onnx(case: OnnxCase, folder: Path) -> Judged:
    """Return the verdict on a model in ONNX, compiled in a folder.

    Raises:
        UserError: the model is refused.
    """
    module, params, _ = import_onnx({"main": (case.model, case.inputs)})
    compiled = Compiled(module, params, folder)
    outputs = compiled(list(case.inputs.values()))
    return Judged(*compare(by_place(outputs), by_place(case.outputs)), share=compiled.share)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in FOLDERS],
)
def test_a_test_of_onnx(name: str, passes: Path, survey: Callable[..., None]) -> None:
    survey(lambda: judged_onnx(read_case(FOLDERS[name]), passes), refused=name in REFUSED)
