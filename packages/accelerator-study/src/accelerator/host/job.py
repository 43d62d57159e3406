# SPDX-License-Identifier: Apache-2.0
"""``python -m accelerator build-and-test``: the main job with a model's products on a device.

The model is compiled with the passes that hand linear layers and attention to the device; the
runner holds the device's runtime, its functional simulator and the layers' streams. The answer is
compared with the lab's reference of the whole model in numpy, whose products are W8A8 and which
takes the run's roundings (follow.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from accelerator.device import Device
from accelerator.errors import AcceleratorError
from accelerator.extension.unit import MatrixUnit, load_target
from accelerator.host.driver import driver_objects
from accelerator.host.follow import VARIABLE, Roundings
from accelerator.host.params import int8_params
from accelerator.host.smooth import CALIBRATION, smoothed_params
from accelerator.model import (
    DISTURBANCE,
    IntegerProduct,
    add_attention,
    attend,
    on_device,
    quantise,
)
from crosslab.build.offload import LayerSize, Offload, OffloadArithmetic
from crosslab.build.runtime import Runtime
from crosslab.compile.modes import TILES, ExtraPass, KernelMode
from crosslab.host.toolchain import Toolchain
from crosslab.job import job_options
from crosslab.job.job_options import BUILD_AND_TEST, Job
from crosslab.job.main_job import run
from crosslab.models.formats import DEFAULT_FORMAT

# The distribution whose entry points bring the passes below.
PACKAGE = "mlc-rvv-accelerator-study"
# With the run's own roundings float32 is left, whose sums are added up in another order.
TOLERANCE = 1e-4


def parser() -> argparse.ArgumentParser:
    """The options of the main job, and the device."""
    found = job_options.parser()
    found.prog = f"accelerator {BUILD_AND_TEST}"
    found.add_argument("--accelerator", required=True, help="a device's name, or its TOML file")
    # SmolLM2 says other words with attention in int8, see docs/accelerator.md.
    add_attention(found, "cpu")
    return found


def device_passes(attention: bool) -> tuple[ExtraPass, ...]:
    """The passes that hand linear layers, and attention where that is asked for, to a device."""
    names = ["call_accelerator", "describe_int8_weights"]
    names += ["attend_on_accelerator"] if attention else []
    return tuple(ExtraPass(name, PACKAGE) for name in names)


def offload(device: Device | MatrixUnit, attention: bool) -> Offload:
    """The device as the lab knows it."""

    def objects(
        sizes: Sequence[LayerSize], width: int, runtime: Runtime, toolchain: Toolchain, cache: Path
    ) -> tuple[Path, ...]:
        return driver_objects(device, sizes, width if attention else 0, runtime, toolchain, cache)

    return Offload(
        name=device.name,
        about={"accelerator": device.name, "attention": "device" if attention else "cpu"},
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


def parse(argv: Sequence[str]) -> Job:
    """Read the options.

    Raises:
        AcceleratorError: there is no such device, or an option is not for it.
        CostError: its description is wrong.
        UserError: values that cannot go together.
    """
    args = parser().parse_args(argv)
    device, attention = load_target(args.accelerator), on_device(args.attention)
    job = job_options.job_of(args)
    recipe = job.recipe
    if recipe.quantization != DEFAULT_FORMAT or recipe.mode != TILES:
        raise AcceleratorError(
            f"{device.name} rounds float32 weights and activations itself",
            remedy=f"leave out --quantization (it is {DEFAULT_FORMAT}), --weights, --activations",
        )
    plain = job.project / "out" / "build_and_test.json"
    report = plain.with_stem(f"build_and_test-{device.name}") if job.report == plain else job.report
    recipe = replace(recipe, mode=KernelMode(extras=device_passes(attention)))
    return replace(job, recipe=recipe, offload=offload(device, attention), report=report)


def main(argv: Sequence[str]) -> int:
    """Run the job; 1 when the answer is not the reference's.

    Raises:
        AcceleratorError: an option or the device is not right.
        LabError: a step fails.
    """
    return run(parse(argv))
