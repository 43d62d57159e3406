# SPDX-License-Identifier: Apache-2.0
"""Simulation of a core's pipeline, which computes when each instruction runs.

Instructions begin in program order, several per cycle. A scalar instruction waits for its operands.
A vector instruction waits for its scalar operands and vl, then enters a queue. From the queue,
instructions go in order to two units, one for loads and stores and one for arithmetic. A unit works
on the registers of a group one after the other. Each register of a result can be used as soon as it
is ready, while the rest of its group is computed. A register is written only after all earlier
reads of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from crosslab.cores.latencies import Latencies
from crosslab.run.operands import FLOAT, REGISTERS, STACK, VECTOR, VSTATE


@dataclass(frozen=True)
class Pipeline:
    """Parameters of a core's pipeline; times in cycles.

    Attributes:
        issue: instructions that can begin in a cycle.
        queue: vector instructions that can wait for the vector units.
        window: instructions in flight in a core that executes out of order; 0: in order.
        vset: time from a vset* to its result in a scalar register.
        vl: time from a vset* to the next vector instruction.
        store: additional time of each register stored after a load, above the table's cycles.
        to_scalar: additional time from a vector instruction to its scalar result, above LLVM's
            latency.
        latencies: latencies of instructions.
        source: source of these figures.
    """

    issue: int
    queue: int
    window: int
    vset: float
    vl: float
    store: float
    to_scalar: float
    latencies: Latencies
    source: str


@dataclass(frozen=True)
class Step:
    """An instruction as the machine executes it; times in cycles.

    Attributes:
        occupancy: time for which the unit is busy.
        latency: time from the work on a source register to the result register.
        waits: registers that must be ready before the instruction begins or enters the queue.
        unit: unit that works on one instruction at a time; empty: a unit is always free.
        results: written registers of a scalar instruction.
        parts: work of a vector instruction on each register of a group: registers read and written.
        whole: all source registers must be ready at the start and are read until the end, as in a
            gather.
        access: "load" or "store", of vectors or scalars; empty for other instructions.
        late: time from the work on a source register to the latest time when it must be ready.
    """

    occupancy: float
    latency: float
    waits: tuple[int, ...]
    unit: str = ""
    results: tuple[int, ...] = ()
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    whole: bool = False
    access: str = ""
    late: float = 0

    @property
    def base(self) -> int:
        """The register with the address of an access."""
        return next(register for register in self.waits if register < FLOAT)


class Machine:
    """State of an in-order core: times when registers are ready and units are busy, in cycles."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.ready = [0.0] * REGISTERS
        self.released = [0.0] * REGISTERS  # by the last instruction that reads the register
        self.busy: dict[str, float] = {}
        self.vector = 0.0  # end of all vector instructions so far
        self.cycle = 0
        self.access = ""  # kind of the last vector access
        self.stored = 0.0  # end of the last vector store
        self.stored_to = STACK  # register with its address
        self.started = 0.0  # start of the last vector instruction
        self.begun = 0  # number of instructions begun in this cycle
        self.queue: deque[float] = deque(maxlen=max(1, pipeline.queue))

    @property
    def now(self) -> float:
        """Time when all begun instructions have left their units."""
        return max(self.cycle + self.begun / self.pipeline.issue, self.vector)

    def run(self, steps: Sequence[Step]) -> None:
        """Execute instructions, which advances the state."""
        for step in steps:
            if step.parts:
                self._vector(step)
            else:
                self._scalar(step)

    def _begin(self, at: float) -> int:
        cycle = math.ceil(at - 1e-9)
        if cycle > self.cycle:
            self.cycle, self.begun = cycle, 0
        elif self.begun >= self.pipeline.issue:
            self.cycle, self.begun = self.cycle + 1, 0
        self.begun += 1
        return self.cycle

    def _scalar(self, step: Step) -> None:
        at = float(self.cycle)
        for register in step.waits:
            at = max(at, self.ready[register])
        if step.unit:
            at = max(at, self.busy.get(step.unit, 0.0))
        # Addresses are not known. A result that goes through memory is read from the stack, or by
        # the register that it was stored by.
        if step.access == "load" and step.base in (STACK, self.stored_to):
            at = max(at, self.stored)
        began = self._begin(at)
        if step.unit:
            self.busy[step.unit] = began + step.occupancy
        for register in step.results:
            self.ready[register] = began + self._latency(step, register)

    def _latency(self, step: Step, register: int) -> float:
        return self.pipeline.vl if register == VSTATE else step.latency

    def _each(self, step: Step) -> float:
        """Return the cycles of the work on each register of a group; remember the vector access."""
        after_load = step.access == "store" and self.access == "load"
        self.access = step.access or self.access
        return step.occupancy / len(step.parts) + self.pipeline.store * after_load

    def _vector(self, step: Step) -> None:
        ready, released = self.ready, self.released
        at = float(self.cycle)
        for register in step.waits:
            at = max(at, ready[register])
        if len(self.queue) == self.queue.maxlen:
            at = max(at, self.queue[0])
        at = max(self._begin(at), self.busy.get(step.unit, 0.0), self.started)
        if step.whole:
            at = max([at, *(ready[r] for reads, _ in step.parts for r in reads)])
        part_cycles, began = self._each(step), at
        for reads, writes in step.parts:
            for register in reads:
                at = max(at, ready[register] - step.late)
            for register in writes:
                at = max(at, released[register])
                ready[register] = at + step.latency
            at += part_cycles
            for register in reads:
                released[register] = max(released[register], at)
        if step.whole:
            for reads, _ in step.parts:
                for register in reads:
                    released[register] = at
        self.vector = max(self.vector, at)
        if step.access == "store":
            self.stored, self.stored_to = at, step.base
        self.busy[step.unit] = at
        self.started = began
        self.queue.append(began)


