# SPDX-License-Identifier: Apache-2.0
"""Cycles of executed instructions on a core's pipeline, including waits for operands and units.

The counter records how often a segment ran right after another. For each such pair, the machine
measures the second segment, after it has executed the first and the usual code before it: the most
frequent predecessors, backwards. So the second and later rounds of a loop cost as in its steady
state.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from crosslab.cores.core import Core, column_of, width_column
from crosslab.cores.cycles import Cycles, cycles_of
from crosslab.cores.machine import Pipeline, Step, machine_of
from crosslab.run.decode import Instruction, Unit
from crosslab.run.measurement import Kind, Measurement, Node
from crosslab.run.operands import VECTOR, VSTATE, operands
from crosslab.run.symbols import Symbols

# Number of instructions before a segment that the machine executes first.
HISTORY = 150
# Classes of scalar instructions that may read what a vector store wrote: clang moves a reduction's
# result to a scalar register through memory.
SCALAR_LOADS = ("load", "fload")
# Instructions with one group twice as long as the other groups.
_TWICE = re.compile(r"vf?w|vnsr|vnclip|vfncvt")


@dataclass(frozen=True)
class Translator:
    """Converter of instructions to steps of a core's machine."""

    core: Core

    @cached_property
    def pipeline(self) -> Pipeline:
        """The core's pipeline."""
        return self.core.require_pipeline()

    @cached_property
    def _load(self) -> float:
        """Cycles of a load's latency; also the delay after which a store reads its data."""
        return self.pipeline.latencies.shortest("vle32.v", 32)

    def step(self, word: int, kind: Kind) -> Step:
        """Convert an instruction to a step of the machine.

        Args:
            word: encoding of the instruction.
            kind: the decoded instruction, with the vtype in force.
        """
        instruction = kind.instruction
        used = operands(word, instruction, kind.sew, kind.lmul)
        if instruction.sets is not None:
            return Step(1, self.pipeline.vset, used.reads, "vset", used.writes)
        if not instruction.vector:
            scalar = self.pipeline.latencies.scalar[instruction.mnemonic]
            access = "load" if instruction.mnemonic in SCALAR_LOADS else ""
            return Step(
                scalar.occupancy,
                scalar.latency,
                used.reads,
                scalar.unit,
                used.writes,
                access=access,
            )
        waits = tuple(r for r in used.reads if r < VECTOR or r == VSTATE)
        sources = [r for r in used.reads if VECTOR <= r < VSTATE]
        cycles = self.core.aligned_cycles(kind)
        occupancy = 1.0 if math.isnan(cycles) else cycles
        parts = _parts(sources, used.writes, kind)
        to_scalar = bool(used.writes and used.writes[0] < VECTOR)
        access = _access(instruction)
        return Step(
            occupancy,
            self._latency(kind, len(parts), scalar=to_scalar),
            waits,
            "memory" if instruction.unit is Unit.MEMORY else "arithmetic",
            parts=parts,
            access=access,
            late=self._load if access == "store" else 0,
            whole="gather" in instruction.mnemonic or "compress" in instruction.mnemonic,
        )

    def _latency(self, kind: Kind, parts: int, *, scalar: bool) -> float:
        """Return the cycles from the work on a register to its result.

        LLVM's latency is that of the whole group, so the occupancy of all parts but the last is
        subtracted.
        """
        pipeline, table = self.pipeline, self.pipeline.latencies
        memory = kind.instruction.unit is Unit.MEMORY
        column = width_column(kind) if memory else ""
        latency, occupancy = table.of(kind.instruction.mnemonic, column or column_of(kind))
        shortest = table.shortest(kind.instruction.mnemonic, kind.sew)
        cycles = max(shortest, latency - occupancy * (parts - 1) / parts)
        if memory:
            # The first register of a load is ready after the shortest latency, later ones follow.
            cycles = self._load
            if "seg" in kind.instruction.mnemonic:
                # Each register has an element of every segment, so all wait for the last segment.
                cycles += self.core.aligned_cycles(kind) * (parts - 1) / parts
        return cycles + pipeline.to_scalar * scalar


def _access(instruction: Instruction) -> str:
    if instruction.unit is not Unit.MEMORY:
        return ""
    return "store" if instruction.mnemonic.startswith("vs") else "load"


