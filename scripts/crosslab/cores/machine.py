# SPDX-License-Identifier: Apache-2.0
"""A core's pipeline that executes one instruction after the other, and says when.

Instructions begin in the program's order, several a cycle. A scalar one waits for its operands. A
vector one waits for its scalar operands and vl, then enters a queue. From there instructions go to
two units in order, one for loads and stores and one for arithmetic, each of which works on one
register of a group after the other. A register of a result can be used as soon as it is ready,
while the rest of its group is computed. A register is written after all earlier reads of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from crosslab.cores.latencies import Latencies
from crosslab.run.operands import REGISTERS, VECTOR, VSTATE


@dataclass(frozen=True)
class Pipeline:
    """What the machine is made of; times in cycles.

    Attributes:
        issue: instructions that begin in a cycle.
        queue: vector instructions that wait for the vector units.
        window: instructions at work or waiting at once in a core that executes them out of order;
            0: in order.
        vset: from a vset* to its result in a scalar register.
        vl: from a vset* to the next vector instruction.
        store: of each register that is stored after a load, above the table's cycles.
        to_scalar: from a vector instruction to a scalar result, above LLVM's latency.
        latencies: of instructions.
        source: of these figures.
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
    """An instruction as the machine sees it.

    Attributes:
        occupancy: cycles that its unit is busy.
        latency: from the work on a register to the register of the result.
        waits: registers that it needs before it begins or enters the queue.
        unit: that works on one instruction at a time; empty: one is always free.
        results: registers that are written; of vector instructions in ``parts`` instead.
        parts: of a vector instruction, the work on one register: registers read and written.
        whole: every register is read until the end, as a gather does.
        access: "load" or "store" of vectors; empty for other instructions.
        late: from the work on a register to when it must be ready.
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


class Machine:
    """Registers and units in time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.ready = [0.0] * REGISTERS
        self.released = [0.0] * REGISTERS  # by the last instruction that reads it
        self.busy: dict[str, float] = {}
        self.vector = 0.0  # when all vector instructions so far are through
        self.cycle = 0
        self.access = ""  # the last one of vectors
        self.started = 0.0  # the last vector instruction
        self.begun = 0  # instructions in this cycle
        self.queue: deque[float] = deque(maxlen=max(1, pipeline.queue))

    @property
    def now(self) -> float:
        """When all that has begun is through its unit."""
        return max(self.cycle + self.begun / self.pipeline.issue, self.vector)

    def run(self, steps: Sequence[Step]) -> None:
        """Execute instructions."""
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
        began = self._begin(at)
        if step.unit:
            self.busy[step.unit] = began + step.occupancy
        for register in step.results:
            self.ready[register] = began + self._latency(step, register)

    def _latency(self, step: Step, register: int) -> float:
        return self.pipeline.vl if register == VSTATE else step.latency

    def _each(self, step: Step) -> float:
        """Cycles of the work on one register."""
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
        each, began = self._each(step), at
        for reads, writes in step.parts:
            for register in reads:
                at = max(at, ready[register] - step.late)
            for register in writes:
                at = max(at, released[register])
                ready[register] = at + step.latency
            at += each
            for register in reads:
                released[register] = max(released[register], at)
        if step.whole:
            for reads, _ in step.parts:
                for register in reads:
                    released[register] = at
        self.vector = max(self.vector, at)
        self.busy[step.unit] = at
        self.started = began
        self.queue.append(began)


class WindowMachine(Machine):
    """A core that executes instructions as soon as their operands are ready, within a window.

    Instructions enter the window and leave it in the program's order; scalar registers are renamed.
    A unit takes the work that is ready into its first free time. A vector instruction enters when
    vl is known, and after earlier vector instructions have written their scalar results.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.left: deque[float] = deque([0.0], maxlen=pipeline.window)
        self.taken: dict[str, list[tuple[float, float]]] = {}
        self.scalars = 0.0  # when the scalar results of vector instructions are written

    @property
    def now(self) -> float:
        """When all that has begun has left the window."""
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
        """The first time from ``at`` on that a unit is free for so long; it is taken."""
        taken = [one for one in self.taken.get(unit, []) if one[1] > self.cycle]
        for start, end in taken:
            if at + length <= start:
                break
            at = max(at, end)
        self.taken[unit] = sorted([*taken, (at, at + length)])
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
        each = self._each(step)
        for reads, writes in step.parts:
            at = max([at, *(self.ready[register] - step.late for register in reads)])
            at = max([at, *(self.released[register] for register in writes)])
            at = self._take(step.unit, at, each)
            for register in writes:
                self.ready[register] = at + step.latency
            at += each
            for register in reads:
                self.released[register] = max(self.released[register], at)
        done = at - each + step.latency
        if any(register < VECTOR for _, writes in step.parts for register in writes):
            self.scalars = done
        self._leave(max(at, done))


def machine_of(pipeline: Pipeline) -> Machine:
    """A machine of a core."""
    return WindowMachine(pipeline) if pipeline.window else Machine(pipeline)
