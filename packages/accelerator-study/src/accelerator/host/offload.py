# SPDX-License-Identifier: Apache-2.0
"""The plug of ``crosslab build-and-test --accelerator DEVICE``: a device as the main job sees it.

The model is compiled with the passes that hand linear layers and attention to the device; the
runner holds the device's runtime, its functional simulator and the layers' streams. The job
compares the answer with its reference of the whole model in numpy, whose products are W8A8 and
which takes the run's roundings (follow.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from accelerator.device import Device
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import driver_objects
from accelerator.host.follow import VARIABLE, Roundings
from accelerator.host.params import int8_params
from accelerator.host.smooth import CALIBRATION, smoothed_params
from accelerator.model import (
    DISTURBANCE,
    IntegerProduct,
    attend,
    quantise,
)
from crosslab.build.offload import LayerSize, Offload, OffloadArithmetic
from crosslab.build.runtime import Runtime
from crosslab.compile.modes import ExtraPass, KernelMode
from crosslab.host.toolchain import Toolchain

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
        record=VARIABLE,
        tolerance=TOLERANCE,
        disturbance=DISTURBANCE,
    )


def arithmetic(attention: bool, record: bytes | None = None) -> OffloadArithmetic:
    """Products in W8A8 by numpy, with attention's or without.

    Args:
        attention: its products are the device's.
        record: of a run, whose roundings are taken; None: numpy rounds.
    """
    roundings = None if record is None else Roundings(record)
    product = IntegerProduct(rounded=roundings or quantise)
    attending = partial(attend, sums=product.sums, rounded=product.rounded)
    return OffloadArithmetic(product, attending if attention else None, roundings)
