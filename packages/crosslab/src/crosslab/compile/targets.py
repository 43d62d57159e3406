# SPDX-License-Identifier: Apache-2.0
"""TVM targets by name, as plain tables."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslab.errors import UserError

TRIPLE = "riscv64-unknown-linux-gnu"
VLENS = (128, 256, 512, 1024)
NAMES = ("riscv64", "host")

X86_64_V3 = "x86-64-v3"
X86_64_V3_VECTORS = ("avx2", "fma")
"""CPU features that kernels for this level need, by LLVM's names."""

# Extensions of LLVM's CPUs that are switched off: the project's targets do not have them.
OF_CPUS = (
    *("b", "h", "v", "xsmtvdot", "zacas", "zba", "zbb", "zbc", "zbkb", "zbkc", "zbkx", "zbs"),
    *("zcb", "zcmop", "zfa", "zfbfmin", "zfh", "zfhmin", "zicond", "zimop", "zkn", "zknd", "zkne"),
    *("zknh", "zks", "zksed", "zksh", "zvbb", "zvbc", "zvfbfmin", "zvfbfwma", "zvfh", "zvfhmin"),
    *("zvkb", "zvkg", "zvkn", "zvkned", "zvkng", "zvknhb"),
)


@dataclass(frozen=True)
class LabTarget:
    """A target of code generation.

    Attributes:
        name: "riscv64" or "host".
        vlen: width of a vector register in bits; 0 for the host.
        zvfh: a riscv64 CPU with half-precision vectors, which also has scalar conversions (Zfhmin).
        tune: LLVM's name of the CPU that instructions are scheduled for; empty: no CPU. It does not
            change which instructions are allowed.
    """

    name: str
    vlen: int = 0
    zvfh: bool = False
    tune: str = ""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(f"unknown target {self.name!r}", remedy=f"targets: {', '.join(NAMES)}")
        if self.name == "riscv64" and self.vlen not in VLENS:
            widths = ", ".join(map(str, VLENS))
            raise UserError(f"vector length {self.vlen} is not supported", remedy=f"use: {widths}")

    @property
    def label(self) -> str:
        """Name of the target for folders and reports, such as ``riscv64-rvv256``."""
        halves = "-zvfh" if self.zvfh else ""
        return f"{self.name}-rvv{self.vlen}{halves}" if self.vlen else self.name

    def table(self) -> dict[str, Any]:
        """Return the target as TVM's table, whose host part has the same attributes.

        ``+zve64d`` with a minimal vector length replaces ``+v``: under ``+v`` TVM 0.26 turns
        fixed vector loops into masked scalable ones, which are several times slower.
        """
        if self.name == "host":
            # TVM fills in the triple only if the table has no other field.
            about = {"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu"}
            return {**about, "mcpu": host_cpu()} if host_cpu() else about
        features = [f"-{name}" for name in OF_CPUS] if self.tune else []
        features += ["+m", "+a", "+f", "+d", "+c", "+zve64d", f"+zvl{self.vlen}b"]
        features += ["+zvfh"] if self.zvfh else []
        device = {
            "kind": "llvm",
            "mtriple": TRIPLE,
            "mcpu": self.tune or "generic-rv64",
            "mabi": "lp64d",
            "mattr": features,
            "vector-width": self.vlen,
        }
        return {**device, "host": dict(device)}


def prefix_of(vlen: int) -> str:
    """Return the symbol prefix of a library for one of several vector lengths.

    The prefix has more than seven letters: TVM 0.26 cannot read shorter attributes from a module.
    """
    return f"mlc_rvv{vlen}_"


def host_cpu() -> str:
    """Return the architecture level of this machine's code; "" for the baseline.

    AVX2 is used if available: without it LLVM takes minutes to split dlight's wide vectors.
    """
    about = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not about.is_file():
        return ""
    flags = set(about.read_text(encoding="utf-8", errors="replace").split())
    return X86_64_V3 if {*X86_64_V3_VECTORS, "bmi2"} <= flags else ""
