# SPDX-License-Identifier: Apache-2.0
"""The hardware of an accelerator: PE array, interconnect, memory levels, clock and energies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, prod
from typing import Any

import numpy as np

from costmodel.accelerator import settings
from costmodel.accelerator.settings import HARDWARE, TomlTable, library_file, read_toml
from costmodel.accelerator.technology import of_width, technology
from costmodel.counting.relations import Line, is_number, parse_relations
from costmodel.counting.space import Fabric

DEFAULT_BITS = 16
MAX_AXES = 3
LARGEST_ARRAY = 1 << 24  # the volumes of an array are counted PE by PE
SLOWEST = 1e-6  # bit/cycle: with less, cycles do not fit a float
_LEVEL_KEYS = (
    *("name", "size", "latency", "bandwidth", "read_bandwidth", "write_bandwidth"),
    *("energy", "read_energy", "write_energy"),
    *("ports", "double_buffered", "split", "memory"),
)
# Parts that stand beside the levels in an estimate's energies and busy times.
_PARTS = ("mac", "register", "rescale", "array", "array read", "array write")


@dataclass(frozen=True)
class Level:
    """A memory; the first level feeds the array, the last level holds all tensors.

    Attributes:
        size: capacity in bits, or None for unbounded.
        read, write: bandwidth in bits a cycle.
        latency: average cycles from request to data.
        read_energy, write_energy: pJ a bit.
        shared: reads and writes take turns on one port.
        double_buffered: the level fetches the next tile while the array computes the current tile.
        split: bits for A, B and C, if each operand has a separate memory.
        memory: kind of memory in the table of technology; "" if the file gives the energy.
    """

    name: str
    size: int | None
    read: float
    write: float
    latency: int
    read_energy: float
    write_energy: float
    shared: bool = False
    double_buffered: bool = True
    split: tuple[int, ...] | None = None
    memory: str = ""

    def operand_energy(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the energies in pJ a bit of reading and of writing A, B and C."""
        if self.split is None or not self.memory:
            return (self.read_energy,) * 3, (self.write_energy,) * 3
        kind = technology().memories[self.memory]
        parts = tuple(kind.energy_of(bits / 8) for bits in self.split)
        return parts, parts

    def cycles(self, read: Any, write: Any) -> Any:
        """Return the cycles to move the bits ``read`` and ``write``, without latency."""
        if self.shared:
            return read / self.read + write / self.write
        return np.maximum(read / self.read, write / self.write)


@dataclass(frozen=True)
class Hardware:
    """The hardware of an accelerator.

    Attributes:
        clock: Hz.
        mac_energy: pJ of one multiply-accumulate, by the wider operand's bits.
        register_energy: pJ a bit read or written beside a PE.
        drains_whole: every pass takes the skew of the whole array, also if it fills a part of the
            array, as scalesim counts; otherwise the skew of the PEs in use.
        link: to other arrays that share the work.
    """

    name: str
    fabric: Fabric
    clock: float
    levels: tuple[Level, ...]
    mac_energy: tuple[tuple[int, float], ...]
    register_energy: float
    drains_whole: bool = False
    link: Level | None = None

    @property
    def peak(self) -> int:
        """The most multiply-accumulates a cycle."""
        return self.fabric.pes * self.fabric.lanes

    def mac(self, bits: int) -> float:
        """Return the energy in pJ of a multiply-accumulate of operands of ``bits``."""
        return of_width(self.mac_energy, bits)


def load_hardware(name: str) -> Hardware:
    """Read the shipped hardware of a name, or the TOML file of a path.

    Raises:
        CostError: the file is missing or wrong; the message names the line.
    """
    table = read_toml(library_file(HARDWARE, name))
    table.only(["schema", "name", "description", "clock", "array", "energy", "level", "link"])
    array, energy = table.table("array"), table.table("energy")
    clock = table.positive("clock", settings.FREQUENCIES)
    energy.only(["mac", "register"])
    return Hardware(
        name=table.get("name", str),
        fabric=_fabric(array),
        clock=clock,
        levels=_levels(table, clock),
        mac_energy=_mac_energy(energy),
        register_energy=energy.quantity("register", settings.ENERGIES_PER_BIT),
        drains_whole=array.choice("drain", ("used", "whole"), "used") == "whole",
        link=_level(table.table("link"), clock, True) if "link" in table.values else None,
    )


def _fabric(array: TomlTable) -> Fabric:
    array.only(["shape", "feeds", "macs_per_pe", "drain"])
    shape = array.get("shape", list)
    if not 1 <= len(shape) <= MAX_AXES or any(type(n) is not int or n < 1 for n in shape):
        raise array.error("shape", "'shape' must be 1 to 3 positive integers")
    if prod(shape) > LARGEST_ARRAY:
        raise array.error("shape", f"'shape' has {prod(shape)} PEs", f"at most {LARGEST_ARRAY}")
    lanes = array.get("macs_per_pe", int, 1)
    if lanes < 1:
        raise array.error("macs_per_pe", "'macs_per_pe' must be positive")
    lines = [array.line("feeds", str(text)) for text in array.get("feeds", list)]
    feeds = [step for line in lines for step in displacements(line, len(shape))]
    return Fabric(tuple(shape), tuple(dict.fromkeys(feeds)), lanes)


