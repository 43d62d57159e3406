# SPDX-License-Identifier: Apache-2.0
"""A core's table of cycles, and assumed costs of instructions that the table lacks."""

from __future__ import annotations

import argparse
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from crosslab.cores.latencies import read_latencies
from crosslab.cores.machine import Pipeline
from crosslab.cores.memory import MemorySystem
from crosslab.errors import UserError
from crosslab.project import PROJECT
from crosslab.run.decode import Unit
from crosslab.run.measurement import Executed, Kind
from groundwork.command_line import choice

CORES = PROJECT / "cores"
ASSUMPTIONS = "assumptions.toml"
WIDTH = "width"
_UNIT_STRIDE = re.compile(r"v([ls])e\d+\.v")


@dataclass(frozen=True)
class StandIn:
    """An assumption: the cost of an instruction replaces a cost that a table lacks.

    Attributes:
        missing: regular expression of the whole name of the instruction without a cost.
        instead: name of the instruction to look up.
        columns: column to look up, as ``e32m4``; ``e32``: with the LMUL in force; ``width``: the
            element width and group of registers that a load or store encodes; empty: SEW and LMUL
            in force.
        why: reason, for people.
    """

    missing: str
    instead: str
    why: str
    columns: str = ""


@dataclass(frozen=True)
class Assumptions:
    """Assumed costs, which were not measured.

    Attributes:
        scalar: cycles by class of scalar instructions; ``default`` for other classes.
        why: reason of the scalar costs.
        stand_ins: stand-ins, in the order of the search.
    """

    scalar: Mapping[str, float]
    why: str
    stand_ins: tuple[StandIn, ...]


@dataclass(frozen=True)
class Cost:
    """Cycles of one instruction.

    Attributes:
        cycles: cycles at the vector length of the table's measurement (VLMAX); NaN: unknown.
        assumed: reason of an assumed cost; empty for a measured cost.
    """

    cycles: float
    assumed: str = ""


UNKNOWN = Cost(math.nan, "not measured, and no assumption replaces it")


@dataclass(frozen=True)
class Core:
    """A core's costs of instructions, memory and pipeline.

    Attributes:
        key: name of the core's file.
        name: name of the core.
        vlen: bits in a vector register, which the figures depend on.
        cycles: cycles of each instruction by column (``e32m4``).
        assumptions: costs that the table lacks.
        memory: caches and memory; None: unknown.
        pipeline: parameters of the pipeline; None: unknown.
        llvm: LLVM's name of this core, or of the most similar core with a scheduling model in LLVM;
            empty: no such model.
        ime: a chip with this core has SpacemiT's matrix unit (``vmadot``) on some of its CPUs.
    """

    key: str
    name: str
    vlen: int
    cycles: Mapping[str, Mapping[str, float]]
    assumptions: Assumptions
    memory: MemorySystem | None = None
    pipeline: Pipeline | None = None
    llvm: str = ""
    ime: bool = False

    def __str__(self) -> str:
        """The core's key, as ``--core`` accepts it."""
        return self.key

    def cost(self, kind: Kind) -> Cost:
        """Return the measured or assumed cost of an instruction of a kind, else :data:`UNKNOWN`."""
        cost = self._known.get(kind)
        if cost is None:
            cost = self._known[kind] = self._look_up(kind)
        return cost

    def aligned_cycles(self, kind: Kind) -> float:
        """Return the cycles of an instruction at addresses aligned to 8 bytes; NaN: unknown.

        The tables were measured at addresses aligned to an element. So an unmasked unit-stride load
        or store costs as much as with 64-bit elements.
        """
        access = _UNIT_STRIDE.fullmatch(kind.instruction.mnemonic)
        if access and not kind.instruction.masked:
            column = width_column(kind)
            group = column[column.find("m") :]
            cycles = self.cycles.get(f"v{access[1]}e64.v", {}).get(f"e64{group}", math.nan)
            if not math.isnan(cycles):
                return cycles
        return self.cost(kind).cycles

    def total(self, kind: Kind, executed: Executed) -> float:
        """Return the cycles of all executions of a kind; NaN: unknown.

        The cost of strided, indexed and segment accesses is proportional to the moved elements.
        """
        cycles = self.cost(kind).cycles * executed.runs
        if executed.runs and executed.elements and kind.vtype is not None:
            most = self.elements(kind) * executed.runs
            return cycles * executed.elements / most
        return cycles

    @property
    def zvfh(self) -> bool:
        """True if the core has half-precision vectors (Zvfh); the core's table then has figures."""
        return not math.isnan(self.cycles.get("vfadd.vv", {}).get("e16m1", math.nan))

    def elements(self, kind: Kind) -> float:
        """Return the elements that an instruction moves at VLMAX; each segment field counts."""
        fields = re.search(r"seg(\d)", kind.instruction.mnemonic)
        return float(self.vlen / kind.sew * kind.lmul) * (int(fields[1]) if fields else 1)

    def require_pipeline(self) -> Pipeline:
        """Return the core's pipeline.

        Raises:
            UserError: the core's file has no pipeline.
        """
        if self.pipeline is None:
            raise UserError(
                f"--core {self}: its file has no [pipeline]",
                remedy="give a core whose pipeline is known: --core spacemit-x60",
            )
        return self.pipeline

    @cached_property
    def _known(self) -> dict[Kind, Cost]:
        return {}

    def _look_up(self, kind: Kind) -> Cost:
        instruction = kind.instruction
        if instruction.unit is Unit.SCALAR:
            scalar = self.assumptions.scalar
            cycles = scalar.get(instruction.mnemonic, scalar["default"])
            return Cost(cycles, self.assumptions.why)
        name = instruction.mnemonic
        name += " zero" * instruction.zero_stride + " masked" * instruction.masked
        return self._table(kind, name, column_of(kind), "")

    def _table(self, kind: Kind, name: str, column: str, assumed: str) -> Cost:
        cycles = self.cycles.get(name, {}).get(column, math.nan)
        if not math.isnan(cycles):
            return Cost(cycles, assumed)
        for stand_in in self.assumptions.stand_ins:
            match = re.fullmatch(stand_in.missing, name)
            if match:
                target = match.expand(stand_in.columns) if stand_in.columns else column
                target = width_column(kind) if target == WIDTH else target
                if re.fullmatch(r"e\d+", target):
                    target += column[column.find("m") :]
                instead = match.expand(stand_in.instead)
                if (instead, target) != (name, column):
                    return self._table(kind, instead, target, stand_in.why)
        return UNKNOWN


