# SPDX-License-Identifier: Apache-2.0
"""Small architectures with random weights: from torch, and exported by it to ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("tvm")
from torchroad import libraries  # noqa: E402

libraries.prepare()
for package in ("torchvision", "torchaudio", "diffusers", "transformers", "onnxruntime"):
    pytest.importorskip(package, reason="nox -s tests -- -m survey installs it")

import audio_models  # noqa: E402
import language_models  # noqa: E402
import vision_models  # noqa: E402
from judging import SCALES, enliven, judged  # noqa: E402
from recommender import recommender  # noqa: E402
from test_onnx_cases import OnnxCase, judged_onnx  # noqa: E402

from torchroad.example import Example, make_example  # noqa: E402
from torchroad.onnx_file import read_onnx  # noqa: E402
from torchroad.onnx_model import onnxruntime_outputs  # noqa: E402

pytestmark = [pytest.mark.survey, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MODELS = {
    **vision_models.MODELS,
    **audio_models.MODELS,
    **language_models.MODELS,
    "recommender": recommender,
}
REFUSED = {"Conformer", "FNet"}
# Architectures that torch exports to ONNX.
EXPORTED = (
    *("ResNet", "DenseNet", "GoogLeNet", "SqueezeNet", "MobileNetV2", "MobileNetV3"),
    *("ShuffleNetV2", "MNASNet", "EfficientNet", "RegNet", "ConvNeXt", "ViT", "DINOv2"),
    *("RoBERTa", "DistilBERT"),
)
REFUSED_IN_ONNX = {"ShuffleNetV2"}


def example_of(name: str) -> Example:
    """Return a model whose weights all affect its outputs."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    enliven(module)
    return make_example(lambda: (module, inputs), Path(name))


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture(name: str, passes: Path, survey: Callable[..., None]) -> None:
    survey(lambda: judged(example_of(name), SCALES[:1], passes), refused=name in REFUSED)


@pytest.mark.parametrize("name", EXPORTED)
def test_an_architecture_in_onnx(name: str, passes: Path, survey: Callable[..., None]) -> None:
    case = exported(example_of(name), passes / "model.onnx")
    survey(lambda: judged_onnx(case, passes), refused=name in REFUSED_IN_ONNX)


def exported(example: Example, file: Path) -> OnnxCase:
    """Return a model of torch in ONNX, with onnxruntime's outputs."""
    values = [tensor.numpy() for tensor in example.tensors()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(ByPlace(example), tuple(example.tensors()), str(file), dynamo=False)
    model = read_onnx(file)
    names = [value.name for value in model.graph.input]
    inputs = dict(zip(names, values, strict=True))
    return OnnxCase(model, inputs, onnxruntime_outputs(model, inputs))


class ByPlace(torch.nn.Module):  # type: ignore[misc]
    """A model whose inputs have places, as torch's exporter by traces wants them."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model, self.names, self.count = example.model, example.by_name, len(example.by_place)

    def forward(self, *values: Any) -> Any:
        """Return the model's outputs."""
        named = dict(zip(self.names, values[self.count :], strict=True))
        return self.model(*values[: self.count], **named)
