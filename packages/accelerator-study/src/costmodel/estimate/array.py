# SPDX-License-Identifier: Apache-2.0
"""A tile on the array: exact volumes, and cycles of compute, of loading and of the port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.accelerator.dataflow import BoundDataflow, Volumes, count
from costmodel.accelerator.hardware import Hardware
from costmodel.accelerator.scheme import Grain, Scheme
from costmodel.counting.affine import Affine, floor_div, variable
from costmodel.counting.extrapolation import period
from costmodel.counting.space import Access, Box, SpaceTime
from costmodel.counting.stamps import folds
from costmodel.estimate.pipeline import State
from costmodel.estimate.transfer import NOTHING, MovedBits

OUTPUT = "C"


@dataclass
class TileCounts:
    """The instances, cycles and elements, summed over tiles and batch.

    Attributes:
        moved: bits over the inner boundary of each memory, by the memory's name.
    """

    instances: int = 0
    stamps: int = 0
    loading: int = 0
    active_pes: int = 0
    compute: int = 0
    busiest: int = 0
    total: dict[str, int] = field(default_factory=dict)
    unique: dict[str, int] = field(default_factory=dict)
    moved: dict[str, MovedBits] = field(default_factory=dict)

    def add(self, other: TileCounts, times: int) -> None:
        """Add another part's counts, multiplied by ``times``; active PEs are the larger number."""
        for name in ("instances", "stamps", "loading", "compute", "busiest"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        self.active_pes = max(self.active_pes, other.active_pes)
        for name in ("total", "unique"):
            sums, addends = getattr(self, name), getattr(other, name)
            for key, value in addends.items():
                sums[key] = sums.get(key, 0) + times * value
        for level, bits in other.moved.items():
            self.moved[level] = self.moved.get(level, NOTHING) + bits * times


@dataclass(frozen=True)
class Region:
    """The counts and cycles of a product or of a tile."""

    counts: TileCounts
    cycles: float


def on_array(
    state: State, batch: int, bound: BoundDataflow, hardware: Hardware, scheme: Scheme
) -> Region:
    """Return a tile's exact volumes on the array, and the larger of its array and port cycles."""
    m, n, k, batch_name = bound.gemm_names()
    name = batch_name or "b"
    mapping = bound.mapping
    if batch_name is None:
        mapping = SpaceTime(mapping.space, (variable(name), *mapping.time))
    extents = {name: batch, m: state[0], n: state[1], k: state[2]}
    listed = accesses(m, n, k, (name,), scheme)
    fabric, first = hardware.fabric, hardware.levels[0]
    volumes = count(bound.dataflow, Box.of(extents), mapping, fabric, listed)
    full, unique = volumes.occupancy, volumes.unique
    stamps = full.stamps
    if hardware.drains_whole:
        stamps = _padded(extents, mapping, bound, hardware).occupancy.stamps
    operands = [a for a in listed if a.tensor in ("A", "B")]
    loading = folds(Box.of(extents), mapping, operands) * fabric.shape[0]
    widths, done = widths_of(unique, scheme), batch * state[0] * state[1]
    # The name of an operand's scales ends with the operand's name.
    a, b = (sum(v * widths[t] for t, v in unique.items() if t.endswith(o)) for o in "AB")
    back = (unique[OUTPUT] - (done if state[3] else 0)) * scheme.accumulator
    whole = done if state[4] else 0
    outward = whole * scheme.output + (unique[OUTPUT] - whole) * scheme.accumulator
    moved = MovedBits(a, b, back, outward)
    port = max(moved.read // first.read, moved.write // first.write)
    counts = TileCounts(
        instances=full.instances,
        stamps=stamps,
        loading=loading,
        active_pes=full.active_pes,
        compute=full.instances // (full.active_pes * full.lanes),
        busiest=full.busiest,
        total=dict(volumes.total),
        unique=dict(unique),
        moved={first.name: moved},
    )
    return Region(counts, max(stamps + loading, port))


def _padded(
    extents: Mapping[str, int], mapping: SpaceTime, bound: BoundDataflow, hardware: Hardware
) -> Volumes:
    """Return the volumes if every pass fills the whole array."""
    passes = {d: period(d, mapping.space) for d in extents}
    whole = {d: -(-e // passes[d]) * passes[d] for d, e in extents.items()}
    fabric = hardware.fabric
    access = Access(OUTPUT, (tuple(variable(d) for d in extents),))
    return count(bound.dataflow, Box.of(whole), mapping, fabric, (access,))


def accesses(m: str, n: str, k: str, batch: tuple[str, ...], scheme: Scheme) -> tuple[Access, ...]:
    """Return the accesses of a GEMM, with the scales that a scheme adds."""
    row, column, depth = variable(m), variable(n), variable(k)
    batch_indices: tuple[Affine, ...] = tuple(variable(b) for b in batch)
    tensors = [
        Access("A", ((*batch_indices, row, depth),)),
        Access("B", ((*batch_indices, depth, column),)),
        Access(OUTPUT, ((*batch_indices, row, column),)),
    ]
    kinds = ["scale"] + (["zero"] if scheme.zero_point else [])
    for kind in kinds:
        match scheme.weight_grain:
            case Grain.TENSOR:
                tensors.append(Access(f"{kind}_B", ((),), (k,)))
            case Grain.CHANNEL:
                tensors.append(Access(f"{kind}_B", ((column,),), (k,)))
            case Grain.ROW:
                tensors.append(Access(f"{kind}_B", ((*batch_indices, depth),)))
            case Grain.GROUP:
                groups = (floor_div(depth, scheme.group), column)
                tensors.append(Access(f"{kind}_B", (groups,)))
    match scheme.activation_grain:
        case Grain.TENSOR:
            tensors.append(Access("scale_A", ((),), (k,)))
        case Grain.TOKEN:
            tensors.append(Access("scale_A", ((*batch_indices, row),), (k,)))
        case Grain.EMBEDDING:
            tensors.append(Access("scale_A", ((depth,),)))
    return tuple(tensors)


def widths_of(names: Mapping[str, int], scheme: Scheme) -> dict[str, int]:
    """Return the bits of an element of each tensor."""
    widths = {"A": scheme.activation, "B": scheme.weight, OUTPUT: scheme.output}
    for name in names:
        if name.startswith("scale"):
            widths[name] = scheme.scale
        elif name.startswith("zero"):
            widths[name] = scheme.zero_point
    return widths
