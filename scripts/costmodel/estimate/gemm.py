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
    EqualTiles,
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
    bound = dataflow.bind(hardware.fabric)
    order = _tile_order(bound)
    chosen = _tile(gemm, hardware, bound, scheme, order, tile)
    parts = pieces(gemm.m, gemm.n, gemm.k, chosen) if chosen else [_whole(gemm)]
    sums = _summed(gemm, hardware, bound, scheme, parts)
    return _assemble(gemm, hardware, dataflow, scheme, label, chosen, order, sums)


def _whole(gemm: Gemm) -> EqualTiles:
    return EqualTiles(gemm.m, gemm.n, gemm.k, 1)


def _tile_order(bound: BoundDataflow) -> tuple[str, ...]:
    """Loop order over tiles in terms of m, n, k."""
    m, n, k, _ = bound.gemm_names()
    role = {m: "m", n: "n", k: "k", "i": "m", "j": "n"} | {m: "m", n: "n", k: "k"}
    given = [role.get(t, t) for t in bound.dataflow.tiles]
    order = tuple(dict.fromkeys([*given, "m", "n", "k"]))
    if set(order) != {"m", "n", "k"}:
        raise CostError(f"dataflow {bound.dataflow.name}: 'tiles' must order {m}, {n}, {k}")
    return order


def _tile(
    gemm: Gemm,
    hardware: Hardware,
    bound: BoundDataflow,
    scheme: Scheme,
    order: tuple[str, ...],
    tile: BufferTile | None,
) -> BufferTile | None:
    first = hardware.levels[0]
    if tile is None and (first.size is None or len(hardware.levels) == 1):
        return None
    if tile is not None:
        limited = BufferTile(min(tile.m, gemm.m), min(tile.n, gemm.n), min(tile.k, gemm.k))
        if first.size is not None and footprint(limited, scheme) > first.size:
            raise CostError(
                f"{hardware.name}: tile {limited.m},{limited.n},{limited.k} of {gemm.name} takes "
                f"{footprint(limited, scheme)} bits under {scheme.name}, "
                f"level {first.name} has {first.size}",
                remedy="give a smaller --tile, or leave it out to have one searched",
            )
        return limited
    assert first.size is not None
    outer, side = hardware.levels[-1], max(hardware.fabric.shape)
    stamps = partial(_stamps, bound, hardware.fabric)
    goal = TileObjective(first.size, side, outer.read, outer.write, stamps)
    found = search(gemm.m, gemm.n, gemm.k, order, scheme, goal)
    if found is None:
        raise CostError(f"{hardware.name}: no tile of {gemm.name} fits level {first.name}")
    return found


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


def _summed(
    gemm: Gemm, hardware: Hardware, bound: BoundDataflow, scheme: Scheme, parts: list[EqualTiles]
) -> _Counts:
    total: dict[str, int] = {}
    unique: dict[str, int] = {}
    instances = stamps = busiest = active = compute = 0
    for part in parts:
        volumes, repeat = _piece(gemm, hardware, bound, scheme, part)
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


def _piece(
    gemm: Gemm, hardware: Hardware, bound: BoundDataflow, scheme: Scheme, part: EqualTiles
) -> tuple[Volumes, int]:
    """Volumes of one tile (with the batch, when it is not cut), and how often it occurs."""
    m, n, k, batch = bound.gemm_names()
    mapping, name = bound.mapping, batch or "b"
    if batch is None:
        mapping = SpaceTime(mapping.space, (variable(name), *mapping.time))
    whole = part.count == 1
    extents = {name: gemm.batch if whole else 1, m: part.m, n: part.n, k: part.k}
    listed = accesses(m, n, k, (name,), scheme)
    volumes = count(bound.dataflow, Box.of(extents), mapping, hardware.fabric, listed)
    return volumes, part.count * (1 if whole else gemm.batch)


def _widths(names: Mapping[str, int], scheme: Scheme) -> dict[str, int]:
    widths = {"A": scheme.activation, "B": scheme.weight, OUTPUT: scheme.output}
    for name in names:
        if name.startswith("scale"):
            widths[name] = scheme.scale
        elif name.startswith("zero"):
            widths[name] = scheme.zero_point
    return widths


