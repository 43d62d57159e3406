# SPDX-License-Identifier: Apache-2.0
"""The inputs of counting: iteration domain, space-time map, accesses, interconnect."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from costmodel.counting.affine import Affine


@dataclass(frozen=True)
class Box:
    """Half-open integer ranges of named dimensions, and constraints ``expression >= 0``."""

    names: tuple[str, ...]
    bounds: tuple[tuple[int, int], ...]
    constraints: tuple[Affine, ...] = ()

    @property
    def size(self) -> int:
        """The number of points inside the bounds, without the constraints."""
        return prod(high - low for low, high in self.bounds)

    @staticmethod
    def of(extents: dict[str, int]) -> Box:
        """Return the box from zero with the given extents."""
        return Box(tuple(extents), tuple((0, n) for n in extents.values()))


@dataclass(frozen=True)
class Access:
    """The elements of a tensor that an instance touches.

    Attributes:
        tensor: name of the tensor.
        indices: index tuples; a stencil has several.
        pinned: dimensions that must have their last value for this access, as for a per-channel
            scale, which is applied at the end of the reduction.
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
    """The array: its extents, and the neighbours that feed a PE.

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
        """The number of PEs in the array."""
        return prod(self.shape)


@dataclass(frozen=True)
class Occupancy:
    """The use of PEs and time stamps by the instances.

    Attributes:
        instances: points of the iteration domain (multiply-accumulates of a GEMM).
        stamps: distinct time stamps, TENET's ``|T|``, which include array skew.
        active_pes: PEs with at least one instance.
        busiest: instances of the busiest PE, divided (up) by the lanes: cycles without skew.
        lanes: most instances that share a PE and a stamp.
    """

    instances: int
    stamps: int
    active_pes: int
    busiest: int
    lanes: int


class NonSeparableMapError(Exception):
    """The error for maps without independent digits, which must be enumerated."""


class NotInjectiveError(Exception):
    """The error if more instances share a PE and a time stamp than the PE has lanes.

    Attributes:
        first, second: instances in the same PE at the same time stamp.
        lanes: multiply-accumulates of a PE that suffice; 0: unknown.
    """

    def __init__(self, first: dict[str, int], second: dict[str, int], lanes: int = 0) -> None:
        super().__init__("the space-time map is not injective")
        self.first, self.second, self.lanes = first, second, lanes


class NoInstanceError(Exception):
    """The error for a domain whose constraints leave no instance."""


class OutsideArrayError(Exception):
    """The error for an instance whose PE is not in the array."""

    def __init__(self, axis: int, low: int, high: int, extent: int) -> None:
        super().__init__(f"PE coordinate {axis} runs from {low} to {high}, the array has {extent}")
