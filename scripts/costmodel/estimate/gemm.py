# SPDX-License-Identifier: Apache-2.0
"""The cost of one GEMM on one accelerator under one dataflow and one scheme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from costmodel.accelerator.dataflow import BoundDataflow, Dataflow, Volumes, count
from costmodel.accelerator.hardware import Hardware, Level
from costmodel.accelerator.scheme import FLOAT16, Grain, Scheme
from costmodel.accelerator.tenet import transfer_delay
from costmodel.counting.affine import Affine, floor_div, variable
from costmodel.counting.closed_form import lower
from costmodel.counting.space import Access, Box, Fabric, NonSeparableMapError, SpaceTime
from costmodel.errors import CostError
from costmodel.estimate.tiling import (
    BufferTile,
    TileObjective,
    footprint,
    outer_traffic,
    pieces,
    search,
)

OUTPUT = "C"


@dataclass(frozen=True)
class Gemm:
    """``batch`` products of an ``m x k`` by a ``k x n`` matrix.

    Attributes:
        weight: B is a weight; only weights are quantized by a scheme.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    weight: bool = True

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class Traffic:
    """Bits read from and written to a memory level, bits a cycle needed and reached."""

    level: str
    read: int
    write: int
    required: float
    achieved: float


@dataclass(frozen=True)
class GemmCost:
    """Cost of a GEMM: delays in cycles, volumes in elements, traffic in bits, energy in pJ.

    Attributes:
        stamps: ``|T|``, compute cycles with the skew of the array.
        compute_delay: compute cycles without it, MACs by active PEs (TENET).
        busiest: instances of the busiest PE: no schedule of this map is shorter.
        in_delay, out_delay: transfer between the first level and the array (TENET).
        outer_read, outer_write: transfer delays of the outer level, 0 without one.
        total, unique: elements by tensor; scales are tensors too.
        partial_sums: elements of C that left the array unfinished.
        rescales: multiplications by scales.
        intensity: MACs per bit of the outermost level's busier direction; attainable: the
            roof there in MACs a cycle.
        tile: what is held in the first level, None when all of it is.
    """

    gemm: Gemm
    hardware: str
    dataflow: str
    scheme: str
    stamps: int
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
    outer_read: int
    outer_write: int
    traffic: tuple[Traffic, ...]
    energy: Mapping[str, float]
    rescales: int
    tile: BufferTile | None
    intensity: float
    attainable: float

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.gemm.macs

    @property
    def delay(self) -> int:
        """TENET's delay: the largest of in, out and compute."""
        return max(self.in_delay, self.out_delay, self.compute_delay)

    @property
    def latency(self) -> int:
        """Cycles with the outer memory taken in."""
        return max(self.delay, self.outer_read, self.outer_write)

    @property
    def bound(self) -> str:
        """Name of the delay that is the latency."""
        named = {
            "compute": self.compute_delay,
            "array read": self.in_delay,
            "array write": self.out_delay,
            "memory read": self.outer_read,
            "memory write": self.outer_write,
        }
        return max(named, key=lambda n: named[n])


@dataclass(frozen=True)
class _Counts:
    """Counts added up over tiles and batch."""

    instances: int
    stamps: int
    active_pes: int
    compute: int
    busiest: int
    total: dict[str, int]
    unique: dict[str, int]


def cost(
    gemm: Gemm,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme = FLOAT16,
    tile: BufferTile | None = None,
) -> GemmCost:
    """Estimate a GEMM.

    A GEMM without a weight keeps 16 bits whatever the scheme. The tile, what the first level
    holds at a time, is searched when the hardware has an outer level and none is given.

    Raises:
        CostError: the dataflow does not fit the array, the tile does not fit the buffer.
    """
    effective = scheme if gemm.weight or scheme.activation > FLOAT16.activation else FLOAT16
    return _cost(gemm, hardware, dataflow, effective, scheme.name, tile)


@lru_cache(maxsize=8192)
def _cost(
    gemm: Gemm,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme,
    label: str,
    tile: BufferTile | None,
) -> GemmCost:
    case = _Case(gemm, hardware, dataflow.bind(hardware.fabric), scheme)
    chosen = case.tile(tile)
    tiles = pieces(gemm.m, gemm.n, gemm.k, chosen) if chosen else [(_whole(gemm), 1)]
    return case.result(label, chosen, case.counts(tiles))


def _whole(gemm: Gemm) -> BufferTile:
    return BufferTile(gemm.m, gemm.n, gemm.k)


