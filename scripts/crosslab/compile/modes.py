# SPDX-License-Identifier: Apache-2.0
"""Choices of the kernels that a model library calls."""

from __future__ import annotations

from dataclasses import dataclass

from crosslab.errors import UserError

WEIGHTS = ("stored", "tiles")
ACTIVATIONS = ("float32", "int8")


@dataclass(frozen=True)
class KernelMode:
    """Choice of what the kernels of linear layers read.

    Attributes:
        weights: "stored", as MLC-LLM's converter writes them and its own runtime loads them; or
            "tiles", for which the library has functions that reorder what was loaded.
        activations: "float32"; or "int8", rounded in groups where weights are quantized.
    """

    weights: str = "stored"
    activations: str = "float32"

    def __post_init__(self) -> None:
        if self.activations == "int8" and self.weights != "tiles":
            raise UserError(
                "int8 activations are multiplied with weights in tiles alone",
                remedy="leave out --weights stored",
            )

    @property
    def label(self) -> str:
        """Ending of the names of folders: "" or "-int8"."""
        return "" if self.activations == "float32" else f"-{self.activations}"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the environment that the pass CallLinearKernels reads."""
        return {"MLC_RVV_WEIGHTS": self.weights, "MLC_RVV_ACTIVATIONS": self.activations}


TILES = KernelMode("tiles")