def _assemble(
    gemm: Gemm,
    hardware: Hardware,
    dataflow: Dataflow,
    scheme: Scheme,
    label: str,
    tile: BufferTile | None,
    order: tuple[str, ...],
    sums: _Counts,
) -> GemmCost:
    first = hardware.levels[0]
    widths = _widths(sums.unique, scheme)
    inward = sum(v * widths[t] for t, v in sums.unique.items() if t != OUTPUT)
    finished = gemm.batch * gemm.m * gemm.n
    partial = sums.unique[OUTPUT] - finished
    outward = finished * scheme.output + partial * scheme.accumulator
    compute = sums.compute
    in_delay = transfer_delay(inward, first.read, first.latency)
    out_delay = transfer_delay(outward, first.write, first.latency)
    moved = [(inward + partial * scheme.accumulator, outward)]
    outer_read = outer_write = 0
    if len(hardware.levels) > 1:
        assert tile is not None
        outer = outer_traffic(gemm.m, gemm.n, gemm.k, tile, order, scheme)
        moved += [(outer.read * gemm.batch, outer.write * gemm.batch)] * (len(hardware.levels) - 1)
        delays = [_outer_delays(v, *moved[-1]) for v in hardware.levels[1:]]
        outer_read, outer_write = (max(d[side] for d in delays) for side in (0, 1))
    latency = max(compute, in_delay, out_delay, outer_read, outer_write)
    rescales = _rescales(gemm, scheme, sums)
    last = hardware.levels[-1]
    # Reads and writes overlap, so the roof is set by whichever direction takes longer; TENET's
    # delay does not count partial sums that come back, and neither does the roof over it.
    read, write = moved[-1] if len(moved) > 1 else (inward, outward)
    intensity = gemm.macs / max(1.0, read, write * last.read / last.write)
    return GemmCost(
        gemm=gemm,
        hardware=hardware.name,
        dataflow=dataflow.name,
        scheme=label,
        stamps=sums.stamps,
        compute_delay=compute,
        busiest=sums.busiest,
        active_pes=sums.active_pes,
        utilisation=sums.instances / (sums.stamps * hardware.peak),
        total=sums.total,
        unique=sums.unique,
        widths=widths,
        partial_sums=partial,
        in_delay=in_delay,
        out_delay=out_delay,
        outer_read=outer_read,
        outer_write=outer_write,
        traffic=tuple(
            Traffic(v.name, r, w, (r + w) / max(1, compute), (r + w) / max(1, latency))
            for v, (r, w) in zip(hardware.levels, moved, strict=True)
        ),
        energy=_energy(gemm, hardware, scheme, sums, moved),
        rescales=rescales,
        tile=tile,
        intensity=intensity,
        attainable=min(float(hardware.peak), intensity * last.read),
    )


def _outer_delays(level: Level, read: int, write: int) -> tuple[int, int]:
    return (
        transfer_delay(read, level.read, level.latency),
        transfer_delay(write, level.write, level.latency),
    )


def _rescales(gemm: Gemm, scheme: Scheme, sums: _Counts) -> int:
    """Multiplications by scales: of weights as they enter, or of finished sums."""
    if scheme.weight_grain is Grain.GROUP:
        return sums.unique["B"]
    if scheme.weight_grain is Grain.NONE:
        return 0
    return gemm.batch * gemm.m * gemm.n * (2 if scheme.activation_grain is Grain.TOKEN else 1)


def _energy(
    gemm: Gemm, hardware: Hardware, scheme: Scheme, sums: _Counts, moved: list[tuple[int, int]]
) -> dict[str, float]:
    """Energy in pJ by part; a MAC reads A, B and a sum beside its PE and writes the sum."""
    sums_width = scheme.accumulator
    beside = gemm.macs * (scheme.compute * 2 + 2 * sums_width)
    rescale = _rescales(gemm, scheme, sums) * hardware.mac(FLOAT16.activation)
    found = {
        "mac": gemm.macs * hardware.mac(scheme.compute),
        "register": beside * hardware.register_energy,
        "rescale": rescale,
    }
    for level, (read, write) in zip(hardware.levels, moved, strict=True):
        found[level.name] = read * level.read_energy + write * level.write_energy
    return found