class WindowMachine(Machine):
    """State of a core that executes instructions out of order, within a window.

    Instructions enter and leave the window in program order; scalar registers are renamed. A unit
    executes an instruction in its first free time slot after the operands are ready. A vector
    instruction enters when vl is known, and after earlier vector instructions have written their
    scalar results.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.left: deque[float] = deque([0.0], maxlen=pipeline.window)
        self.taken: dict[str, list[tuple[float, float]]] = {}
        self.scalars = 0.0  # time of the last scalar result of a vector instruction

    @property
    def now(self) -> float:
        """Time when all begun instructions have left the window."""
        return max(self.cycle + self.begun / self.pipeline.issue, self.left[-1])

    def _enter(self, step: Step) -> float:
        at = self.left[0] if len(self.left) == self.left.maxlen else 0.0
        if step.parts:
            at = max(at, self.ready[VSTATE], self.scalars)
        at = float(self._begin(max(self.cycle, at)))
        return max([at, *(self.ready[register] for register in step.waits)])

    def _leave(self, at: float) -> None:
        self.left.append(max(at, self.left[-1]))

    def _take(self, unit: str, at: float, length: float) -> float:
        """Reserve the first free slot of ``length`` cycles from ``at`` on; return its start."""
        slots = [slot for slot in self.taken.get(unit, []) if slot[1] > self.cycle]
        for start, end in slots:
            if at + length <= start:
                break
            at = max(at, end)
        self.taken[unit] = sorted([*slots, (at, at + length)])
        return at

    def _scalar(self, step: Step) -> None:
        at = self._enter(step)
        if step.unit:
            at = self._take(step.unit, at, step.occupancy)
        for register in step.results:
            self.ready[register] = at + self._latency(step, register)
        self._leave(at + step.latency)

    def _vector(self, step: Step) -> None:
        at = self._enter(step)
        if step.whole:
            at = max([at, *(self.ready[r] for reads, _ in step.parts for r in reads)])
        part_cycles = self._each(step)
        for reads, writes in step.parts:
            at = max([at, *(self.ready[register] - step.late for register in reads)])
            at = max([at, *(self.released[register] for register in writes)])
            at = self._take(step.unit, at, part_cycles)
            for register in writes:
                self.ready[register] = at + step.latency
            at += part_cycles
            for register in reads:
                self.released[register] = max(self.released[register], at)
        done = at - part_cycles + step.latency
        if any(register < VECTOR for _, writes in step.parts for register in writes):
            self.scalars = done
        self._leave(max(at, done))


def machine_of(pipeline: Pipeline) -> Machine:
    """Create the machine of a pipeline: out of order if it has a window, else in order."""
    return WindowMachine(pipeline) if pipeline.window else Machine(pipeline)
