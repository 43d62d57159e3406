# SPDX-License-Identifier: Apache-2.0
"""The cost of a GEMM on an accelerator under a dataflow and a quantization scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.accelerator.dataflow import BoundDataflow, Dataflow
from costmodel.accelerator.hardware import Hardware, Level
from costmodel.accelerator.scheme import FLOAT16, Grain, Scheme
from costmodel.accelerator.tenet import transfer_delay
from costmodel.counting.extrapolation import period
from costmodel.errors import CostError
from costmodel.estimate.array import OUTPUT, Region, TileCounts, on_array, widths_of
from costmodel.estimate.pipeline import State, duration, steps
from costmodel.estimate.product import (
    Gemm,
    GemmCost,
    Role,
    Traffic,
    effective_scheme,
    pe_energies,
)
from costmodel.estimate.tiling import (
    LARGER,
    BufferTile,
    Holding,
    Passes,
    attention_holding,
    choose,
    fits,
    room,
)
from costmodel.estimate.transfer import MovedBits, memory_energy, with_outside


def cost(
    gemm: Gemm,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme = FLOAT16,
    tile: BufferTile | None = None,
    plan: tuple[Holding, ...] = (),
) -> GemmCost:
    """Return the estimated cost of a GEMM.

    Without a tile or a plan, :func:`costmodel.estimate.tiling.choose` chooses each memory's tile:
    the tile with the least sum of bus and array time, which is not always the least latency.

    Args:
        gemm: the product.
        hardware: the accelerator.
        dataflow: space-time map of the product on the array.
        scheme: widths; a GEMM without a weight keeps 16 bits.
        tile: tile in the first level.
        plan: tiles in every bounded level, from the array outwards.

    Raises:
        CostError: the dataflow does not fit the array, or the tile does not fit the buffer.
    """
    if tile is not None:
        order = _tile_order(dataflow.bind(hardware.fabric))
        plan = (Holding(BufferTile(*map(min, tile, gemm.extents)), order),)
    return _cost(gemm, hardware, dataflow, effective_scheme(gemm, scheme), scheme.name, plan)


@lru_cache(maxsize=8192)
def _cost(
    gemm: Gemm,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme,
    label: str,
    plan: tuple[Holding, ...],
) -> GemmCost:
    hardware = gemm.beside(hardware)
    case = _Case(gemm, hardware, dataflow.bind(hardware.fabric), scheme)
    return case.result(label, case.plan(plan))


@dataclass(frozen=True)
class _Case:
    """A GEMM on an accelerator, with a dataflow bound to the array."""

    gemm: Gemm
    hardware: Hardware
    bound: BoundDataflow
    scheme: Scheme

    @property
    def holders(self) -> list[Level]:
        """The memories that hold tiles, each larger than the previous; data pass through others."""
        holders: list[Level] = []
        for level in self.hardware.levels[:-1]:
            if not holders or (level.size or 0) > (holders[-1].size or 0):
                holders.append(level)
        return [] if self.hardware.levels[0].size is None else holders

    def behind(self, holder: Level) -> list[Level]:
        """Return the memories outside of a holder, up to and including the next holder."""
        levels, holders = list(self.hardware.levels), self.holders
        index = holders.index(holder) + 1
        end = levels.index(holders[index]) if index < len(holders) else len(levels) - 1
        return levels[levels.index(holder) + 1 : end + 1]

    def plan(self, holdings: tuple[Holding, ...]) -> dict[str, Holding]:
        """Return the tiles of the memories by name, from the array outwards.

        Raises:
            CostError: a given tile does not fit its memory, or no tile fits.
        """
        holders = self.holders
        plan: dict[str, Holding] = {}
        inside = self.gemm.extents
        for index in reversed(range(len(holders))):
            level = holders[index]
            if index < len(holdings):
                plan[level.name] = self._checked(holdings[index], level)
            else:
                plan[level.name] = self._least(inside, level)
            inside = plan[level.name].tile
        return dict(reversed(plan.items()))

    def _checked(self, holding: Holding, level: Level) -> Holding:
        bits = room(*holding.tile, self.scheme, level)
        if not fits(bits, level):
            tile, first = holding.tile, level
            raise CostError(
                f"{self.hardware.name}: tile {tile.m},{tile.n},{tile.k} of "
                f"{self.gemm.name} takes {sum(bits)} bits under {self.scheme.name}, "
                f"level {first.name} has {first.size}",
                remedy="give a smaller --tile, or leave it out to have one searched",
            )
        return holding

    def _least(self, extents: tuple[int, int, int], level: Level) -> Holding:
        m, n, k = extents
        holding: Holding | None
        if self.gemm.role is Role.PRODUCT:
            levels = (level, slowest(self.behind(level)))
            order = _tile_order(self.bound)
            holding = choose((m, n, k), order, self.scheme, levels, self._passes())
        else:
            scores = self.gemm.role is Role.SCORES
            context, width = (n, k) if scores else (k, n)
            blocks = attention_holding(m, context, width, self.scheme, level)
            holding = blocks and Holding(BufferTile(*blocks, width)).turned(scores)
        if holding is None:
            name = f"{self.hardware.name}: no tile of {self.gemm.name}"
            raise CostError(f"{name} fits {level.name}", remedy=LARGER)
        return holding

    def _passes(self) -> Passes:
        names, mapping = self.bound.gemm_names()[:3], self.bound.mapping
        m, n, k = (period(d, mapping.space) for d in names)
        streamed = [
            period(d, mapping.time) if p == 1 else 1 for d, p in zip(names, (m, n, k), strict=True)
        ]
        tile = BufferTile(*(s if p == 1 else p for p, s in zip((m, n, k), streamed, strict=True)))
        counts = self.array((*tile, True, True), 1).counts
        return Passes(
            (m, n, k), (streamed[0], streamed[1], streamed[2]), counts.stamps + counts.loading - 1
        )

    def result(self, label: str, plan: dict[str, Holding]) -> GemmCost:
        """Return the GEMM's cost: delays, traffic and energy that follow from the counts."""
        gemm, hardware, scheme = self.gemm, self.hardware, self.scheme
        run = _Run(self, list(plan.values()), {})
        whole = (*gemm.extents, True, True)
        region = run.region(len(plan), whole, gemm.batch)
        counts = region.counts
        first, last = hardware.levels[0], hardware.levels[-1]
        moved = [counts.moved[v.name] for v in hardware.levels]
        in_delay = transfer_delay(moved[0].read, first.read, first.latency)
        out_delay = transfer_delay(moved[0].write, first.write, first.latency)
        array = counts.stamps + counts.loading
        inner = max(array, in_delay, out_delay)
        lag = sum(v.latency - 1 for v in hardware.levels) if plan else 0
        latency = max(inner, round(region.cycles) + lag)
        rescales = self._rescales(counts)
        bits = (
            moved[-1].read + moved[-1].write
            if last.shared
            else max(moved[-1].read, moved[-1].write * last.read / last.write)
        )
        intensity = gemm.macs / max(1.0, bits)
        finished = gemm.batch * gemm.m * gemm.n
        return GemmCost(
            gemm=gemm,
            hardware=hardware.name,
            dataflow=self.bound.dataflow.name,
            scheme=label,
            stamps=counts.stamps,
            loading=counts.loading,
            compute_delay=counts.compute,
            busiest=counts.busiest,
            active_pes=counts.active_pes,
            utilisation=counts.instances / (counts.stamps * hardware.peak),
            total=counts.total,
            unique=counts.unique,
            widths=widths_of(counts.unique, scheme),
            partial_sums=counts.unique[OUTPUT] - finished,
            in_delay=in_delay,
            out_delay=out_delay,
            latency=latency,
            waiting=latency - inner,
            traffic=tuple(
                _traffic(v.name, inside, outside, array, latency)
                for v, inside, outside in with_outside(hardware, moved)
            ),
            energy=self._energy(rescales, moved),
            rescales=rescales,
            plan=plan,
            intensity=intensity,
            attainable=min(float(hardware.peak), intensity * last.read),
            bus={
                v.name: float(v.cycles(t.read, t.write))
                for v, t in zip(hardware.levels[1:], moved[1:], strict=True)
            },
        )

    def array(self, state: State, batch: int) -> Region:
        """Return the counts and cycles of a tile on the array."""
        return on_array(state, batch, self.bound, self.hardware, self.scheme)

    def _rescales(self, counts: TileCounts) -> int:
        """Return the multiplications by scales, of weights that enter or of finished sums."""
        gemm, scheme = self.gemm, self.scheme
        if scheme.weight_grain in (Grain.GROUP, Grain.ROW):
            return counts.unique["B"]
        entering = counts.unique["A"] if scheme.activation_grain is Grain.EMBEDDING else 0
        return entering + scheme.scales_of_sums * gemm.batch * gemm.m * gemm.n

    def _energy(self, rescales: int, moved: Sequence[MovedBits]) -> dict[str, float]:
        """Return pJ by part."""
        hardware = self.hardware
        energies = pe_energies(self.gemm, hardware, self.scheme)
        energies["rescale"] = rescales * hardware.mac(FLOAT16.activation)
        for level, inside, outside in with_outside(hardware, moved):
            energies[level.name] = memory_energy(level, inside, outside)
        return energies


