# SPDX-License-Identifier: Apache-2.0
"""The objects that are counted: iteration domain, space-time map, accesses, interconnect."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from costmodel.counting.affine import Affine


@dataclass(frozen=True)
class Box:
    """Half-open integer ranges of named dimensions, and further ``expression >= 0``."""

    names: tuple[str, ...]
    bounds: tuple[tuple[int, int], ...]
    constraints: tuple[Affine, ...] = ()

    @property
    def size(self) -> int:
        """Points inside the bounds (the constraints not applied)."""
        return prod(high - low for low, high in self.bounds)

    @staticmethod
    def of(extents: dict[str, int]) -> Box:
        """The box from zero with these extents."""
        return Box(tuple(extents), tuple((0, n) for n in extents.values()))


@dataclass(frozen=True)
class Access:
    """Elements of one tensor that an instance touches.

    Attributes:
        tensor: its name.
        indices: alternatives (a stencil reads several); each is one index tuple.
        pinned: dimensions held at their last value for this access to happen, as for a
            per-channel scale which is applied when the reduction is over.
    """

    tensor: str
    indices: tuple[tuple[Affine, ...], ...]
    pinned: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpaceTime:
    """Space-time map: PE coordinates and lexicographic time stamp of an instance."""

    space: tuple[Affine, ...]
    time: tuple[Affine, ...]


@dataclass(frozen=True)
class Fabric:
    """The array: its extents, and the neighbours an element may come from.

    Attributes:
        shape: PEs along each dimension (1 to 3).
        feeds: displacements ``d``: PE ``p`` may take an element from PE ``p + d``.
        lanes: multiply-accumulates of a PE in a cycle.
    """

    shape: tuple[int, ...]
    feeds: tuple[tuple[int, ...], ...]
    lanes: int = 1

    @property
    def pes(self) -> int:
        """PEs in the array."""
        return prod(self.shape)


@dataclass(frozen=True)
class Occupancy:
    """Use of space and time by the instances.

    Attributes:
        instances: points of the iteration domain (multiply-accumulates of a GEMM).
        stamps: distinct time stamps, TENET's ``|T|``; array skew is in it.
        active_pes: PEs with at least one instance.
        busiest: instances of the busiest PE, divided (up) by the lanes: cycles without skew.
        lanes: most instances that share one PE and one stamp.
    """

    instances: int
    stamps: int
    active_pes: int
    busiest: int
    lanes: int


class NonSeparableMapError(Exception):
    """The maps do not separate into independent digits: they have to be enumerated."""


class NotInjectiveError(Exception):
    """More instances share a PE and a time stamp than the PE has lanes.

    Attributes:
        first: one instance; second: another at the same place and time (may be empty).
        lanes: multiply-accumulates of a PE that would do, 0 when that is not known.
    """

    def __init__(self, first: dict[str, int], second: dict[str, int], lanes: int = 0) -> None:
        super().__init__("the space-time map is not injective")
        self.first, self.second, self.lanes = first, second, lanes


class OutsideArrayError(Exception):
    """An instance is mapped to a PE that the array does not have."""

    def __init__(self, axis: int, low: int, high: int, extent: int) -> None:
        super().__init__(f"PE coordinate {axis} runs from {low} to {high}, the array has {extent}")
        self.axis = axis
