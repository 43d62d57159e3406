# SPDX-License-Identifier: Apache-2.0
"""The plug-in of ``crosslab build-and-test --accelerator DEVICE``: a device for the main job.

The job compiles the model with the passes that move linear layers and attention to the device; the
runner contains the device's runtime, its functional simulator and the layers' streams. The job
compares the answer with a numpy reference of the whole model, which computes products in W8A8 and
uses the roundings that the run recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from accelerator.device import Device
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import driver_objects
from accelerator.host.params import CALIBRATION, int8_params, smoothed_params
from accelerator.layer import Int8
from accelerator.model import IntegerProduct, attend
from crosslab.assemble.offload import LayerSize, Offload, OffloadArithmetic
from crosslab.assemble.runtime import Runtime
from crosslab.compile.modes import ExtraPass, KernelMode
from crosslab.host.toolchain import Toolchain
from crosslab.models.roundings import Roundings
from crosslab.models.weights_file import F32

# The distribution whose entry points are the passes below.
PACKAGE = "mlc-rvv-accelerator-study"
# The reference uses the run's roundings, so that only the order of sums in float32 differs.
TOLERANCE = 1e-4


def find(name: str, attention: bool) -> Offload:
    """Return the plug-in for the device of a name or of a description file.

    Raises:
        CostError: no device has that name, or its description is wrong.
    """
    return offload(load_target(name), attention)


def device_passes(attention: bool) -> tuple[ExtraPass, ...]:
    """Return the passes that move linear layers, and attention on request, to a device."""
    names = ["call_accelerator", "describe_int8_weights"]
    names += ["attend_on_accelerator"] if attention else []
    return tuple(ExtraPass(name, PACKAGE) for name in names)


def offload(device: Device | MatrixUnit, attention: bool) -> Offload:
    """Return the plug-in for a device, in the form that the main job accepts."""

    def objects(
        sizes: Sequence[LayerSize], width: int, runtime: Runtime, toolchain: Toolchain, cache: Path
    ) -> tuple[Path, ...]:
        return driver_objects(device, sizes, width if attention else 0, runtime, toolchain, cache)

    return Offload(
        name=device.name,
        about={"accelerator": device.name, "attention": "device" if attention else "cpu"},
        mode=KernelMode(extras=device_passes(attention)),
        objects=objects,
        smooth=smoothed_params,
        calibration=CALIBRATION,
        params=int8_params,
        arithmetic=partial(arithmetic, attention),
        tolerance=TOLERANCE,
    )


def arithmetic(attention: bool, rounding: Roundings) -> OffloadArithmetic:
    """Return the reference's products in W8A8 by numpy, and its attention on request.

    Args:
        attention: the device computes attention's products, too.
        rounding: rounds activations, each row with a scale.
    """

    def rounded(matrix: F32, name: str) -> tuple[Int8, F32]:
        values, scales = rounding.matrix(matrix, matrix.shape[1], name)
        return values, scales[:, 0]

    product = IntegerProduct(rounded=rounded)
    attending = partial(attend, sums=product.sums, rounded=rounded)
    return OffloadArithmetic(product, attending if attention else None)
