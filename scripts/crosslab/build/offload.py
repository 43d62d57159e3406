# SPDX-License-Identifier: Apache-2.0
"""A device beside the CPU that computes a model's linear layers, as far as the lab knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.build.runtime import Runtime
from crosslab.host.toolchain import Toolchain
from crosslab.models.reference import Attend, Product

LayerSize = tuple[int, int]
"""Outputs and inputs of a linear layer."""


@dataclass(frozen=True)
class Offload:
    """A device that multiplies instead of the CPU.

    Attributes:
        name: of the device; part of the artefact's name.
        objects: what drives it, to be linked into the runner; sizes of the linear layers, and the
            width of a head where attention's products are the device's, else 0.
        params: its form of parameters in float32; folders of both, and the cache between them.
        product: what it computes, in numpy; made anew for each model.
        attend: the same of attention; None: that stays on the CPU.
        tolerance: largest difference of a logit to that, as a part of the largest logit.
    """

    name: str
    objects: Callable[[Sequence[LayerSize], int, Runtime, Toolchain, Path], tuple[Path, ...]]
    params: Callable[[Path, Path], Path]
    product: Callable[[], Product]
    attend: Attend | None
    tolerance: float
