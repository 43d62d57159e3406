# SPDX-License-Identifier: Apache-2.0
"""Choices of the kernels that a model library calls, and of extra passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from crosslab.errors import UserError

WEIGHTS = ("stored", "tiles")
ACTIVATIONS = ("float32", "int8")
KV_CACHES = ("float32", "int8")


@dataclass(frozen=True)
class ExtraPass:
    """A pass of another package, which runs beside the project's own.

    Attributes:
        name: of its entry point.
        package: distribution that brings it.
        options: keywords that it is made with.
    """

    name: str
    package: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelMode:
    """Choice of the weights and activations of linear layers' kernels, and of extra passes.

    Attributes:
        weights: "stored", as MLC-LLM's converter writes them and its own runtime loads them; or
            "tiles", for which the library has functions that reorder what was loaded.
        activations: "float32"; or "int8", rounded in groups where weights are quantized.
        kv_cache: "float32", the type of the keys and values that a model computes (float16 with
            halves); or "int8", each rounded with a factor of its own.
        extras: passes of other packages.
    """

    weights: str = "stored"
    activations: str = "float32"
    kv_cache: str = "float32"
    extras: tuple[ExtraPass, ...] = ()

    def __post_init__(self) -> None:
        if self.activations == "int8" and self.weights != "tiles":
            raise UserError(
                "int8 activations need weights in tiles",
                remedy="leave out --weights stored",
            )

    @property
    def label(self) -> str:
        """Ending of the names of folders: "", "-int8", "-kv-int8" or "-int8-kv-int8"."""
        activations = "" if self.activations == "float32" else f"-{self.activations}"
        return activations + ("" if self.kv_cache == "float32" else f"-kv-{self.kv_cache}")

    @property
    def choices(self) -> dict[str, Any]:
        """Choices that the compiler's output depends on."""
        names = ("weights", "activations", "kv_cache")
        found = {name: getattr(self, name) for name in names}
        return {**found, **({"extras": list(map(asdict, self.extras))} if self.extras else {})}


TILES = KernelMode("tiles")
# The work of a compiled model, as the cost estimate reads it, in a library's folder.
WORK_FILE = "work.json"
ESTIMATE = ExtraPass("estimate_cost", "mlc-rvv-accelerator-study", {"file": WORK_FILE})
