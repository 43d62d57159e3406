# SPDX-License-Identifier: Apache-2.0
"""Totals of cost by kind of layer, by layer, by phase and by model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from costmodel.accelerator.dataflow import Dataflow
from costmodel.accelerator.hardware import Hardware, Level
from costmodel.accelerator.scheme import FLOAT16, Scheme
from costmodel.errors import CostError
from costmodel.estimate.execution import chained
from costmodel.estimate.gemm import cost
from costmodel.estimate.product import GemmCost
from costmodel.estimate.tiling import BufferTile, Holding
from costmodel.estimate.transfer import NOTHING, MovedBits, memory_energy, with_outside
from costmodel.estimate.workload import Item, Phase

OTHER = "other"


@dataclass(frozen=True)
class ItemCost:
    """A product of the model, and the cost of an execution."""

    item: Item
    cost: GemmCost


@dataclass(frozen=True)
class Totals:
    """Sums over executions: MACs, cycles, bits at the outermost level, pJ, scalings, bits sent.

    Attributes:
        stamps: cycles in which the array computes (with skew) or loads; compute: without both.
        latency: cycles, with products one after the other.
    """

    macs: int = 0
    stamps: int = 0
    compute: int = 0
    latency: int = 0
    bits: int = 0
    energy: float = 0.0
    rescales: int = 0
    link_bits: int = 0

    def __add__(self, other: Totals) -> Totals:
        sums, addends = vars(self), vars(other)
        return Totals(**{name: sums[name] + addends[name] for name in sums})


@dataclass(frozen=True)
class PhaseCost:
    """The cost of a phase on an accelerator under a dataflow and a scheme.

    Attributes:
        beside: the cost of further arrays with another share of the work.
    """

    phase: Phase
    hardware: Hardware
    dataflow: Dataflow
    scheme: str
    items: tuple[ItemCost, ...]
    other: Totals
    beside: PhaseCost | None = None

    @property
    def latency(self) -> int:
        """The cycles of the slowest array."""
        return max(self.total.latency, self.beside.latency if self.beside else 0)

    @property
    def energy(self) -> float:
        """The energy in pJ of all arrays."""
        return self.phase.arrays * self.total.energy + (self.beside.energy if self.beside else 0)

    @property
    def bits(self) -> int:
        """The bits at the outermost level of all arrays."""
        return self.phase.arrays * self.total.bits + (self.beside.bits if self.beside else 0)

    @property
    def total(self) -> Totals:
        """The sum over all work, products and other work, of an array."""
        return sum((item_totals(i) for i in self.items), self.other)

    def by_kind(self) -> dict[str, Totals]:
        """Return sums by layer type, and the sum of other work."""
        sums = _grouped(self.items, lambda i: i.item.kind)
        return {**sums, OTHER: self.other} if self.phase.others else sums

    def by_layer(self) -> dict[str, Totals]:
        """Return sums by decoder layer, or by kind for products outside of layers."""

        def label(i: ItemCost) -> str:
            return i.item.kind if i.item.layer is None else f"layer {i.item.layer}"

        return _grouped(self.items, label)


def _grouped(items: Iterable[ItemCost], label: Callable[[ItemCost], str]) -> dict[str, Totals]:
    sums: dict[str, Totals] = {}
    for item in items:
        key = label(item)
        sums[key] = sums.get(key, Totals()) + item_totals(item)
    return sums


def item_totals(item: ItemCost) -> Totals:
    """Return the totals of all executions of an item."""
    gemm_cost, times = item.cost, item.item.count
    outer = gemm_cost.traffic[-1]
    return Totals(
        macs=times * gemm_cost.macs,
        stamps=times * gemm_cost.array,
        compute=times * gemm_cost.compute_delay,
        latency=times * gemm_cost.latency,
        bits=times * (outer.read + outer.write),
        energy=times * sum(gemm_cost.energy.values()),
        rescales=times * gemm_cost.rescales,
    )


def phase_cost(
    phase: Phase,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme | str,
    tile: BufferTile | None = None,
    plans: Mapping[str, tuple[Holding, ...]] | None = None,
) -> PhaseCost:
    """Estimate a phase; the scheme ``as-compiled`` keeps each product's compiled widths.

    Args:
        phase: the products.
        hardware: the accelerator.
        dataflow: space-time map of products on the array.
        scheme: widths.
        tile: of the first memory, for all products.
        plans: tiles by :func:`product_key`; the estimate chooses tiles of products without a plan.

    Raises:
        CostError: a product does not fit the accelerator.
    """
    widths = None if isinstance(scheme, str) else scheme
    beside = None
    if phase.beside:
        beside = phase_cost(phase.beside, hardware, dataflow, scheme, tile, plans)
    phase = chained(phase, hardware.levels[0], widths)
    items = tuple(
        ItemCost(
            i,
            cost(
                i.gemm,
                hardware,
                dataflow,
                item_scheme(i, scheme),
                tile,
                (plans or {}).get(product_key(i), ()),
            ),
        )
        for i in phase.items
    )
    name = scheme if isinstance(scheme, str) else scheme.name
    other = other_work(phase, hardware, scheme)
    return PhaseCost(phase, hardware, dataflow, name, items, other, beside)


def product_key(item: Item) -> str:
    """Return the name of a product by kind and extents; equal products share a mapping."""
    g = item.gemm
    return f"{item.kind} {g.batch}x{g.m}x{g.n}x{g.k}"


def item_scheme(item: Item, scheme: Scheme | str) -> Scheme:
    """Return ``scheme``, or the product's compiled scheme for ``as-compiled``."""
    return item.compiled if isinstance(scheme, str) else scheme


def other_work(phase: Phase, hardware: Hardware, scheme: Scheme | str) -> Totals:
    """Return the totals of work beside products, from transfers to and from the outermost memory.

    Operands and results pass through every memory, which is written and read once.
    """
    compiled = phase.compiled_output
    width = compiled if isinstance(scheme, str) else max(scheme.output, FLOAT16.output)
    total = Totals()
    for work in phase.others:
        if work.view:
            continue
        times = work.count * (1 if work.exact else width / compiled)
        used = MovedBits(int(work.bits_read * times), stored=int(work.bits_written * times))
        if work.link:
            link = _link(hardware)
            cycles = int(link.cycles(used.read, used.write)) + work.count * link.latency
            energy = memory_energy(link, used, NOTHING)
            total += Totals(latency=cycles, energy=energy, link_bits=used.read + used.write)
            continue
        moved = MovedBits(int((work.bits_weights or 0) * times)) if work.on_chip else used
        inside = [used, *[moved] * (len(hardware.levels) - 1)]
        boundaries = with_outside(hardware, inside)
        total += Totals(
            latency=int(hardware.levels[-1].cycles(moved.read, moved.write)),
            energy=sum(memory_energy(*boundary) for boundary in boundaries),
            bits=moved.read + moved.write,
        )
    return total


def _link(hardware: Hardware) -> Level:
    if hardware.link is None:
        raise CostError(
            f"{hardware.name}: --arrays needs a [link] in the hardware file",
            remedy="add the table [link]",
        )
    return hardware.link
