# SPDX-License-Identifier: Apache-2.0
"""The interface of a device that computes parts of a model for the CPU.

The build links the device's objects, the compiler runs its extra passes (which its mode names), and
the check of an answer uses its arithmetic.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from crosslab.assemble.runtime import Runtime
from crosslab.compile.modes import KernelMode
from crosslab.errors import UserError
from crosslab.host.toolchain import Toolchain
from crosslab.models.reference import Attend, Product
from crosslab.models.roundings import Roundings

OFFLOADS = "mlc_rvv.offloads"
LayerSize = tuple[int, int]
"""Outputs and inputs of a linear layer."""


@dataclass(frozen=True)
class OffloadArithmetic:
    """An offload's products in numpy, for the reference; one object per model.

    Attributes:
        product: linear layers.
        attend: attention; None: that stays on the CPU.
    """

    product: Product
    attend: Attend | None


@dataclass(frozen=True)
class Offload:
    """A device that computes parts of a model instead of the CPU.

    Attributes:
        name: part of the artefact's name.
        about: entries of the job's report.
        mode: of the kernels, with the extra passes of the compiler.
        objects: made to be linked into the runner, of the sizes of the linear layers and the width
            of a head.
        smooth: parameters of the same model that round better: the model's folder, that of its
            parameters, ids of the calibration's text, cache.
        calibration: that text.
        params: makes its form of parameters; folder of those in float32, and cache.
        arithmetic: its products, with these roundings of their operands.
        tolerance: largest difference of a logit to that with the run's roundings, as a part of the
            largest logit.
    """

    name: str
    about: Mapping[str, Any]
    mode: KernelMode
    objects: Callable[[Sequence[LayerSize], int, Runtime, Toolchain, Path], tuple[Path, ...]]
    smooth: Callable[[Path, Path, Sequence[int], Path], Path]
    calibration: str
    params: Callable[[Path, Path], Path]
    arithmetic: Callable[[Roundings], OffloadArithmetic]
    tolerance: float


def find_offload(device: str, attention: bool) -> Offload:
    """Ask the installed companion package for a device.

    The package names a function of these arguments as an entry point of ``mlc_rvv.offloads``.

    Args:
        device: its name, or the file that describes it.
        attention: the device does attention's products, too.

    Raises:
        UserError: no such package is installed.
        CommandError: of the package: it has no such device.
    """
    for entry in entry_points(group=OFFLOADS):
        found: Callable[[str, bool], Offload] = entry.load()
        return found(device, attention)
    raise UserError(
        f"--accelerator {device}: the package mlc-rvv-accelerator-study is not installed",
        remedy="nox -s build_and_test -- --with accelerator-study "
        f"--accelerator {shlex.quote(device)}",
    )