def displacements(line: Line, axes: int) -> tuple[tuple[int, ...], ...]:
    """Convert the interconnect relations of a line to steps from a PE to the PEs that feed it."""
    steps: list[tuple[int, ...]] = []
    for relation in parse_relations(line):
        shown = replace(line, text=f"{relation.domain}[{','.join(relation.variables)}] -> ...")
        if len(relation.variables) != axes or len(relation.range.entries) != axes:
            raise shown.error(f"the array has {axes} dimensions, the interconnect others")
        step = []
        for name, entry in zip(relation.variables, relation.range.entries, strict=True):
            if entry.terms != ((name, 1),):
                raise shown.error(f"{entry} is not {name} plus a number")
            step.append(entry.constant)
        steps.append(tuple(step))
    return tuple(dict.fromkeys(s for s in steps if any(s)))


def _levels(table: TomlTable, clock: float) -> tuple[Level, ...]:
    parts = table.tables("level")
    levels = tuple(_level(t, clock, n > 0 and n == len(parts) - 1) for n, t in enumerate(parts))
    if not levels:
        raise table.error("level", "at least one [[level]] is needed")
    names = {*_PARTS}
    for level, part in zip(levels, parts, strict=True):
        if level.size is None and level is not levels[-1]:
            raise part.error("size", "only the last level may be unbounded")
        if level.name in names:
            problem = f"{level.name!r} is the name of another level or part"
            raise part.error("name", problem, f"names of parts: {', '.join(_PARTS)}")
        names.add(level.name)
    return levels


def _level(part: TomlTable, clock: float, outermost: bool) -> Level:
    """Return the level of a table; the ports of an outermost memory are shared by default."""
    part.only(_LEVEL_KEYS)
    ports = part.choice("ports", ("shared", "separate"), "shared" if outermost else "separate")
    split = tuple(part.get("split", list)) if "split" in part.values else None
    if split is not None and (len(split) != 3 or not all(type(s) is int and s > 0 for s in split)):
        raise part.error("split", "'split' must be three positive numbers of bytes, for A, B and C")
    size = None
    if part.get("size", str) != "unbounded":
        size = floor(part.quantity("size", settings.SIZES))
    if split and (size is None or 8 * sum(split) > size):
        problem = f"the parts of 'split' do not fit a 'size' of {part.values['size']!r}"
        raise part.error("split", problem, "their sum must be at most 'size', in bytes")
    rates = settings.rates(clock)
    read, write = (_pair(part, kind, "bandwidth", rates) for kind in ("read", "write"))
    if min(read, write) < SLOWEST:
        problem = f"a bandwidth must be at least {SLOWEST:g} bit/cycle"
        raise part.error("bandwidth", problem, 'for example bandwidth = "64 bit/cycle"')
    memory = str(part.get("memory", str, ""))
    energies = _energies(part, memory, size)
    return Level(
        name=part.get("name", str),
        size=size,
        read=read,
        write=write,
        latency=floor(part.quantity("latency", settings.CYCLES)),
        read_energy=energies[0],
        write_energy=energies[1],
        shared=ports == "shared",
        double_buffered=part.get("double_buffered", bool, True),
        split=None if split is None else tuple(8 * s for s in split),
        memory=memory,
    )


def _energies(part: TomlTable, memory: str, size: int | None) -> list[float]:
    """Return the energies in pJ of a bit read and written: the file's, or a kind of memory's."""
    if not memory:
        return [_pair(part, k, "energy", settings.ENERGIES_PER_BIT) for k in ("read", "write")]
    kinds = technology().memories
    if memory not in kinds:
        raise part.error("memory", f"no memory {memory!r}", f"one of: {', '.join(kinds)}")
    keys = [k for k in ("energy", "read_energy", "write_energy") if k in part.values]
    if keys:
        raise part.error(keys[0], f"'memory' already sets {keys[0]!r}")
    return [kinds[memory].energy_of((size or 0) / 8)] * 2


def _pair(part: TomlTable, kind: str, quantity: str, units: dict[str, float]) -> float:
    """Return the quantity of reads or writes, or the quantity that the file gives for both."""
    key = f"{kind}_{quantity}"
    return part.quantity(key if key in part.values else quantity, units)


def _mac_energy(energy: TomlTable) -> tuple[tuple[int, float], ...]:
    if "mac" not in energy.values:
        return technology().mac_energy
    mac = energy.table("mac")
    if not mac.values:
        raise energy.error("mac", "'mac' needs at least one width")
    for key in mac.values:
        if not is_number(key):
            raise mac.error(key, f"{key!r} is not a bit width")
    return tuple(sorted((int(k), mac.quantity(k, settings.ENERGIES)) for k in mac.values))
