# SPDX-License-Identifier: Apache-2.0
"""Options of a model library: formats that kernels read, and extra passes."""

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
    """A compiler pass of another package.

    Attributes:
        name: name of the entry point.
        package: distribution with the pass.
        options: keyword arguments of the pass.
    """

    name: str
    package: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelMode:
    """Formats of weights, activations and KV cache that kernels read, and extra passes.

    Attributes:
        weights: "stored", the layout of MLC-LLM's converter, which MLC-LLM's runtime loads; or
            "tiles", for which the library has functions that reorder the loaded weights.
        activations: "float32"; or "int8", rounded in groups before layers with quantized weights.
        kv_cache: "float32", the type of the keys and values that a model computes (float16 with
            halves); or "int8", each rounded with its own factor.
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
        """Suffix of folder names: "", "-int8", "-kv-int8" or "-int8-kv-int8"."""
        activations = "" if self.activations == "float32" else f"-{self.activations}"
        return activations + ("" if self.kv_cache == "float32" else f"-kv-{self.kv_cache}")

    @property
    def choices(self) -> dict[str, Any]:
        """Options that change the compiler's output, as a table."""
        names = ("weights", "activations", "kv_cache")
        table = {name: getattr(self, name) for name in names}
        return {**table, **({"extras": list(map(asdict, self.extras))} if self.extras else {})}


TILES = KernelMode("tiles")
# File in a library's folder with the model's operations, for the cost estimate.
WORK_FILE = "work.json"
ESTIMATE = ExtraPass("estimate_cost", "mlc-rvv-accelerator-study", {"file": WORK_FILE})
