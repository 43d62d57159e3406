# SPDX-License-Identifier: Apache-2.0
"""A matrix product of a model, its widths under a scheme, and the figures of its estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import FLOAT16, Scheme
from costmodel.errors import CostError
from costmodel.estimate.tiling import BufferTile, Holding

MOST_MACS = 1 << 56  # of a product: bits and cycles of all its tiles fit 64 bits


class Role(Enum):
    """A product's role in the model; attention's two products are fused, with scores on chip."""

    PRODUCT = "product"
    SCORES = "scores"
    VALUES = "values"

    @property
    def on_chip(self) -> frozenset[str]:
        """The operand that stays in the first level: C of SCORES, A of VALUES, else none."""
        operands = {Role.SCORES: frozenset("C"), Role.VALUES: frozenset("A")}
        return operands.get(self, frozenset())


@dataclass(frozen=True)
class Gemm:
    """``batch`` products of an ``m x k`` by a ``k x n`` matrix.

    Attributes:
        weight: B is a weight; only weights are quantized by a scheme's ``weight``.
        role: SCORES and VALUES are queries by keys and scores by values of fused attention, a
            product for each sequence and key-value head; B is the cache.
        kept: operands that stay in the first memory, for or from a neighbour.
        reserved: bits of the first memory that chained activations take beside the tiles.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    weight: bool = True
    role: Role = Role.PRODUCT
    kept: frozenset[str] = frozenset()
    reserved: int = 0

    def __post_init__(self) -> None:
        if self.macs > MOST_MACS:
            extents = f"{self.batch} x {self.m} x {self.n} x {self.k}"
            raise CostError(f"{self.name}: {extents} has more than 2**56 multiply-accumulates")

    @property
    def on_chip(self) -> frozenset[str]:
        """The operands that do not go beyond the first level."""
        return self.role.on_chip | self.kept

    def beside(self, hardware: Hardware) -> Hardware:
        """Return the hardware without the first-memory bits that chained activations occupy."""
        first, *others = hardware.levels
        if not self.reserved or first.size is None:
            return hardware
        return replace(hardware, levels=(replace(first, size=first.size - self.reserved), *others))

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def macs(self) -> int:
        """The multiply-accumulates of the batch."""
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class Traffic:
    """The accesses to a memory level in bits.

    Attributes:
        read, write: all bits read and written.
        filled: written bits that come from the level behind.
        drained: read bits that go to the level behind.
        required, achieved: bits a cycle over the level's inner boundary: needed to keep the array
            busy, and reached.
    """

    level: str
    read: int
    write: int
    filled: int
    drained: int
    required: float
    achieved: float


@dataclass(frozen=True)
class GemmCost:
    """The cost of a GEMM: delays in cycles, volumes in elements, traffic in bits, energy in pJ.

    Attributes:
        stamps: ``|T|``, compute cycles with the skew of the array.
        loading: cycles in which stationary operands are loaded into the array.
        compute_delay: compute cycles without skew and loading: MACs by active PEs (TENET).
        busiest: instances of the busiest PE: a lower bound of the map's cycles.
        in_delay, out_delay: transfer between the first level and the array (TENET's, with the
            partial sums that come back).
        latency: cycles, from the double buffering of every tile.
        waiting: cycles of the latency in which the array waits for outer memories.
        total, unique: elements by tensor; scales are tensors, too.
        partial_sums: elements of C that left the array unfinished.
        rescales: multiplications by scales.
        intensity: MACs per bit of the outermost level; attainable: its roof in MACs a cycle.
        plan: tiles by memory, from the array outwards; empty if the first level is unbounded.
        bus: cycles in which the port of an outer memory moves bits, by the memory's name.
    """

    gemm: Gemm
    hardware: str
    dataflow: str
    scheme: str
    stamps: int
    loading: int
    compute_delay: int
    busiest: int
    active_pes: int
    utilisation: float
    total: Mapping[str, int]
    unique: Mapping[str, int]
    widths: Mapping[str, int]
    partial_sums: int
    in_delay: int
    out_delay: int
    latency: int
    waiting: int
    traffic: tuple[Traffic, ...]
    energy: Mapping[str, float]
    rescales: int
    plan: Mapping[str, Holding]
    intensity: float
    attainable: float
    bus: Mapping[str, float]

    @property
    def macs(self) -> int:
        """The multiply-accumulates."""
        return self.gemm.macs

    @property
    def array(self) -> int:
        """The cycles in which the array computes or is loaded."""
        return self.stamps + self.loading

    @property
    def delay(self) -> int:
        """TENET's delay: the largest of in, out and compute."""
        return max(self.in_delay, self.out_delay, self.compute_delay)

    @property
    def tile(self) -> BufferTile | None:
        """The tile of the first level."""
        return next((h.tile for h in self.plan.values()), None)

    @property
    def bound(self) -> str:
        """The name of the busiest part: the array, its reads or writes, or an outer memory."""
        busy = {
            "array": self.array,
            "array read": self.in_delay,
            "array write": self.out_delay,
            **self.bus,
        }
        return max(busy, key=lambda name: busy[name])


def pe_energies(gemm: Gemm, hardware: Hardware, scheme: Scheme) -> dict[str, float]:
    """Return the pJ in the PEs; a MAC reads A, B and a sum beside its PE and writes the sum."""
    bits = 2 * scheme.compute + 2 * scheme.accumulator
    return {
        "mac": gemm.macs * hardware.mac(scheme.compute),
        "register": gemm.macs * bits * hardware.register_energy,
    }


def effective_scheme(gemm: Gemm, scheme: Scheme) -> Scheme:
    """Return a product's scheme: the cache's for attention; without a weight, at least FLOAT16."""
    if gemm.role is not Role.PRODUCT:
        return scheme.for_cache(gemm.role is Role.VALUES)
    return scheme if gemm.weight or scheme.activation > FLOAT16.activation else FLOAT16