def column_of(kind: Kind) -> str:
    """Return the column of the SEW and LMUL in force, or of whole registers; empty: unknown."""
    if kind.vtype is None:
        # The encoding holds the number of registers; SEW and LMUL do not matter.
        return f"e8m{kind.instruction.registers}" if kind.instruction.registers else ""
    return _column(kind.sew, kind.lmul)


def _column(width: int, lmul: Fraction) -> str:
    return f"e{width}" + (f"m{lmul}" if lmul >= 1 else f"mf{lmul.denominator}")


def width_column(kind: Kind) -> str:
    """Return the column of the width and registers that a load or store encodes; empty: unknown."""
    width = kind.instruction.element_width
    if kind.vtype is None or not width:
        return ""
    return _column(width, kind.lmul * width / kind.sew)


def core_names(folder: Path) -> list[str]:
    """Return the names of all cores, from their files."""
    return sorted(file.stem for file in folder.glob("*.toml") if file.name != ASSUMPTIONS)


@cache
def core_option(text: str) -> Core:
    """Return a core by name, as argparse's type; each core is read once.

    Raises:
        argparse.ArgumentTypeError: the core does not exist, or the name is that of a board.
        UserError: the core's file is malformed.
    """
    board = CORES / "boards" / f"{text.lower().rpartition('-')[2]}.toml"
    if board.is_file():
        core = _read(board)["core"]
        raise argparse.ArgumentTypeError(f"{text!r} is a board; did you mean its core, {core}?")
    return read_core(CORES, choice(text, core_names(CORES), "a known core"))


def core_list(text: str) -> tuple[Core, ...]:
    """Return the cores of a comma-separated list, as argparse's type; see :func:`core_option`."""
    return tuple(map(core_option, text.split(",")))


def read_core(folder: Path, key: str) -> Core:
    """Read ``<folder>/<key>.toml`` and the folder's assumptions.

    Raises:
        UserError: the core does not exist, or a file is malformed.
    """
    table, assumed = _read(folder / f"{key}.toml"), _read(folder / ASSUMPTIONS)
    try:
        columns = table["columns"]
        scalar = dict(table.get("scalar", assumed["scalar"]))
        why = str(scalar.pop("why"))
        stand_ins = tuple(StandIn(**entry) for entry in assumed["stand-in"])
        cycles = {
            name: dict(zip(columns, map(float, row), strict=True))
            for name, row in table["cycles"].items()
        }
        assumptions = Assumptions(scalar, why, stand_ins)
        memory = MemorySystem.of(table["memory"]) if "memory" in table else None
        pipeline = _pipeline(folder, table["pipeline"]) if "pipeline" in table else None
        name, vlen = table["name"], int(table["vlen"])
        llvm = str(table.get("llvm", ""))
        ime = bool(table.get("ime", False))
        return Core(key, name, vlen, cycles, assumptions, memory, pipeline, llvm, ime)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / key}.toml or its {ASSUMPTIONS} is malformed: {error!r}",
            remedy="cores/README.md describes a core's file",
        ) from error


def _pipeline(folder: Path, table: Mapping[str, Any]) -> Pipeline:
    return Pipeline(**{**table, "latencies": read_latencies(folder, table["latencies"])})


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: {error}") from error
