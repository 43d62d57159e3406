# SPDX-License-Identifier: Apache-2.0
"""Readers of TENET's text files: ``.p`` (array), ``.s`` (statement), ``.m`` (mapping), experiments.

The format of the files of github.com/pku-liang/TENET:

* ``.p``: the PE set, the interconnect (from a PE to the PEs that feed it), and
  ``L1 L2 bandwidth latency`` (entries, entries, bits a cycle, cycles);
* ``.s``: numbers of read and of written tensors, the instance set, an access line for each tensor;
* ``.m``: the space map, the time map;
* an experiment: the names of a ``.m``, a ``.p`` and a ``.s`` file, a line each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from costmodel.accelerator.dataflow import Dataflow, Volumes, count
from costmodel.accelerator.hardware import (
    DEFAULT_BITS,
    LARGEST_ARRAY,
    MAX_AXES,
    Hardware,
    Level,
    displacements,
)
from costmodel.counting.relations import Line, is_number, parse_domain, parse_relations
from costmodel.counting.space import Access, Box, Fabric
from costmodel.errors import CostError, read_text

# TENET's energies relative to a multiply-accumulate (include/stt.h).
L1_ENERGY = 1.68
L2_ENERGY = 18.61
PE_NUMBERS = 4
FORMAT = "tests/costmodel/data/tenet/experiment and the three files that it names are an example"


@dataclass(frozen=True)
class Statement:
    """An operation: its instances and their name, and the tensors that it reads and writes."""

    name: str
    domain: Box
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(frozen=True)
class Experiment:
    """A TENET experiment: hardware, statement and dataflow."""

    name: str
    hardware: Hardware
    statement: Statement
    dataflow: Dataflow


@dataclass(frozen=True)
class TenetResult:
    """TENET's figures for an experiment.

    Attributes:
        volumes: per tensor; in_delay, out_delay, compute_delay, delay: cycles;
        energy: relative to the energy of a multiply-accumulate.
    """

    name: str
    volumes: Volumes
    average_active: float
    in_delay: int
    out_delay: int
    compute_delay: int
    energy: float

    @property
    def delay(self) -> int:
        """The largest of the delays of input, output and compute."""
        return max(self.in_delay, self.out_delay, self.compute_delay)


def _lines(path: Path) -> list[Line]:
    text = read_text(path, FORMAT)
    numbered = enumerate(text.splitlines(), 1)
    return [Line(t.strip(), str(path), n) for n, t in numbered if t.strip()]


def _expect(path: Path, lines: list[Line], count_: int, content: str) -> None:
    if len(lines) < count_:
        problem = f"{path}:{len(lines) + 1}: the file ends early; {content} are wanted"
        raise CostError(problem, remedy=FORMAT)


def read_mapping_file(path: Path) -> tuple[Line, Line]:
    """Read the space map and the time map of a ``.m`` file.

    Raises:
        CostError: the file cannot be read, or has fewer than two lines.
    """
    lines = _lines(path)
    _expect(path, lines, 2, "a space map and a time map")
    return lines[0], lines[1]


def hardware_from_pe_file(path: Path) -> Hardware:
    """Read the hardware of a ``.p`` file.

    Raises:
        CostError: the file is wrong; the message names the line.
    """
    lines = _lines(path)
    _expect(path, lines, 3, "a PE set, an interconnect and four numbers")
    _, pes = parse_domain(lines[0])
    if pes.constraints or any(low for low, _ in pes.bounds) or len(pes.bounds) > MAX_AXES:
        raise lines[0].error("the PE set must be a box from 0, 1 to 3 axes")
    shape = tuple(high for _, high in pes.bounds)
    if prod(shape) > LARGEST_ARRAY:
        raise lines[0].error(f"the PE set has {prod(shape)} PEs; at most {LARGEST_ARRAY}")
    numbers = lines[2].text.split()
    if len(numbers) != PE_NUMBERS or not all(map(is_number, numbers)):
        raise lines[2].error("the line must list: L1 size, L2 size, bandwidth, latency")
    bandwidth, latency = int(numbers[2]), int(numbers[3])
    if bandwidth == 0:
        raise lines[2].error("the bandwidth must be positive")
    feeds = displacements(lines[1], len(shape))
    return Hardware(
        name=path.stem,
        fabric=Fabric(shape, feeds),
        clock=1e9,
        levels=(
            Level(
                "L2",
                None,
                bandwidth,
                bandwidth,
                latency,
                L2_ENERGY / DEFAULT_BITS,
                L2_ENERGY / DEFAULT_BITS,
            ),
        ),
        mac_energy=((64, 1.0),),
        register_energy=L1_ENERGY / DEFAULT_BITS,
    )


def read_statement(path: Path) -> Statement:
    """Read the statement of a ``.s`` file.

    Raises:
        CostError: the file is wrong; the message names the line.
    """
    lines = _lines(path)
    _expect(path, lines, 2, "two numbers and an instance set")
    numbers = lines[0].text.split()
    if len(numbers) != 2 or not all(map(is_number, numbers)):
        raise lines[0].error("the line must list: number of reads, number of writes")
    reads, writes = int(numbers[0]), int(numbers[1])
    _expect(path, lines, 2 + reads + writes, f"{reads} read and {writes} write accesses")
    name, domain = parse_domain(lines[1])
    accesses = [_access(line, name, domain) for line in lines[2 : 2 + reads + writes]]
    return Statement(name, domain, _joined(accesses[:reads]), _joined(accesses[reads:]))


def _access(line: Line, name: str, domain: Box) -> Access:
    relations = parse_relations(line)
    for relation in relations:
        if relation.variables != domain.names:
            wanted = f"{name}[{','.join(domain.names)}]"
            raise line.error(f"the access must start from {wanted}")
        if relation.range.name != relations[0].range.name:
            raise line.error("one line is for one tensor")
    return Access(relations[0].range.name, tuple(r.range.entries for r in relations))


def _joined(accesses: list[Access]) -> tuple[Access, ...]:
    """Merge accesses to the same tensor into an access with several indices."""
    merged: dict[str, Access] = {}
    for access in accesses:
        old = merged.get(access.tensor)
        indices = (*(old.indices if old else ()), *access.indices)
        merged[access.tensor] = Access(access.tensor, tuple(dict.fromkeys(indices)))
    return tuple(merged.values())


def read_experiment(path: Path) -> Experiment:
    """Read an experiment file, and the three files that it names in the nearest folder above it.

    Raises:
        CostError: a file is missing or wrong.
    """
    words = " ".join(line.text for line in _lines(path)).split()
    if len(words) < 3:
        problem = f"{path}: wanted three names: mapping, PE array, statement"
        raise CostError(problem, remedy=FORMAT)
    for folder in (path.parent, *path.resolve().parents):
        mapping, array, statement = (folder / w for w in words[:3])
        if all(p.is_file() for p in (mapping, array, statement)):
            space, time = read_mapping_file(mapping)
            return Experiment(
                path.name,
                hardware_from_pe_file(array),
                read_statement(statement),
                Dataflow(mapping.stem, space, time, ()),
            )
    problem = f"{path}: {', '.join(words[:3])} are not in its folder, nor above it"
    raise CostError(problem, remedy="put the three files there, or correct their names")


def run_experiment(experiment: Experiment) -> TenetResult:
    """Return TENET's figures for an experiment.

    Raises:
        CostError: mapping, array and statement do not fit each other.
    """
    bound = experiment.dataflow.bind(experiment.hardware.fabric)
    statement = experiment.statement
    if bound.dimensions != statement.domain.names:
        line = experiment.dataflow.space
        names = ",".join(statement.domain.names)
        raise line.error(f"the statement's instances are {statement.name}[{names}]")
    clashing = {a.tensor for a in statement.reads} & {a.tensor for a in statement.writes}
    writes = tuple(
        Access(f"{a.tensor}'", a.indices) if a.tensor in clashing else a for a in statement.writes
    )
    accesses = (*statement.reads, *writes)
    volumes = count(
        experiment.dataflow, statement.domain, bound.mapping, experiment.hardware.fabric, accesses
    )
    return _figures(experiment, volumes, tuple(a.tensor for a in writes))


def _figures(experiment: Experiment, volumes: Volumes, written: tuple[str, ...]) -> TenetResult:
    level = experiment.hardware.levels[0]
    reads = sum(v for t, v in volumes.unique.items() if t not in written)
    writes = sum(v for t, v in volumes.unique.items() if t in written)
    occupancy = volumes.occupancy
    energy = occupancy.instances + 2 * (
        L1_ENERGY * sum(volumes.total.values()) + L2_ENERGY * sum(volumes.unique.values())
    )
    return TenetResult(
        name=experiment.name,
        volumes=volumes,
        average_active=occupancy.instances / occupancy.lanes / occupancy.stamps,
        in_delay=transfer_delay(reads * DEFAULT_BITS, level.read, level.latency),
        out_delay=transfer_delay(writes * DEFAULT_BITS, level.write, level.latency),
        compute_delay=occupancy.instances // occupancy.active_pes,
        energy=energy,
    )


def transfer_delay(bits: int, bandwidth: float, latency: int) -> int:
    """Return TENET's delay of a transfer: its whole cycles plus the latency less 1."""
    return int(bits // bandwidth) + latency - 1
