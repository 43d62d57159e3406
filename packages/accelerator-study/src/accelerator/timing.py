# SPDX-License-Identifier: Apache-2.0
"""Cycle-approximate simulator: three queues, their tokens, and the memory that the queues share.

Each queue runs one instruction at a time, in order. An instruction begins when its tokens are
there. A transfer waits for the memory's latency, then moves its bytes; simultaneous transfers share
the bandwidth equally. A step of the GEMM core or the ALU takes its interval, and a second addition
to a sum waits until the pipeline has written the sum. Every buffer has a port to the memory and a
port to the core, as in VTA, so these two do not wait for each other. The simulator leaves out the
fetching of instructions and the waiting of a full queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError
from accelerator.isa.instructions import (
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    Multiply,
    Queue,
    Transfer,
    edges,
    queue_of,
)

_ALMOST = 1e-6  # bytes or cycles below this are rounding errors


class Cause(StrEnum):
    """The reason for which cycles pass in a queue."""

    MULTIPLY = "multiply"
    RESET = "reset"
    ALU = "alu"
    MOVE = "move"
    LATENCY = "latency"
    SHARING = "sharing memory"
    WAIT_LOAD = "waits for LOAD"
    WAIT_COMPUTE = "waits for COMPUTE"
    WAIT_STORE = "waits for STORE"
    DONE = "done"


_WAITS = (Cause.WAIT_LOAD, Cause.WAIT_COMPUTE, Cause.WAIT_STORE)


@dataclass(frozen=True)
class Span:
    """The begin and end of an instruction, in cycles from the start of the stream."""

    index: int
    queue: Queue
    begin: float
    end: float


@dataclass(frozen=True)
class Timing:
    """The cycles and traffic of a simulated run.

    Attributes:
        cycles: from the first instruction to the end of the last instruction.
        spent: cycles by queue and cause; the sum of each queue is ``cycles``.
        moved: bytes of DRAM, read or written, by buffer.
        spans: instructions in the order in which they ended.
    """

    cycles: float
    spent: dict[Queue, dict[Cause, float]]
    moved: dict[MemoryId, int]
    spans: tuple[Span, ...]

    @property
    def bytes(self) -> int:
        """The bytes of DRAM, read and written."""
        return sum(self.moved.values())

    @property
    def utilisation(self) -> float:
        """The part of the time in which the GEMM core multiplies."""
        return self.spent[Queue.COMPUTE][Cause.MULTIPLY] / self.cycles


def bytes_of(transfer: Transfer, device: Device) -> int:
    """Return the bytes that a transfer moves in DRAM."""
    return transfer.rows * transfer.columns * device.element(transfer.memory)


def core_cycles(instruction: Multiply | Arithmetic, device: Device) -> tuple[int, int]:
    """Return a core's cycles of work on an instruction, and of waiting for its own pipeline."""
    match instruction:
        case Arithmetic(loop=loop, immediate=immediate):
            each = device.alu_interval if immediate is None else device.alu_immediate
            return loop.steps * each, 0
        case Multiply(loop=loop, reset=True):
            return loop.steps * device.gemm_interval, 0
        case Multiply(loop=loop):
            work = loop.steps * device.gemm_interval
            return work, _pipelined(loop, device) - work


def _pipelined(loop: Loop, device: Device) -> int:
    """Return the cycles of a GEMM, with waits for sums that the pipeline has not written."""
    if not loop.steps:
        return 0
    cycles = (loop.end - loop.begin) * device.gemm_interval
    for times, factor in ((loop.inner, loop.dst_inner), (loop.outer, loop.dst_outer)):
        revisits = times > 1 and factor == 0
        cycles = times * (max(cycles, device.gemm_latency) if revisits else cycles)
    return cycles + device.gemm_latency - 1


@dataclass
class _Unit:
    """The state of a queue: its instructions, and the times of the running instruction."""

    queue: Queue
    instructions: deque[tuple[int, Instruction]] = field(default_factory=deque)
    spent: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    running: bool = False
    waiting: Cause | None = None
    begin: float = 0.0
    since: float = 0.0  # end of the time in ``spent``
    until: float = 0.0  # end of latency, or of the core's work
    left: float = 0.0  # bytes of the transfer still to move

    @property
    def head(self) -> Instruction:
        """The instruction that runs, or waits."""
        return self.instructions[0][1]


