# SPDX-License-Identifier: Apache-2.0
"""A device beside the CPU that computes a model's linear layers, as far as the lab knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from crosslab.build.runtime import Runtime
from crosslab.host.toolchain import Toolchain
from crosslab.models.reference import Attend, Product

LayerSize = tuple[int, int]
"""Outputs and inputs of a linear layer."""


class RunRoundings(Protocol):
    """Values that a reference took as a run rounded them.

    Attributes:
        taken: how many.
        other: of these, those that the reference rounds to another whole number.
        farthest: from the middle between two, of these, in steps.
    """

    taken: int
    other: int
    farthest: float

    def end(self) -> None:
        """Check that the run rounded nothing more; raises LabError's base where it did."""


@dataclass(frozen=True)
class DeviceArithmetic:
    """A device's products in numpy; made anew for each model.

    Attributes:
        product: linear layers.
        attend: attention; None: that stays on the CPU.
        roundings: those of a run, where they are taken; else None.
    """

    product: Product
    attend: Attend | None
    roundings: RunRoundings | None = None


@dataclass(frozen=True)
class Offload:
    """A device that multiplies instead of the CPU.

    Attributes:
        name: of the device; part of the artefact's name.
        attention: its products are the device's.
        objects: what drives it, to be linked into the runner; sizes of the linear layers, and the
            width of a head where attention's products are the device's, else 0.
        smooth: parameters of the same model that round better: the model's folder, that of its
            parameters, ids of the calibration's text, cache.
        calibration: that text.
        params: its form of parameters in float32; folders of both, and the cache between them.
        arithmetic: what it computes; given what a run recorded, it takes the run's roundings.
        record: variable that names the file for what a run rounds.
        tolerance: largest difference of a logit to that with the run's roundings, as a part of the
            largest logit.
        disturbance: of the values that products are given, at most, as a part of each; by it the
            reference's sensitivity is measured.
    """

    name: str
    attention: bool
    objects: Callable[[Sequence[LayerSize], int, Runtime, Toolchain, Path], tuple[Path, ...]]
    smooth: Callable[[Path, Path, Sequence[int], Path], Path]
    calibration: str
    params: Callable[[Path, Path], Path]
    arithmetic: Callable[[bytes | None], DeviceArithmetic]
    record: str
    tolerance: float
    disturbance: float
