# SPDX-License-Identifier: Apache-2.0
"""The fewest cycles of each unit of a core that a call of a kernel can take, by the core's table.

Every order of instructions needs these, each counted in the width that costs the core least:

* vector arithmetic: the multiply-adds; of packed weights also one instruction that makes a number
  of each, or of each pair where activations are int8;
* vector memory: every weight loaded once and side by side, with its scales; every result stored
  once, in attention also loaded;
* scalar: every activation loaded once for each strip of outputs as wide as a group of eight
  registers; those of int8 eight at a time, each but one then shifted.

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
    """Cycles of a call at least, by unit."""

    memory: float
    arithmetic: float
    scalar: float

    def of(self, unit: Unit) -> float:
        """Cycles of one unit."""
        return {
            Unit.MEMORY: self.memory,
            Unit.ARITHMETIC: self.arithmetic,
            Unit.SCALAR: self.scalar,
        }[unit]

    @property
    def vec_serial(self) -> float:
        """The larger of vector memory + vector arithmetic, and scalar."""
        return vec_serial({unit: self.of(unit) for unit in Unit})


def linear(core: Core, kernel: str, m: int, n: int, k: int) -> CycleBound:
    """Bound of a linear layer with weights in tiles.

    Args:
        core: by whose table.
        kernel: by kind and weights, as gemm_q4_tiles, gemm_q4_int8 or gemm_gguf_q4_k.
        m: rows.
        n: outputs.
        k: inputs.
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
    """A linear layer with int8 activations whose weights are in blocks of a GGUF file."""
    arithmetic = m * n * k * _least(core, ["vwmacc.vx"], 8)
    if f.low < 8:
        arithmetic += n * k * _least(core, ["vmulhu.vx", "vsrl.vi", "vand.vi"], 8) / 2
    memory = m * n * _least(core, ["vse32.v"], 32) + n * k * f.bits / 8 * _least(
        core, ["vle8.v"], 8
    )
    return CycleBound(memory, arithmetic, _scalars(core, m, n, k, int8=True))


def attention(core: Core, rows: int, columns: int, depth: int) -> CycleBound:
    """Bound of acc[rows, columns] += lhs[rows, depth] * rhs, both products of attention."""
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
    """Cycles of one element by the cheapest of some instructions, in its cheapest width.

    Raises:
        UserError: the core's table has none of them.
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
