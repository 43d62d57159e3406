# SPDX-License-Identifier: Apache-2.0
"""The plug of ``crosslab build-and-test --accelerator DEVICE``: a device as the main job sees it.

The model is compiled with the passes that hand linear layers and attention to the device; the
runner holds the device's runtime, its functional simulator and the layers' streams. The job
compares the answer with its reference of the whole model in numpy, whose products are W8A8 and
which takes the run's roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from accelerator.device import Device
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import driver_objects
from accelerator.host.params import int8_params
from accelerator.host.smooth import CALIBRATION, smoothed_params
from accelerator.layer import Int8
from accelerator.model import IntegerProduct, attend
from crosslab.build.offload import LayerSize, Offload, OffloadArithmetic
from crosslab.build.runtime import Runtime
from crosslab.compile.modes import ExtraPass, KernelMode
from crosslab.host.toolchain import Toolchain
from crosslab.models.roundings import Roundings
from crosslab.models.weights_file import F32

# The distribution whose entry points bring the passes below.
PACKAGE = "mlc-rvv-accelerator-study"
# With the run's own roundings float32 is left, whose sums are added up in another order.
TOLERANCE = 1e-4


def find(name: str, attention: bool) -> Offload:
    """A device by name, or by the file that describes it.

    Raises:
        AcceleratorError: there is no such device.
        CostError: its description is wrong.
    """
    return offload(load_target(name), attention)


def device_passes(attention: bool) -> tuple[ExtraPass, ...]:
    """The passes that give linear layers to a device, and attention if it is asked for."""
    names = ["call_accelerator", "describe_int8_weights"]
    names += ["attend_on_accelerator"] if attention else []
    return tuple(ExtraPass(name, PACKAGE) for name in names)


def offload(device: Device | MatrixUnit, attention: bool) -> Offload:
    """The device in the form that the main job accepts."""

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
    """Products in W8A8 by numpy, with attention's or without.

    Args:
        attention: its products are the device's.
        rounding: rounds activations, a row by a scale of its own.
    """

    def rounded(matrix: F32, name: str) -> tuple[Int8, F32]:
        values, scales = rounding.matrix(matrix, matrix.shape[1], name)
        return values, scales[:, 0]

    product = IntegerProduct(rounded=rounded)
    attending = partial(attend, sums=product.sums, rounded=rounded)
    return OffloadArithmetic(product, attending if attention else None)