def _parts(
    sources: list[int], results: tuple[int, ...], kind: Kind
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return (registers read, registers written) for each part of an instruction, in order.

    The parts work on single registers of a group; smaller groups are spread evenly over the parts.
    """
    longest = max(1, math.ceil(kind.lmul) * (2 if _TWICE.match(kind.instruction.mnemonic) else 1))
    groups = _groups(sources, longest)
    wide = [r for r in results if r >= VECTOR]
    count = max(1, len(wide), *(len(group) for group in groups), 1)
    reads: list[list[int]] = [[] for _ in range(count)]
    writes: list[list[int]] = [[] for _ in range(count)]
    for group in groups:
        for index, register in enumerate(group):
            reads[index * count // len(group)].append(register)
    for index, register in enumerate(results):
        writes[((index + 1) * count - 1) // len(results)].append(register)
    return tuple(zip(map(tuple, reads), map(tuple, writes), strict=True))


def _groups(registers: Iterable[int], longest: int) -> list[list[int]]:
    """Split ascending registers into runs of consecutive numbers, at most ``longest`` long."""
    groups: list[list[int]] = []
    for register in registers:
        if groups and groups[-1][-1] == register - 1 and len(groups[-1]) < longest:
            groups[-1].append(register)
        else:
            groups.append([register])
    return groups


@dataclass(frozen=True)
class PipelineRun:
    """A run of a program on a core's pipeline.

    Attributes:
        core: core with the pipeline.
        measured: result of the counter.
        edges: how often a segment ran right after another.
    """

    core: Core
    measured: Measurement
    edges: Mapping[tuple[Node, Node], int]

    def cycles(self, symbols: Symbols | None = None) -> dict[str, float]:
        """Return the cycles by function; without symbols, the total under an empty name."""
        totals: dict[str, float] = defaultdict(float)
        for (before, node), times in self.edges.items():
            segment = self.measured.segments[node[0]]
            name = symbols.at(segment.address) if symbols else ""
            totals[name] += times * self._cost(before, node)
        return dict(totals)

    def _cost(self, before: Node, node: Node) -> float:
        chain, length = [], 0
        at: Node | None = before
        while at is not None and at[0] in self.measured.segments and length < HISTORY:
            chain.append(at)
            length += len(self._steps(at))
            at = self._usual.get(at)
        machine = machine_of(self._translator.pipeline)
        for earlier in reversed(chain):
            machine.run(self._steps(earlier))
        start = machine.now
        machine.run(self._steps(node))
        return machine.now - start

    @cached_property
    def _usual(self) -> dict[Node, Node]:
        """The most frequent predecessor of each segment."""
        best: dict[Node, tuple[int, Node]] = {}
        for (before, node), times in self.edges.items():
            best[node] = max(best.get(node, (0, before)), (times, before))
        return {node: before for node, (_, before) in best.items()}

    @cached_property
    def _known(self) -> dict[Node, list[Step]]:
        return {}

    @cached_property
    def _translator(self) -> Translator:
        return Translator(self.core)

    def _steps(self, node: Node) -> list[Step]:
        steps = self._known.get(node)
        if steps is None:
            segment = self.measured.segments[node[0]]
            kinds = segment.kinds(node[1])
            steps = [
                self._translator.step(word, kind)
                for word, kind in zip(segment.words, kinds, strict=True)
            ]
            self._known[node] = steps
        return steps


def all_cycles(
    core: Core,
    measured: Measurement,
    regions: Sequence[int],
    symbols: Symbols | None = None,
    calls: int = 1,
) -> Cycles:
    """Return the cycles in some regions, divided by ``calls``; with the pipeline's, if known."""
    cycles = cycles_of(core, measured.histogram(regions, symbols), calls)
    if core.pipeline is None:
        return cycles
    return cycles.with_pipeline(pipeline_cycles(core, measured, regions, symbols), calls)


def pipeline_cycles(
    core: Core,
    measured: Measurement,
    regions: Iterable[int] | None = None,
    symbols: Symbols | None = None,
) -> dict[str, float]:
    """Return a pipeline's cycles of the regions (None: all) by function; without symbols by ""."""
    return PipelineRun(core, measured, measured.edges(regions)).cycles(symbols)