class _Run:
    def __init__(self, instructions: Sequence[Instruction], device: Device) -> None:
        self.device = device
        self.now = 0.0
        self.units = {queue: _Unit(queue) for queue in Queue}
        self.tokens = {(a, b): 0 for a in Queue for b in Queue if abs(a - b) == 1}
        self.moved = dict.fromkeys(MemoryId, 0)
        self.spans: list[Span] = []
        for index, instruction in enumerate(instructions):
            self.units[queue_of(instruction)].instructions.append((index, instruction))

    def finish(self) -> Timing:
        """Run all instructions and return their timing."""
        while any(unit.instructions for unit in self.units.values()):
            for unit in self.units.values():
                self._try_begin(unit)
            running = [unit for unit in self.units.values() if unit.running]
            if not running:
                raise AcceleratorError(self._deadlock())
            self._advance(running)
        for unit in self.units.values():
            unit.spent[Cause.DONE] += self.now - unit.since
        spent = {unit.queue: unit.spent for unit in self.units.values()}
        return Timing(self.now, spent, self.moved, tuple(self.spans))

    def _missing(self, unit: _Unit) -> Queue | None:
        """Return the first neighbour whose token the unit's next instruction needs and lacks."""
        pops, _ = edges(unit.head)
        return next((there for there in pops if not self.tokens[there, unit.queue]), None)

    def _try_begin(self, unit: _Unit) -> None:
        """Begin a unit's next instruction if the instruction's tokens are there."""
        if unit.running or not unit.instructions:
            return
        if unit.waiting is not None:
            unit.spent[unit.waiting] += self.now - unit.since
        missing = self._missing(unit)
        unit.waiting = None if missing is None else _WAITS[missing]
        unit.since = self.now
        if missing is None:
            self._begin(unit)

    def _begin(self, unit: _Unit) -> None:
        instruction = unit.head
        for there in edges(instruction)[0]:
            self.tokens[there, unit.queue] -= 1
        unit.running, unit.begin, unit.left = True, self.now, 0.0
        match instruction:
            case Transfer():
                size = bytes_of(instruction, self.device)
                unit.left = float(size)
                unit.until = self.now + (self.device.dram_latency if size else 0)
                self.moved[instruction.memory] += size
            case Multiply() | Arithmetic():
                unit.until = self.now + sum(core_cycles(instruction, self.device))
            case Finish():
                unit.until = self.now

    def _advance(self, running: list[_Unit]) -> None:
        """Go to the next time at which a latency, a transfer or a core's work ends."""
        moving = [u for u in running if u.until <= self.now + _ALMOST and u.left > _ALMOST]
        rate = self.device.dram_bandwidth / max(1, len(moving))
        ends = [u.until for u in running if u.until > self.now + _ALMOST]
        ends += [self.now + u.left / rate for u in moving]
        after = min(ends, default=self.now)
        for unit in moving:
            unit.left -= rate * (after - self.now)
        self.now = after
        for unit in running:
            if unit.until <= self.now + _ALMOST and unit.left <= _ALMOST:
                self._end(unit)

    def _end(self, unit: _Unit) -> None:
        index, instruction = unit.instructions.popleft()
        took = self.now - unit.begin
        match instruction:
            case Transfer():
                size = bytes_of(instruction, self.device)
                latency = self.device.dram_latency if size else 0
                alone = size / self.device.dram_bandwidth
                unit.spent[Cause.LATENCY] += latency
                unit.spent[Cause.MOVE] += alone
                unit.spent[Cause.SHARING] += took - latency - alone
            case Multiply():
                work, waits = core_cycles(instruction, self.device)
                unit.spent[Cause.RESET if instruction.reset else Cause.MULTIPLY] += work
                unit.spent[Cause.LATENCY] += waits
            case Arithmetic():
                unit.spent[Cause.ALU] += took
        for there in edges(instruction)[1]:
            self.tokens[unit.queue, there] += 1
        unit.running, unit.since = False, self.now
        self.spans.append(Span(index, unit.queue, unit.begin, self.now))

    def _deadlock(self) -> str:
        waits = []
        for unit in self.units.values():
            missing = self._missing(unit) if unit.instructions else None
            if missing is not None:
                where = f"instruction {unit.instructions[0][0]} of {unit.queue.name}"
                waits.append(f"{where} waits for a token from {missing.name}")
        return f"deadlock: {'; '.join(waits)}"


def simulate(instructions: Sequence[Instruction], device: Device) -> Timing:
    """Return the timing of a stream; operands and micro-ops do not affect it.

    Raises:
        AcceleratorError: a deadlock; the message names the instructions and the tokens.
    """
    return _Run(instructions, device).finish()


def label(instruction: Instruction) -> str:
    """Return the name of an instruction in a timeline."""
    match instruction:
        case Transfer(opcode=opcode, memory=memory):
            return f"{opcode.name} {memory.name}"
        case Multiply(reset=reset):
            return "RESET" if reset else "GEMM"
        case Arithmetic(op=op):
            return op.name
        case Finish():
            return "FINISH"


LAYERS = len(Queue)  # number of the timeline's row with the layers


def timeline(parts: Iterable[tuple[str, Sequence[Instruction], Timing]]) -> dict[str, object]:
    """Return runs one after the other in Chrome's trace format; a cycle appears as a microsecond.

    Times are rounded to thousandths, Perfetto's nanoseconds: if Perfetto rounded them, slices could
    overlap, and Perfetto drops overlapping slices.

    Args:
        parts: name, instructions and timing of each layer.
    """
    rows = [*((int(queue), queue.name) for queue in Queue), (LAYERS, "layer")]
    events: list[dict[str, object]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": n, "args": {"name": name}}
        for n, name in rows
    ]

    def add(name: str, row: int, begin: float, end: float, about: dict[str, object]) -> None:
        begin, end = round(begin, 3), round(end, 3)
        times = {"ts": begin, "dur": round(end - begin, 3)}
        events.append({"name": name, "ph": "X", "pid": 0, "tid": row, **times, "args": about})

    start = 0.0
    for layer, instructions, timing in parts:
        for span in timing.spans:
            instruction = instructions[span.index]
            ends = start + span.begin, start + span.end
            about = {"instruction": span.index, "tokens": str(instruction.tokens)}
            add(label(instruction), int(span.queue), *ends, about)
        add(layer, LAYERS, start, start + timing.cycles, {})
        start += timing.cycles
    return {"displayTimeUnit": "ms", "traceEvents": events}
