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
        accelerator: name of the device that multiplies instead of the CPU; empty: none does.
        attention: the device does attention's products, too.
    """

    weights: str = "stored"
    activations: str = "float32"
    accelerator: str = ""
    attention: bool = False

    def __post_init__(self) -> None:
        if self.accelerator and (self.weights, self.activations) != (WEIGHTS[0], ACTIVATIONS[0]):
            raise UserError(
                "an accelerator reads weights and activations in float32, and rounds them itself",
                remedy="leave out --weights and --activations",
            )
        if self.activations == "int8" and self.weights != "tiles":
            raise UserError(
                "int8 activations need weights in tiles",
                remedy="leave out --weights stored",
            )

    @property
    def label(self) -> str:
        """Ending of the names of folders: "", "-int8", or the accelerator's name."""
        if self.accelerator:
            return f"-{self.accelerator}"
        return "" if self.activations == "float32" else f"-{self.activations}"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the environment that the passes of linear layers read."""
        found = {"MLC_RVV_WEIGHTS": self.weights, "MLC_RVV_ACTIVATIONS": self.activations}
        return {**found, **{f"MLC_RVV_{name.upper()}": "accelerator" for name in self._moved}}

    @property
    def choices(self) -> dict[str, str]:
        """Choices that the compiler's output depends on: it is the same for every device."""
        found = {"weights": self.weights, "activations": self.activations}
        return {**found, **dict.fromkeys(self._moved, "accelerator")}

    @property
    def _moved(self) -> list[str]:
        """Parts of the model that are the device's."""
        if not self.accelerator:
            return []
        return ["products", *(["attention"] if self.attention else [])]


TILES = KernelMode("tiles")