@dataclass(frozen=True)
class _Case:
    """A GEMM on one accelerator, its dataflow bound to the array."""

    gemm: Gemm
    hardware: Hardware
    bound: BoundDataflow
    scheme: Scheme

    def tile(self, given: BufferTile | None) -> BufferTile | None:
        """The tile that the first level holds; None when it holds everything.

        Raises:
            CostError: ``given`` does not fit, or no tile does.
        """
        gemm, first = self.gemm, self.hardware.levels[0]
        if given is not None:
            limited = BufferTile(*map(min, vars(given).values(), vars(_whole(gemm)).values()))
            taken = footprint(limited, self.scheme)
            if first.size is not None and taken > first.size:
                raise CostError(
                    f"{self.hardware.name}: tile {limited.m},{limited.n},{limited.k} of "
                    f"{gemm.name} takes {taken} bits under {self.scheme.name}, "
                    f"level {first.name} has {first.size}",
                    remedy="give a smaller --tile, or leave it out to have one searched",
                )
            return limited
        if first.size is None or len(self.hardware.levels) == 1:
            return None
        outer, side = self.hardware.levels[-1], max(self.hardware.fabric.shape)
        stamps = partial(_stamps, self.bound, self.hardware.fabric)
        goal = TileObjective(first.size, side, outer.read, outer.write, stamps)
        order = _tile_order(self.bound)
        found = search(gemm.m, gemm.n, gemm.k, order, self.scheme, goal)
        if found is None:
            raise CostError(f"{self.hardware.name}: no tile of {gemm.name} fits {first.name}")
        return found

    def counts(self, tiles: list[tuple[BufferTile, int]]) -> _Counts:
        """Counts added up over all tiles and the batch."""
        total: dict[str, int] = {}
        unique: dict[str, int] = {}
        instances = stamps = busiest = active = compute = 0
        for tile, number in tiles:
            volumes, repeat = self._volumes(tile, number)
            for name in volumes.total:
                total[name] = total.get(name, 0) + repeat * volumes.total[name]
                unique[name] = unique.get(name, 0) + repeat * volumes.unique[name]
            full = volumes.occupancy
            instances += repeat * full.instances
            stamps += repeat * full.stamps
            busiest += repeat * full.busiest
            compute += repeat * (full.instances // (full.active_pes * full.lanes))
            active = max(active, full.active_pes)
        return _Counts(instances, stamps, active, compute, busiest, total, unique)

    def _volumes(self, tile: BufferTile, number: int) -> tuple[Volumes, int]:
        """Volumes of one tile (with the batch, when it is not cut), and its repetitions."""
        m, n, k, batch = self.bound.gemm_names()
        mapping, name = self.bound.mapping, batch or "b"
        if batch is None:
            mapping = SpaceTime(mapping.space, (variable(name), *mapping.time))
        whole = number == 1
        extents = {name: self.gemm.batch if whole else 1, m: tile.m, n: tile.n, k: tile.k}
        listed = accesses(m, n, k, (name,), self.scheme)
        fabric = self.hardware.fabric
        volumes = count(self.bound.dataflow, Box.of(extents), mapping, fabric, listed)
        return volumes, number * (1 if whole else self.gemm.batch)

    def result(self, label: str, tile: BufferTile | None, counts: _Counts) -> GemmCost:
        """Delays, traffic and energy that follow from the counts."""
        gemm, hardware, scheme = self.gemm, self.hardware, self.scheme
        widths = _widths(counts.unique, scheme)
        inward = sum(v * widths[t] for t, v in counts.unique.items() if t != OUTPUT)
        finished = gemm.batch * gemm.m * gemm.n
        unfinished = counts.unique[OUTPUT] - finished
        outward = finished * scheme.output + unfinished * scheme.accumulator
        in_delay, out_delay = _delays(hardware.levels[0], inward, outward)
        moved = [(inward + unfinished * scheme.accumulator, outward)]
        outer_read = outer_write = 0
        for level in hardware.levels[1:]:
            assert tile is not None
            order = _tile_order(self.bound)
            outer = outer_traffic(gemm.m, gemm.n, gemm.k, tile, order, scheme)
            moved.append((outer.read * gemm.batch, outer.write * gemm.batch))
            read_delay, write_delay = _delays(level, *moved[-1])
            outer_read, outer_write = max(outer_read, read_delay), max(outer_write, write_delay)
        latency = max(counts.compute, in_delay, out_delay, outer_read, outer_write)
        rescales = self._rescales(counts)
        last = hardware.levels[-1]
        # Reads and writes overlap, so the roof is set by whichever direction takes longer; TENET's
        # delay does not count partial sums that come back, and neither does the roof over it.
        read, write = moved[-1] if len(moved) > 1 else (inward, outward)
        intensity = gemm.macs / max(1.0, read, write * last.read / last.write)
        return GemmCost(
            gemm=gemm,
            hardware=hardware.name,
            dataflow=self.bound.dataflow.name,
            scheme=label,
            stamps=counts.stamps,
            compute_delay=counts.compute,
            busiest=counts.busiest,
            active_pes=counts.active_pes,
            utilisation=counts.instances / (counts.stamps * hardware.peak),
            total=counts.total,
            unique=counts.unique,
            widths=widths,
            partial_sums=unfinished,
            in_delay=in_delay,
            out_delay=out_delay,
            outer_read=outer_read,
            outer_write=outer_write,
            traffic=tuple(
                Traffic(v.name, r, w, (r + w) / max(1, counts.compute), (r + w) / max(1, latency))
                for v, (r, w) in zip(hardware.levels, moved, strict=True)
            ),
            energy=self._energy(rescales, moved),
            rescales=rescales,
            tile=tile,
            intensity=intensity,
            attainable=min(float(hardware.peak), intensity * last.read),
        )

    def _rescales(self, counts: _Counts) -> int:
        """Multiplications by scales: of weights as they enter, or of finished sums."""
        if self.scheme.weight_grain is Grain.GROUP:
            return counts.unique["B"]
        if self.scheme.weight_grain is Grain.NONE:
            return 0
        each = 2 if self.scheme.activation_grain is Grain.TOKEN else 1
        return each * self.gemm.batch * self.gemm.m * self.gemm.n

    def _energy(self, rescales: int, moved: list[tuple[int, int]]) -> dict[str, float]:
        """Energy in pJ by part; a MAC reads A, B and a sum beside its PE and writes the sum."""
        hardware, width = self.hardware, self.scheme.compute
        found = {
            "mac": self.gemm.macs * hardware.mac(width),
            "register": self.gemm.macs
            * (2 * width + 2 * self.scheme.accumulator)
            * hardware.register_energy,
            "rescale": rescales * hardware.mac(FLOAT16.activation),
        }
        for level, (read, write) in zip(hardware.levels, moved, strict=True):
            found[level.name] = read * level.read_energy + write * level.write_energy
        return found


def _tile_order(bound: BoundDataflow) -> tuple[str, ...]:
    """Loop order over tiles in terms of m, n, k."""
    m, n, k, _ = bound.gemm_names()
    role = {m: "m", n: "n", k: "k", "i": "m", "j": "n"} | {m: "m", n: "n", k: "k"}
    given = [role.get(t, t) for t in bound.dataflow.tiles]
    order = tuple(dict.fromkeys([*given, "m", "n", "k"]))
    if set(order) != {"m", "n", "k"}:
        raise CostError(f"dataflow {bound.dataflow.name}: 'tiles' must order {m}, {n}, {k}")
    return order


@lru_cache(maxsize=65536)
def _stamps(bound: BoundDataflow, fabric: Fabric, tile: BufferTile) -> int:
    """Time stamps of one tile; a map without a closed form counts as one without skew."""
    m, n, k, batch = bound.gemm_names()
    extents = {m: tile.m, n: tile.n, k: tile.k} | ({batch: 1} if batch else {})
    try:
        return lower(Box.of(extents), bound.mapping, fabric, ()).stamps.count()
    except NonSeparableMapError:
        return -(-tile.m * tile.n * tile.k // (fabric.pes * fabric.lanes))


def accesses(m: str, n: str, k: str, batch: tuple[str, ...], scheme: Scheme) -> tuple[Access, ...]:
    """Tensors of a GEMM with the scales that a scheme adds."""
    row, column, depth = variable(m), variable(n), variable(k)
    own: tuple[Affine, ...] = tuple(variable(b) for b in batch)
    found = [
        Access("A", ((*own, row, depth),)),
        Access("B", ((*own, depth, column),)),
        Access(OUTPUT, ((*own, row, column),)),
    ]
    kinds = ["scale"] + (["zero"] if scheme.zero_point else [])
    for kind in kinds:
        match scheme.weight_grain:
            case Grain.TENSOR:
                found.append(Access(f"{kind}_B", ((),), (k,)))
            case Grain.CHANNEL:
                found.append(Access(f"{kind}_B", ((column,),), (k,)))
            case Grain.GROUP:
                groups = (floor_div(depth, scheme.group), column)
                found.append(Access(f"{kind}_B", (groups,)))
    match scheme.activation_grain:
        case Grain.TENSOR:
            found.append(Access("scale_A", ((),), (k,)))
        case Grain.TOKEN:
            found.append(Access("scale_A", ((*own, row),), (k,)))
    return tuple(found)


def _widths(names: Mapping[str, int], scheme: Scheme) -> dict[str, int]:
    widths = {"A": scheme.activation, "B": scheme.weight, OUTPUT: scheme.output}
    for name in names:
        if name.startswith("scale"):
            widths[name] = scheme.scale
        elif name.startswith("zero"):
            widths[name] = scheme.zero_point
    return widths


def _delays(level: Level, read: int, write: int) -> tuple[int, int]:
    """Cycles to read and to write so many bits."""
    return (
        transfer_delay(read, level.read, level.latency),
        transfer_delay(write, level.write, level.latency),
    )
