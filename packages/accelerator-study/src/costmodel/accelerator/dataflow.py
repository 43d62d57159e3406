# SPDX-License-Identifier: Apache-2.0
"""Dataflows: named space-time maps of a GEMM, and the volumes of elements that they move."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from costmodel.accelerator.settings import DATAFLOWS, library_file, read_toml
from costmodel.counting.closed_form import ClosedForm, lower
from costmodel.counting.enumeration import Enumerated, TooLargeError, enumerate_all
from costmodel.counting.extrapolation import NoPolynomialError, extrapolate, period
from costmodel.counting.relations import Line, Relation, parse_relations
from costmodel.counting.space import (
    Access,
    Box,
    Fabric,
    NoInstanceError,
    NonSeparableMapError,
    NotInjectiveError,
    Occupancy,
    OutsideArrayError,
    SpaceTime,
)

AXES = ("R", "C", "D")
GEMM_DIMENSIONS = 3
UNIQUE = "unique"  # elements of a tensor, beside the fields of an occupancy


@dataclass(frozen=True)
class Dataflow:
    """A space map and a time map as text; :meth:`bind` inserts the extents of an array.

    Attributes:
        tiles: loops over tiles of the on-chip buffer, outermost first, by dimension name.
        factors: further names that the texts may use.
    """

    name: str
    space: Line
    time: Line
    tiles: tuple[str, ...]
    factors: tuple[tuple[str, int], ...] = ()

    def uses(self, name: str) -> bool:
        """Return True if a map contains a name."""
        return bool(re.search(rf"\b{re.escape(name)}\b", f"{self.space.text} {self.time.text}"))

    def bind(self, fabric: Fabric) -> BoundDataflow:
        """Return the dataflow with the array's extents in its maps.

        Raises:
            CostError: a name is unbound, the axes are not the array's, or the dimensions differ.
        """
        values = {**dict(zip(AXES, fabric.shape, strict=False)), "V": fabric.lanes}
        values |= dict(self.factors)
        space, time = (_single(line, values) for line in (self.space, self.time))
        if space.variables != time.variables:
            raise self.time.error("the two maps list different dimensions")
        if len(space.range.entries) != len(fabric.shape):
            problem = f"{len(space.range.entries)} PE coordinates, the array has {fabric.shape}"
            raise self.space.error(problem)
        if not time.range.entries:
            raise self.time.error("the time stamp is empty")
        mapping = SpaceTime(space.range.entries, time.range.entries)
        return BoundDataflow(self, space.variables, mapping)


@dataclass(frozen=True)
class BoundDataflow:
    """A dataflow on a particular array."""

    dataflow: Dataflow
    dimensions: tuple[str, ...]
    mapping: SpaceTime

    def gemm_names(self) -> tuple[str, str, str, str | None]:
        """Return the names of M, N, K and, if the maps list a batch first, of the batch.

        Raises:
            CostError: the maps do not have three or four dimensions.
        """
        names = self.dimensions
        if len(names) == GEMM_DIMENSIONS:
            return names[0], names[1], names[2], None
        if len(names) == GEMM_DIMENSIONS + 1:
            return names[1], names[2], names[3], names[0]
        raise self.dataflow.space.error("a GEMM has dimensions [m,n,k] or [b,m,n,k]")


def _single(line: Line, values: Mapping[str, int]) -> Relation:
    relations = parse_relations(line, values)
    if len(relations) != 1:
        raise line.error("the text must be one map, not several")
    return relations[0]


def load_dataflow(name: str, factors: Mapping[str, int] | None = None) -> Dataflow:
    """Read the shipped dataflow of a name, or the TOML file of a path.

    ``factors`` are values of names in the maps; they replace the file's.

    Raises:
        CostError: the file is missing or wrong; the message names the line.
    """
    table = read_toml(library_file(DATAFLOWS, name))
    table.only(["schema", "name", "description", "space", "time", "tiles", "factors"])
    numbers: dict[str, int] = {}
    if "factors" in table.values:
        part = table.table("factors")
        numbers = {key: part.get(key, int) for key in part.values}
    numbers |= dict(factors or {})
    bad = [key for key, value in numbers.items() if value < 1]
    if bad:
        raise table.error("factors", f"factor {bad[0]} must be positive")
    tiles = tuple(str(t) for t in table.get("tiles", list, ["i", "j", "k"]))
    if len(set(tiles)) != GEMM_DIMENSIONS or len(tiles) != GEMM_DIMENSIONS:
        problem = f"'tiles' is {list(tiles)}, not an order of the three loops over M, N and K"
        raise table.error("tiles", problem, 'such as tiles = ["i", "j", "k"], outermost first')
    return Dataflow(
        name=table.get("name", str),
        space=table.line("space", table.get("space", str)),
        time=table.line("time", table.get("time", str)),
        tiles=tiles,
        factors=tuple(sorted(numbers.items())),
    )


@dataclass(frozen=True)
class Volumes:
    """The elements of each tensor that a dataflow moves, all and unique, and its occupancy."""

    occupancy: Occupancy
    total: Mapping[str, int]
    unique: Mapping[str, int]


def count(
    dataflow: Dataflow,
    domain: Box,
    mapping: SpaceTime,
    fabric: Fabric,
    accesses: Sequence[Access],
) -> Volumes:
    """Return a dataflow's exact volumes, in closed form if possible, else by enumeration.

    Raises:
        CostError: the map has no instance, is not injective, leaves the array, or has no closed
            form and too many instances to enumerate.
    """
    try:
        counts = [_count(domain, mapping, fabric, a, n == 0) for n, a in enumerate(accesses)]
    except NotInjectiveError as clash:
        line = dataflow.space
        pair = " and ".join(_point(domain, p) for p in (clash.first, clash.second))
        problem = f"the map is not injective: {pair} share a PE and a time stamp"
        remedy = "let the maps tell all instances apart"
        if clash.lanes:
            remedy += f", or give every PE that many lanes: --macs-per-pe {clash.lanes}"
        both = replace(line, text=f"{line.text}  {dataflow.time.text}")
        raise both.error(problem, remedy) from clash
    except (NoInstanceError, OutsideArrayError) as wrong:
        raise dataflow.space.error(str(wrong)) from wrong
    except TooLargeError as error:
        problem = f"this map has no closed form here, and {error}"
        remedy = "cut a dimension by factors that divide each other"
        raise dataflow.time.error(problem, remedy) from error
    occupancy = Occupancy(**{f.name: counts[0][f.name] for f in fields(Occupancy)})
    total = {a.tensor: _total(domain, a, occupancy.instances) for a in accesses}
    unique = {a.tensor: each[UNIQUE] for a, each in zip(accesses, counts, strict=True)}
    return Volumes(occupancy, total, unique)


def _point(domain: Box, values: Mapping[str, int]) -> str:
    return f"S[{','.join(str(values[n]) for n in domain.names)}]"


@lru_cache(maxsize=65536)
def _count(
    domain: Box, mapping: SpaceTime, fabric: Fabric, access: Access, occupied: bool
) -> dict[str, int]:
    """Return an access's unique elements as UNIQUE, and if ``occupied`` the occupancy's fields."""
    problem = (mapping, fabric, access)

    def counted(engine: ClosedForm | Enumerated) -> dict[str, int]:
        occupancy = vars(engine.occupancy()) if occupied else {}
        return {**occupancy, UNIQUE: engine.unique()}

    def visit(extents: tuple[int, ...]) -> dict[str, int]:
        box = Box.of(dict(zip(domain.names, extents, strict=True)))
        return counted(enumerate_all(box, *problem))

    try:
        return counted(lower(domain, *problem))
    except NonSeparableMapError:
        pass
    try:
        return counted(enumerate_all(domain, *problem))
    except TooLargeError:
        if domain.constraints or any(low for low, _ in domain.bounds):
            raise
    texts = [*mapping.space, *mapping.time, *(e for i in access.indices for e in i)]
    periods = [period(name, texts) for name in domain.names]
    try:
        return extrapolate(tuple(high for _, high in domain.bounds), periods, visit)
    except (NoPolynomialError, TooLargeError) as error:
        raise TooLargeError(f"{domain.size} instances are too many to visit") from error


def _total(domain: Box, access: Access, instances: int) -> int:
    """Return the number of accesses without reuse."""
    for name, (low, high) in zip(domain.names, domain.bounds, strict=True):
        if name in access.pinned:
            instances //= high - low
    return instances * len(access.indices)