def _traffic(
    level: str, inside: MovedBits, outside: MovedBits, array: int, latency: int
) -> Traffic:
    """Return all accesses to a memory; bits a cycle are those of its inner port alone."""
    port = inside.read + inside.write
    return Traffic(
        level,
        read=inside.read + outside.write,
        write=inside.write + outside.read,
        filled=outside.read,
        drained=outside.write,
        required=port / max(1, array),
        achieved=port / max(1, latency),
    )


def _tile_order(bound: BoundDataflow) -> tuple[str, ...]:
    """Return the loop order over tiles in terms of m, n, k."""
    m, n, k, _ = bound.gemm_names()
    role = {m: "m", n: "n", k: "k", "i": "m", "j": "n"} | {m: "m", n: "n", k: "k"}
    listed = [role.get(t, t) for t in bound.dataflow.tiles]
    order = tuple(dict.fromkeys([*listed, "m", "n", "k"]))
    if set(order) != {"m", "n", "k"}:
        raise CostError(f"dataflow {bound.dataflow.name}: 'tiles' must order {m}, {n}, {k}")
    return order


@dataclass(frozen=True)
class _Run:
    """A walk over the tiles of every memory, the outermost memory first.

    Attributes:
        known: regions by memory, tile and batch, so that equal regions are counted once.
    """

    case: _Case
    plan: list[Holding]
    known: dict[tuple[int, State, int], Region]

    def region(self, depth: int, state: State, batch: int = 1) -> Region:
        """Return counts and cycles of a region in tiles of the ``depth`` innermost memories."""
        key = (depth, state, batch)
        if key not in self.known:
            self.known[key] = (
                self._walk(depth, state, batch) if depth else self.case.array(state, batch)
            )
        return self.known[key]

    def _walk(self, depth: int, state: State, batch: int) -> Region:
        case = self.case
        holder = case.holders[depth - 1]
        behind = case.behind(holder)
        listed = steps(state, self.plan[depth - 1], case.scheme, case.gemm.on_chip)
        counts, cycles = TileCounts(), np.zeros(listed.times.shape)
        for tile, kinds in listed.states().items():
            inner = self.region(depth - 1, tile)
            counts.add(inner.counts, int(listed.times[kinds].sum()) * batch)
            cycles[kinds] = inner.cycles
        for level in behind:
            counts.moved[level.name] = listed.moved() * batch
        both = holder.double_buffered
        time = duration(listed, cycles, slowest(behind), both, batch)
        return Region(counts, float(time[0]))


def slowest(levels: Sequence[Level]) -> Level:
    """Return the memory with the most cycles to read a bit and write a bit."""
    return max(levels, key=lambda level: float(level.cycles(1.0, 1.0)))
