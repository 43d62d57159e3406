# SPDX-License-Identifier: Apache-2.0
"""The order of a loop's instructions: software pipelining of two iterations.

Some first instructions of an iteration run during the one before it (*ahead*). What remains is a
body without cycles, which a list scheduler orders on the core's clock: of the instructions that
can start soonest it takes the one that is needed first, and none that is needed much later than
the most urgent, which bounds the registers.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crosslab.loops.code import Bank, Op, Value
from crosslab.loops.machine import ARITHMETIC, Clock, Machine, Program

# Cycles within which instructions are equally urgent.
SLACK = 4
# Cycles that are tried in addition to a latency.
MARGINS = (0, 4)


@dataclass(frozen=True)
class Edge:
    """``later`` must not start before ``first``, of as many iterations before.

    Attributes:
        first: number of an instruction.
        later: number of another.
        distance: iterations between them, 0 or 1.
        reads: later reads what first writes.
    """

    first: int
    later: int
    distance: int
    reads: bool


@dataclass(frozen=True)
class Order:
    """An order of the body.

    Attributes:
        ops: the instructions as they are issued.
        ahead: numbers of those which belong to the next iteration.
        cycles: of an iteration among many.
        strict_cycles: the same where results become ready in order.
        switched: how often it puts a vector type in force.
    """

    ops: tuple[Op, ...]
    ahead: frozenset[int]
    cycles: float
    strict_cycles: float
    switched: int

    @property
    def rank(self) -> float:
        """The smaller, the better."""
        return self.cycles + self.strict_cycles + 2 * self.switched


def edges(body: Sequence[Op]) -> list[Edge]:
    """Dependences between instructions of an iteration, and with those of the next."""
    written: dict[object, tuple[int, int]] = {}
    read: dict[object, list[tuple[int, int]]] = defaultdict(list)
    found: set[Edge] = set()

    def depends(before: tuple[int, int], now: tuple[int, int], reads: bool) -> None:
        if now[0] - before[0] <= 1 and (before[0], now[0]) != (1, 1):
            found.add(Edge(before[1], now[1], now[0] - before[0], reads))

    for iteration in (0, 1):
        for op in body:
            here = (iteration, op.number)
            for value in op.inputs:
                if value in written:
                    depends(written[value], here, True)
            for value in op.outputs:
                for reader in read.pop(value, []):
                    if reader != here:
                        depends(reader, here, False)
                if value in written and value not in op.inputs:
                    depends(written[value], here, False)
            for value in op.inputs:
                if value not in op.outputs:
                    read[value].append(here)
            for value in op.outputs:
                written[value] = here
    return sorted(found, key=lambda e: (e.first, e.later, e.distance, e.reads))


class Pressure:
    """Registers in use while a pass is put in order.

    Args:
        body: the instructions.
        ahead: numbers of those that belong to the next iteration.
        pinned: values that keep their registers for the whole loop.
        registers: how many there are.
    """

    def __init__(
        self,
        body: Sequence[Op],
        ahead: frozenset[int],
        pinned: frozenset[Value],
        registers: Mapping[Bank, int],
    ) -> None:
        self._values = [set(op.values()) - pinned for op in body]
        self._uses: dict[Value, int] = defaultdict(int)
        early: set[Value] = set()
        late: set[Value] = set()
        for op in body:
            for value in self._values[op.number]:
                self._uses[value] += 1
                (early if op.number in ahead else late).add(value)
        # What the pass before has left here; its own instructions use it, then it begins anew.
        crossing = early & late
        self._left = {
            v: sum(v in self._values[op.number] for op in body if op.number not in ahead)
            for v in crossing
        }
        self._live = set(crossing)
        self._free = dict(registers)
        for value in (*pinned, *crossing):
            self._free[value.bank] -= value.size
        self._ahead = ahead
        self._last: dict[Value, int] = {v: self._uses[v] - self._left.get(v, 0) for v in self._uses}

    def allows(self, op: Op) -> bool:
        """The instruction's new values find registers."""
        needed = 0
        for value in self._values[op.number]:
            if value not in self._live:
                # An instruction makes values of one register file.
                needed += value.size
                if needed > self._free[value.bank]:
                    return False
        return True

    def take(self, op: Op) -> None:
        """The instruction is next."""
        for value in self._values[op.number]:
            if value not in self._live:
                self._live.add(value)
                self._free[value.bank] -= value.size
            crosses = value in self._left
            if crosses and op.number in self._ahead:
                continue
            left = self._left if crosses else self._last
            left[value] -= 1
            if left[value] == 0:
                self._live.discard(value)
                self._free[value.bank] += value.size


