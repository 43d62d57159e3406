# SPDX-License-Identifier: Apache-2.0
"""The layers of ResNet-18 and MobileNet v2 for a picture of 224 x 224, in int8.

Sizes are those of the papers (He et al., 2016, table 1; Sandler et al., 2018, table 2). Additions
of shortcuts and activation functions are part of the convolution before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from accelerator.layer import (
    Convolution,
    Layer,
    LinearLayer,
    Pooling,
    Requantisation,
    named_apart,
)
from costmodel.estimate.window import Axis

Network = list[tuple[Layer, int]]
PLAIN = Requantisation(1, channels=True)
RELU = Requantisation(1, channels=True, least=0)
ADD = Requantisation(1, channels=True, residual=0)
ADD_RELU = Requantisation(1, channels=True, residual=0, least=0)
# A limit of 6 in steps of 1/16.
RELU6 = Requantisation(1, channels=True, least=0, most=96)
CLASSES = 1000


def resnet18() -> Network:
    """Return ResNet-18's layers, each with its count."""
    window = Axis(112, 3, 2, 1)
    layers: list[Layer] = [
        _convolution("conv1", 3, 64, 224, 7, 2, RELU),
        Pooling("maxpool", 64, window, window),
    ]
    channels, size = 64, 56
    for stage, outputs in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}"
            layers.append(_convolution(f"{name} first", channels, outputs, size, 3, stride, RELU))
            if stride > 1:
                layers.append(
                    _convolution(f"{name} shortcut", channels, outputs, size, 1, stride, PLAIN)
                )
            size //= stride
            layers.append(_convolution(f"{name} second", outputs, outputs, size, 3, 1, ADD_RELU))
            channels = outputs
    return named_apart(Counter([*layers, LinearLayer("fc", 1, CLASSES, channels)]))


def mobilenet_v2() -> Network:
    """Return MobileNet v2's layers, each with its count."""
    layers: list[Layer] = [_convolution("first", 3, 32, 224, 3, 2, RELU6)]
    channels, size = 32, 112
    for expansion, outputs, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for block in range(count):
            stride = first if block == 0 else 1
            inner = channels * expansion
            if expansion > 1:
                layers.append(_convolution("expand", channels, inner, size, 1, 1, RELU6))
            layers.append(
                _convolution("depthwise", inner, inner, size, 3, stride, RELU6, groups=inner)
            )
            size //= stride
            form = ADD if stride == 1 and channels == outputs else PLAIN
            layers.append(_convolution("project", inner, outputs, size, 1, 1, form))
            channels = outputs
    layers.append(_convolution("last", channels, 1280, size, 1, 1, RELU6))
    return named_apart(Counter([*layers, LinearLayer("classifier", 1, CLASSES, 1280)]))


NETWORKS: dict[str, Callable[[], Network]] = {"resnet18": resnet18, "mobilenet-v2": mobilenet_v2}


def _convolution(
    name: str,
    inputs: int,
    outputs: int,
    size: int,
    kernel: int,
    stride: int,
    form: Requantisation,
    groups: int = 1,
) -> Convolution:
    axis = Axis(size, kernel, stride, kernel // 2)
    return Convolution(name, inputs, outputs, axis, axis, groups, form)
