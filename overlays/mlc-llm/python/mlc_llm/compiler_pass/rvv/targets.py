# SPDX-License-Identifier: Apache-2.0
"""Machine, features and vectors of a target."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm.target import Target, codegen


@dataclass(frozen=True)
class Vectors:
    """The vector lengths that loops may use.

    Attributes:
        words: elements of a register.
        registers: most registers that an element-wise loop takes for one value.
        with_math: the same where elementary functions need registers, too.
    """

    words: int
    registers: int
    with_math: int

    @property
    def most(self) -> int:
        """Return the largest number of float32 lanes of a vector."""
        return self.words * self.registers

    @property
    def most_with_math(self) -> int:
        """Return the largest number of lanes for elementary functions."""
        return self.words * self.with_math


def vectors_of(target: Target) -> Vectors | None:
    """Return the vectors of a target; None without vectors or without fused multiply-add.

    Without it the reductions of arguments would be calls of libm, one for each element.
    """
    if is_rvv_target(target):
        # LLVM loads all vectors of a row before it works on them: groups of eight are spilled.
        return Vectors(vector_bits(target) // 32, registers=4, with_math=4)
    if target.kind.name != "llvm":
        return None
    arch = target_arch(target)
    if arch == "x86_64" and codegen.target_has_features(["avx2", "fma"], target):
        return Vectors(8, registers=4, with_math=2)
    return Vectors(4, registers=4, with_math=2) if arch == "aarch64" else None


def vector_bits(target: Target) -> int:
    """Return the least vector length, in bits, that an RVV target guarantees."""
    widths = [re.fullmatch(r"\+zvl(\d+)b", str(f)) for f in target.attrs.get("mattr", ())]
    return max([int(w.group(1)) for w in widths if w] + [128])


def is_rvv_target(target: Target) -> bool:
    """Return True if code for the target may use float32 vectors of the RVV extension."""
    # zve32x and zve64x have vectors of integers only.
    return is_riscv64(target) and any(
        name == "v" or name.startswith("zvl") or (name.startswith("zve") and not name.endswith("x"))
        for name in target_features(target)
    )


def has_halves_in_vectors(target: Target) -> bool:
    """Return True if a target is a RISC-V CPU with vectors of float16 (Zvfh)."""
    return is_riscv64(target) and "zvfh" in target_features(target)


def is_riscv64(target: Target) -> bool:
    """Return True if LLVM generates riscv64 code for the target."""
    return target.kind.name == "llvm" and target_arch(target).startswith("riscv64")


def target_features(target: Target) -> set[str]:
    """Return the features in a target's attribute mattr."""
    features: set[str] = set()
    for attribute in target.attrs.get("mattr", ()):
        name = str(attribute)
        # As in LLVM, the last sign of a feature counts.
        (features.discard if name.startswith("-") else features.add)(name.lstrip("+-"))
    return features


def target_arch(target: Target) -> str:
    """Return the architecture of a target's triple; "" without a triple."""
    return canonical_arch(str(target.attrs.get("mtriple", "")).split("-", maxsplit=1)[0])


def canonical_arch(name: str) -> str:
    """Return an architecture's name as target triples spell it."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name.lower(), name.lower())
