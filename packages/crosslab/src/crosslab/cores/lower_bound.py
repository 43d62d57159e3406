# SPDX-License-Identifier: Apache-2.0
"""Lower bound of the cycles of a kernel call, by unit of a core, from the core's table.

Every order of instructions needs this work, counted in the register width with the lowest cost:

* vector arithmetic: the multiply-adds; for packed weights also one instruction that unpacks each
  weight, or each pair of weights if activations are int8;
* vector memory: each weight with its scales is loaded once, contiguously; each result is stored
  once, and in attention also loaded;
* scalar: each activation is loaded once for each strip of outputs, which is as wide as a group of
  eight registers; int8 activations are loaded eight at a time, and seven of eight are shifted.

The bound leaves out loops, addresses, zero points, scales and panels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from crosslab.cores.core import Core
from crosslab.cores.cycles import vec_serial
from crosslab.errors import UserError
from crosslab.models.formats import packings
from crosslab.models.gguf_formats import GgufFormat, gguf_formats
from crosslab.run.decode import Unit

LMULS = (1, 2, 4, 8)
GGUF = "_gguf_"


@dataclass(frozen=True)
class CycleBound:
    """Least cycles of a call, by unit."""

    memory: float
    arithmetic: float
    scalar: float

    def of(self, unit: Unit) -> float:
        """Return the least cycles of a unit."""
        return {
            Unit.MEMORY: self.memory,
            Unit.ARITHMETIC: self.arithmetic,
            Unit.SCALAR: self.scalar,
        }[unit]

    @property
    def vec_serial(self) -> float:
        """The larger of vector memory + vector arithmetic cycles, and scalar cycles."""
        return vec_serial({unit: self.of(unit) for unit in Unit})


def linear(core: Core, kernel: str, m: int, n: int, k: int) -> CycleBound:
    """Return the least cycles of each unit for a linear layer, in tiles or in GGUF blocks.

    Args:
        core: the core.
        kernel: name of the kernel, as gemm_q4_tiles, gemm_q4_int8 or gemm_gguf_q4_k; q4 is the
            format of the weights, and int8 that of the activations.
        m: number of rows.
        n: number of outputs.
        k: number of inputs.

    Raises:
        UserError: the core's table lacks the instructions.
    """
    if GGUF in kernel:
        return _blocks(core, gguf_formats()[kernel.partition(GGUF)[2].upper()], m, n, k)
    packing, int8 = packings()[kernel.split("_")[1]], kernel.endswith("_int8")
    multiply = _least(core, ["vwmacc.vx"], 8) if int8 else _least(core, ["vfmacc.vf"], 32)
    arithmetic, memory = m * n * k * multiply, m * n * _least(core, ["vse32.v"], 32)
    if packing is None:
        memory += n * k * _least(core, ["vle32.v"], 32)
    else:
        unpack = (
            _least(core, ["vmulhu.vx", "vsrl.vi", "vand.vi"], 8) / 2
            if int8
            else min(
                _least(core, ["vwmulu.vx", "vwaddu.vx"], 16),
                _least(core, ["vzext.vf2", "vzext.vf4"], 32),
            )
        )
        arithmetic += n * k * unpack
        memory += n * k * packing.bits / 8 * _least(core, ["vle8.v"], 8)
        memory += n * math.ceil(k / packing.group) * _least(core, ["vle32.v"], 32)
    return CycleBound(memory, arithmetic, _scalars(core, m, n, k, int8=int8))


def _blocks(core: Core, f: GgufFormat, m: int, n: int, k: int) -> CycleBound:
    """Return the least cycles of each unit with int8 activations and weights in GGUF blocks."""
    arithmetic = m * n * k * _least(core, ["vwmacc.vx"], 8)
    if f.low < 8:
        arithmetic += n * k * _least(core, ["vmulhu.vx", "vsrl.vi", "vand.vi"], 8) / 2
    memory = m * n * _least(core, ["vse32.v"], 32) + n * k * f.bits / 8 * _least(
        core, ["vle8.v"], 8
    )
    return CycleBound(memory, arithmetic, _scalars(core, m, n, k, int8=True))


def attention(core: Core, rows: int, columns: int, depth: int) -> CycleBound:
    """Return the least cycles of attention's acc[rows, columns] += lhs[rows, depth] * rhs."""
    loaded = (rows + depth) * columns * _least(core, ["vle32.v"], 32)
    stored = rows * columns * _least(core, ["vse32.v"], 32)
    return CycleBound(
        loaded + stored,
        rows * columns * depth * _least(core, ["vfmacc.vf"], 32),
        _scalars(core, rows, columns, depth),
    )


def _scalars(core: Core, rows: int, columns: int, depth: int, *, int8: bool = False) -> float:
    scalar = core.assumptions.scalar
    strips = math.ceil(columns / (core.vlen // 32 * max(LMULS)))
    load, shift, single = (scalar.get(n, scalar["default"]) for n in ("load", "add", "fload"))
    return rows * depth * strips * (load / 8 + shift * 7 / 8 if int8 else single)


def _least(core: Core, names: Sequence[str], width: int) -> float:
    """Return the cycles of an element of ``width`` bits, by the cheapest instruction and LMUL.

    Raises:
        UserError: the core's table lacks all of the instructions.
    """
    costs = [
        core.cycles.get(name, {}).get(f"e{width}m{lmul}", math.nan) / (core.vlen / width * lmul)
        for name in names
        for lmul in LMULS
    ]
    known = [cost for cost in costs if not math.isnan(cost)]
    if not known:
        raise UserError(
            f"--core {core.key}: its table has no figure for {' or '.join(names)}, so its "
            "cycles have no bound",
            remedy="give a core with that figure: --core spacemit-x60",
        )
    return min(known)