def _next(
    clock: Clock,
    pressure: Pressure,
    body: Sequence[Op],
    ready: Sequence[tuple[float, int]],
    window: tuple[float, float],
) -> int | None:
    """Number of the best instruction among those that can be next; None: no registers are left."""
    now, best = ready[0][0], None
    for due, number in ready:
        if due > now + window[1]:
            break
        op = body[number]
        if not pressure.allows(op):
            continue
        delay, arithmetic, switches, other = clock.preference(number)
        # What is not due soon runs beside arithmetic or waits.
        if due > now + window[0] and (arithmetic or delay):
            continue
        key = (delay, arithmetic, due > now + SLACK, switches, other, due, number)
        if best is None or key < best:
            best = key
    return best[-1] if best else None


class Scheduler:
    """Orders one body for one machine."""

    def __init__(
        self,
        body: Sequence[Op],
        machine: Machine,
        pinned: frozenset[Value],
        registers: Mapping[Bank, int],
    ) -> None:
        self.body, self.machine = tuple(body), machine
        self.pinned, self.registers = pinned, registers
        self.edges = edges(body)
        self._due = [self._due_times(margin) for margin in MARGINS]
        self._program = Program(machine, self.body)

    def _due_times(self, margin: float) -> list[float]:
        """Cycle of an iteration at which each instruction should start.

        Arithmetic follows one after another as in the description; what it reads comes a latency
        before it.
        """
        due, total = [], 0.0
        for op in self.body:
            timing = self.machine.timing(op)
            due.append(total if timing.unit == ARITHMETIC else math.inf)
            total += timing.taken if timing.unit == ARITHMETIC else 0.0
        self._length = total
        here = [edge for edge in self.edges if edge.distance == 0]
        for edge in sorted(here, key=lambda e: -e.first):
            timing = self.machine.timing(self.body[edge.first])
            # What waits longer than it works has to come early enough.
            early = margin if timing.latency > 2 * timing.taken > 0 else 0
            latency = timing.latency + early if edge.reads else 0
            due[edge.first] = min(due[edge.first], due[edge.later] - latency)
        # What nothing in the iteration waits for, such as a store, follows what it waits for.
        ends = [at == math.inf for at in due]
        for edge in sorted(here, key=lambda e: e.later):
            if ends[edge.later]:
                latency = self.machine.timing(self.body[edge.first]).latency if edge.reads else 0
                known = due[edge.later] if due[edge.later] < math.inf else -math.inf
                due[edge.later] = max(known, due[edge.first] + latency)
        first = min(due)
        return [total if at == math.inf else at - first for at in due]

    def orders(self, heads: Sequence[float], windows: Sequence[tuple[float, float]]) -> list[Order]:
        """Orders, the best first.

        Args:
            heads: how many cycles of an iteration run ahead.
            windows: cycles by which arithmetic, and what runs beside it, may come before what is
                due.
        """
        found = []
        tries = list(itertools.product(heads, windows, self._due, (False, True)))
        # Long bodies take longer to order, and gain less from their ends.
        for head, window, due, strict in tries[:: 1 + len(self.body) // 300 * 2]:
            ahead = frozenset(op.number for op in self.body if due[op.number] < head)
            if ops := self._list(ahead, window, due, strict):
                found.append(self._order(ops, ahead))
        found.sort(key=lambda order: order.rank)
        # The description's own order needs the fewest registers.
        return [*found, self._order(self.body, frozenset())]

    def _order(self, ops: Sequence[Op], ahead: frozenset[int]) -> Order:
        cycles, switched = self._measured(ops, strict=False)
        strict_cycles, _ = self._measured(ops, strict=True)
        return Order(tuple(ops), ahead, cycles, strict_cycles, switched)

    def _list(
        self,
        ahead: frozenset[int],
        window: tuple[float, float],
        due: Sequence[float],
        strict: bool,
    ) -> list[Op]:
        """One order; empty: some instruction finds no registers."""
        urgency = [at + (self._length if n in ahead else 0) for n, at in enumerate(due)]
        waits = [0] * len(self.body)
        after: dict[int, list[int]] = defaultdict(list)
        for edge in self.edges:
            if edge.distance - (edge.later in ahead) + (edge.first in ahead) == 0:
                waits[edge.later] += 1
                after[edge.first].append(edge.later)
        clock, done = Clock(self._program, strict), []
        pressure = Pressure(self.body, ahead, self.pinned, self.registers)
        ready = sorted((urgency[op.number], op.number) for op in self.body if not waits[op.number])
        while ready:
            number = _next(clock, pressure, self.body, ready, window)
            if number is None:
                return []
            op = self.body[number]
            clock.issue(op.number)
            pressure.take(op)
            done.append(op)
            ready.remove((urgency[number], number))
            for later in after[number]:
                waits[later] -= 1
                if waits[later] == 0:
                    bisect.insort(ready, (urgency[later], later))
        return done

    def _measured(self, ops: Sequence[Op], *, strict: bool) -> tuple[float, int]:
        """Cycles and vector types of an iteration among many."""
        clock = Clock(self._program, strict)
        ends = []
        for _ in range(3):
            for op in ops:
                at = clock.issue(op.number)
            ends.append((at, clock.switched))
        return ends[2][0] - ends[1][0], ends[2][1] - ends[1][1]
