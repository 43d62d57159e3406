# SPDX-License-Identifier: Apache-2.0
"""What vectors a CPU has, for the passes that make vector loops.

This module imports nothing but TVM, so that it also serves where there is no MLC-LLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvm.target import Target, codegen

from .tensorization import is_rvv_target, target_arch


@dataclass(frozen=True)
class Vectors:
    """Vectors of float32 that loops may be written in.

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
        """Most elements of a vector."""
        return self.words * self.registers

    @property
    def most_with_math(self) -> int:
        """Most elements of a vector of which elementary functions are computed."""
        return self.words * self.with_math


def vectors_of(target: Target) -> Vectors | None:
    """The vectors of a target; None if it has none, or no fused multiply-add in them.

    Without it the reductions of arguments would be calls of libm, one for each element.
    """
    if is_rvv_target(target):
        return Vectors(vector_bits(target) // 32, registers=8, with_math=4)
    if target.kind.name != "llvm":
        return None
    arch = target_arch(target)
    if arch == "x86_64" and codegen.target_has_features(["avx2", "fma"], target):
        return Vectors(8, registers=4, with_math=2)
    return Vectors(4, registers=4, with_math=2) if arch == "aarch64" else None


def vector_bits(target: Target) -> int:
    """The vector length that an RVV target promises at least."""
    widths = [re.fullmatch(r"\+zvl(\d+)b", str(f)) for f in target.attrs.get("mattr", ())]
    return max([int(w.group(1)) for w in widths if w] + [128])
