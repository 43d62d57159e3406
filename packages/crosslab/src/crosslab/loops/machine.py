# SPDX-License-Identifier: Apache-2.0
"""Model of an in-order core for the scheduler: units, occupancy, latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from crosslab.cores.core import CORES, Core
from crosslab.cores.latencies import Latencies, read_latencies
from crosslab.loops.code import Op, Type

ISSUE_WIDTH = 2
SCALAR, MEMORY, ARITHMETIC = range(3)
# Classes of scalar instructions in a core's latencies.
_SCALAR = ((r"l[bhwd]u?", "load"), (r"fl[hwd]", "fload"), (r"\S+", "add"))
# Core whose latencies replace those of a core without a pipeline.
USUAL = "spacemit-x60"
_OWN_WIDTH = re.compile(r"v[ls]s?e(\d+)\.v")


@dataclass(frozen=True)
class Timing:
    """Unit, occupancy and latency of an instruction.

    Attributes:
        unit: unit that executes the instruction.
        taken: cycles for which the unit is busy.
        latency: cycles until the result can be read.
    """

    unit: int
    taken: float
    latency: float


@dataclass(frozen=True)
class Machine:
    """Timings of instructions on a core: occupancy by its table, latencies by LLVM's model."""

    core: Core
    _known: dict[tuple[str, Type | None], Timing] = field(default_factory=dict, compare=False)

    def timing(self, op: Op) -> Timing:
        """Return unit, occupancy and latency of an instruction."""
        key = op.mnemonic, op.type
        if key not in self._known:
            self._known[key] = self._look_up(*key)
        return self._known[key]

    @cached_property
    def _latencies(self) -> Latencies:
        pipeline = self.core.pipeline
        return pipeline.latencies if pipeline else read_latencies(CORES, USUAL)

    def _look_up(self, mnemonic: str, of: Type | None) -> Timing:
        if of is None:
            kind = next(kind for text, kind in _SCALAR if re.fullmatch(text, mnemonic))
            return Timing(SCALAR, 0, self._latencies.scalar[kind].latency)
        access = _OWN_WIDTH.fullmatch(mnemonic)
        bits = int(access[1]) if access else of.bits
        cycles = self.core.cycles.get(mnemonic, {}).get(of.column(bits), math.nan)
        if math.isnan(cycles):
            # An unmeasured instruction takes a cycle per register.
            cycles = max(1.0, float(of.group(bits)))
        if access:
            # Dependent instructions can begin with the first register; later ones follow.
            return Timing(MEMORY, cycles, max(self._latencies.shortest(mnemonic, bits), cycles))
        latency, _ = self._latencies.of(mnemonic, of.column(bits))
        return Timing(ARITHMETIC, cycles, max(latency, cycles))


class Program:
    """A loop body as numbers: timings, registers and vector types of its instructions."""

    def __init__(self, machine: Machine, body: Sequence[Op]) -> None:
        self.timings = [machine.timing(op) for op in body]
        numbers: dict[object, int] = {}
        self.reads, self.writes = (
            [[numbers.setdefault(v, len(numbers)) for v in getattr(op, name)] for op in body]
            for name in ("inputs", "outputs")
        )
        self.places = len(numbers)
        kinds: dict[object, int] = {None: 0}
        self.types = [kinds.setdefault(op.type, len(kinds)) for op in body]
        # Loads and stores depend only on the number of elements.
        counts = [op.type and (op.type.lmul, op.type.count) for op in body]
        self.counts = [kinds.setdefault(count, len(kinds)) for count in counts]
        self.any_width = [op.moves_memory for op in body]


class Clock:
    """Simulation that issues instructions one by one and computes when each can start.

    Args:
        program: the body.
        strict: results become ready in the order of issue, as in LLVM's model; otherwise a short
            instruction may overtake.
    """

    def __init__(self, program: Program, strict: bool) -> None:
        self._program, self._strict = program, strict
        self._ready = [0.0] * program.places
        self._type = self._count = 0
        self._now, self._slots, self._last, self._kind = 0.0, 0, 0.0, 0.0
        self._free = [0.0, 0.0, 0.0]
        self.switched = 0  # vector types put in force

    def _switches(self, number: int) -> bool:
        """True if the instruction needs a change of the vector type in force."""
        program = self._program
        if program.any_width[number]:
            return program.counts[number] != self._count
        return program.types[number] not in (0, self._type)

    def earliest(self, number: int) -> float:
        """Return the earliest cycle at which an instruction can be issued next."""
        now = self._now if self._slots < ISSUE_WIDTH else self._now + 1
        if self._switches(number):
            now = max(now, self._last - 1) + 1
        timing = self._program.timings[number]
        at = max(now, self._free[timing.unit], self._last - timing.latency)
        for value in self._program.reads[number]:
            ready = self._ready[value]
            at = max(ready, at)
        return at

    def preference(self, number: int) -> tuple[float, bool, bool, bool]:
        """Return a key, least best: (delay of arithmetic, is arithmetic, new type, new latency)."""
        at, timing = self.earliest(number), self._program.timings[number]
        busy, switches = self._free[ARITHMETIC], self._switches(number)
        if timing.unit == ARITHMETIC:
            return at - busy, True, switches, timing.latency != self._kind
        after = at + timing.latency - 4 if self._strict else at
        return max(0.0, max(at, after) - busy), False, switches, False

    def issue(self, number: int) -> float:
        """Issue an instruction; return the cycle of the issue."""
        program = self._program
        if self._switches(number):
            now = self._now if self._slots < ISSUE_WIDTH else self._now + 1
            # Vector instructions wait for their type.
            self._now, self._slots = max(now, self._last - 1) + 1, 0
            self.switched += 1
            self._type, self._count = program.types[number], program.counts[number]
        at, timing = self.earliest(number), program.timings[number]
        self._slots = self._slots + 1 if at == self._now else 1
        self._now = at
        self._free[timing.unit] = at + timing.taken
        if timing.unit == ARITHMETIC:
            self._kind = timing.latency
        if self._strict:
            self._last = max(self._last, at + timing.latency)
        for value in program.writes[number]:
            self._ready[value] = at + timing.latency
        return at
