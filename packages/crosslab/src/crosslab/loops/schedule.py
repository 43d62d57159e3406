# SPDX-License-Identifier: Apache-2.0
"""Scheduler of a loop's instructions: software pipelining of two iterations.

The first instructions of an iteration can run during the previous iteration (*ahead*). The rest is
a body without cyclic dependences, which a list scheduler orders on the core's clock. Of the
instructions that can start soonest, it chooses the one that is needed first. It skips instructions
that are needed much later than the most urgent one, which limits the registers in use.
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
# Cycles that variants add to a latency.
MARGINS = (0, 4)


@dataclass(frozen=True)
class Edge:
    """A dependence: ``later`` must not start before ``first`` of ``distance`` iterations earlier.

    Attributes:
        first: number of the earlier instruction.
        later: number of the dependent instruction.
        distance: iterations between them, 0 or 1.
        reads: ``later`` reads a result of ``first``.
    """

    first: int
    later: int
    distance: int
    reads: bool


@dataclass(frozen=True)
class Order:
    """An order of a loop body's instructions, with the order's cost.

    Attributes:
        ops: instructions in the order of issue.
        ahead: numbers of the instructions that belong to the next iteration.
        cycles: cycles of an iteration in the steady state.
        strict_cycles: cycles if results become ready in the order of issue.
        switched: number of changes of the vector type per iteration.
    """

    ops: tuple[Op, ...]
    ahead: frozenset[int]
    cycles: float
    strict_cycles: float
    switched: int

    @property
    def rank(self) -> float:
        """Cost of the order; a smaller value is better."""
        return self.cycles + self.strict_cycles + 2 * self.switched


def edges(body: Sequence[Op]) -> list[Edge]:
    """Return the dependences between instructions of an iteration, and with the next iteration."""
    written: dict[object, tuple[int, int]] = {}
    read: dict[object, list[tuple[int, int]]] = defaultdict(list)
    dependences: set[Edge] = set()

    def depends(before: tuple[int, int], now: tuple[int, int], reads: bool) -> None:
        if now[0] - before[0] <= 1 and (before[0], now[0]) != (1, 1):
            dependences.add(Edge(before[1], now[1], now[0] - before[0], reads))

    for iteration in (0, 1):
        for op in body:
            current = (iteration, op.number)
            for value in op.inputs:
                if value in written:
                    depends(written[value], current, True)
            for value in op.outputs:
                for reader in read.pop(value, []):
                    if reader != current:
                        depends(reader, current, False)
                if value in written and value not in op.inputs:
                    depends(written[value], current, False)
            for value in op.inputs:
                if value not in op.outputs:
                    read[value].append(current)
            for value in op.outputs:
                written[value] = current
    return sorted(dependences, key=lambda e: (e.first, e.later, e.distance, e.reads))


class Pressure:
    """Registers in use while the instructions of a pass are ordered.

    Args:
        body: the instructions.
        ahead: numbers of the instructions that belong to the next iteration.
        pinned: values that keep their registers for the whole loop.
        registers: number of registers in each bank.
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
        # Values from the previous pass: instructions that are not ahead use them first.
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
        """True if there are registers for the instruction's new values."""
        needed = 0
        for value in self._values[op.number]:
            if value not in self._live:
                # All new values of an instruction are in one register file.
                needed += value.size
                if needed > self._free[value.bank]:
                    return False
        return True

    def take(self, op: Op) -> None:
        """Reserve and release registers for an instruction that is next."""
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
    """Return the number of the best next instruction; None if no registers are left."""
    now, best = ready[0][0], None
    for due, number in ready:
        if due > now + window[1]:
            break
        op = body[number]
        if not pressure.allows(op):
            continue
        delay, arithmetic, switches, other = clock.preference(number)
        # An instruction that is not due soon must not delay arithmetic.
        if due > now + window[0] and (arithmetic or delay):
            continue
        key = (delay, arithmetic, due > now + SLACK, switches, other, due, number)
        if best is None or key < best:
            best = key
    return best[-1] if best else None


class Scheduler:
    """Scheduler of a loop body for a machine."""

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
        """Return the cycle of an iteration at which each instruction should start.

        Arithmetic keeps the order of the description; an operand is due a latency before its use.
        """
        due, total = [], 0.0
        for op in self.body:
            timing = self.machine.timing(op)
            due.append(total if timing.unit == ARITHMETIC else math.inf)
            total += timing.taken if timing.unit == ARITHMETIC else 0.0
        self._length = total
        inside = [edge for edge in self.edges if edge.distance == 0]
        for edge in sorted(inside, key=lambda e: -e.first):
            timing = self.machine.timing(self.body[edge.first])
            # Start instructions with a long latency and short occupancy earlier.
            early = margin if timing.latency > 2 * timing.taken > 0 else 0
            latency = timing.latency + early if edge.reads else 0
            due[edge.first] = min(due[edge.first], due[edge.later] - latency)
        # An instruction without dependents, such as a store, follows its operands.
        ends = [at == math.inf for at in due]
        for edge in sorted(inside, key=lambda e: e.later):
            if ends[edge.later]:
                latency = self.machine.timing(self.body[edge.first]).latency if edge.reads else 0
                known = due[edge.later] if due[edge.later] < math.inf else -math.inf
                due[edge.later] = max(known, due[edge.first] + latency)
        first = min(due)
        return [total if at == math.inf else at - first for at in due]

    def orders(self, heads: Sequence[float], windows: Sequence[tuple[float, float]]) -> list[Order]:
        """Return possible orders, best first; the last one is that of the description.

        Args:
            heads: numbers of cycles of an iteration that run ahead.
            windows: cycles by which arithmetic, and instructions in parallel, may run before more
                urgent ones.
        """
        candidates = []
        tries = list(itertools.product(heads, windows, self._due, (False, True)))
        # Long bodies take longer to order, and gain less from their ends.
        for head, window, due, strict in tries[:: 1 + len(self.body) // 300 * 2]:
            ahead = frozenset(op.number for op in self.body if due[op.number] < head)
            if ops := self._list(ahead, window, due, strict):
                candidates.append(self._order(ops, ahead))
        candidates.sort(key=lambda order: order.rank)
        # The description's own order needs the fewest registers.
        return [*candidates, self._order(self.body, frozenset())]

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
        """Return an order by list scheduling; empty if an instruction finds no registers."""
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
        """Return cycles and vector type changes of an iteration in the steady state.

        With ``strict``, results become ready in the order of issue, see :class:`Clock`.
        """
        clock = Clock(self._program, strict)
        ends = []
        for _ in range(3):
            for op in ops:
                at = clock.issue(op.number)
            ends.append((at, clock.switched))
        return ends[2][0] - ends[1][0], ends[2][1] - ends[1][1]
