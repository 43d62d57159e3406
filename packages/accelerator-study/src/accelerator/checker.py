# SPDX-License-Identifier: Apache-2.0
"""Proof that a stream neither deadlocks nor races, independent of its instructions' times.

Between two neighbouring queues, one alone pushes and one alone pops, both in order: the n-th pop
takes the n-th push on every run. So the order that tokens enforce is known before anything runs.
Tokens and the order of each queue make a graph; a pop without its push or a circle is a deadlock.
Each instruction then carries a clock, how far each queue must be when it starts. Two accesses to
one place, at least one a write, race where neither is before the other by these clocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from accelerator.device import Device, MemoryId
from accelerator.errors import AcceleratorError, StreamError
from accelerator.isa.encoding import decode, decode_micro_ops
from accelerator.isa.instructions import (
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    Multiply,
    Opcode,
    Queue,
    Transfer,
    edges,
    queue_of,
)

Indices = npt.NDArray[np.int64]
NEVER = -1
_BUFFERS = (MemoryId.MICRO_OP, MemoryId.WEIGHT, MemoryId.INPUT, MemoryId.ACCUMULATOR)
_ALIASES = {
    MemoryId.OUTPUT: MemoryId.ACCUMULATOR,
    MemoryId.ACCUMULATOR_8BIT: MemoryId.ACCUMULATOR,
}


@dataclass(frozen=True)
class _Access:
    """The elements of an on-chip buffer that an instruction reads or writes."""

    buffer: MemoryId
    elements: Indices
    write: bool


def check(stream: bytes, device: Device, memory: bytes | bytearray) -> tuple[Instruction, ...]:
    """Prove that a stream has no deadlock, race, overrun or read of unwritten data.

    Args:
        stream: encoded instructions.
        device: its buffers.
        memory: DRAM from address 0 before the run; the check reads its micro-ops.

    Returns:
        the decoded instructions.

    Raises:
        StreamError: an instruction has a bad encoding, waits for a token that never comes,
            overruns a buffer, has an address outside of memory, reads an element that was never
            written, or races with another instruction, which the message names.
        AcceleratorError: tokens are left over, or the stream does not end with FINISH.
    """
    instructions = decode(stream, device)
    if not instructions or not isinstance(instructions[-1], Finish):
        raise AcceleratorError("the stream does not end with FINISH")
    order, clocks = _clocks(instructions, _matched(instructions))
    _check_end(instructions, clocks)
    state = _State(device, instructions, clocks, memory)
    for index in order:
        state.visit(index)
    return tuple(instructions)


def _matched(instructions: Sequence[Instruction]) -> dict[int, list[int]]:
    """Return the producers of each instruction's popped tokens.

    Raises:
        StreamError: an instruction pops a token that no instruction pushes.
        AcceleratorError: an instruction pushes a token that no instruction pops.
    """
    pushed: dict[tuple[Queue, Queue], deque[int]] = defaultdict(deque)
    for index, instruction in enumerate(instructions):
        for there in edges(instruction)[1]:
            pushed[queue_of(instruction), there].append(index)
    pairs: dict[int, list[int]] = {}
    for index, instruction in enumerate(instructions):
        here = queue_of(instruction)
        for there in edges(instruction)[0]:
            tokens = pushed[there, here]
            if not tokens:
                reason = f"{here.name} waits for a token from {there.name} that nothing pushes"
                raise StreamError(index, f"deadlock: {reason}")
            pairs.setdefault(index, []).append(tokens.popleft())
    for (there, here), tokens in pushed.items():
        if tokens:
            reason = f"the token of instruction {tokens[0]} from {there.name} to {here.name}"
            raise AcceleratorError(f"{reason} is left over: nothing pops it")
    return pairs


def _clocks(
    instructions: Sequence[Instruction], pairs: dict[int, list[int]]
) -> tuple[list[int], Indices]:
    """Return an order that obeys all tokens, and each instruction's last predecessor per queue.

    Clocks [instructions, queues] hold stream positions; :data:`NEVER` is before a queue's begin.

    Raises:
        StreamError: instructions wait for each other.
    """
    clocks = np.full((len(instructions), len(Queue)), NEVER, dtype=np.int64)
    queues: list[list[int]] = [[] for _ in Queue]
    for index, instruction in enumerate(instructions):
        queues[queue_of(instruction)].append(index)
    done = [False] * len(instructions)
    at = [0] * len(Queue)
    order: list[int] = []
    progress = True
    while progress:
        progress = False
        for queue in Queue:
            while at[queue] < len(queues[queue]):
                index = queues[queue][at[queue]]
                needed = list(pairs.get(index, ()))
                if not all(done[n] for n in needed):
                    break
                if at[queue]:
                    needed.append(queues[queue][at[queue] - 1])
                for n in needed:
                    clocks[index] = np.maximum(clocks[index], clocks[n])
                    queue_before = queue_of(instructions[n])
                    clocks[index, queue_before] = max(clocks[index, queue_before], n)
                done[index] = progress = True
                order.append(index)
                at[queue] += 1
    stuck = [queues[q][at[q]] for q in Queue if at[q] < len(queues[q])]
    if stuck:
        waits = "; ".join(
            f"instruction {n} of {queue_of(instructions[n]).name} waits for "
            f"{next(p for p in pairs[n] if not done[p])}"
            for n in stuck
        )
        raise StreamError(stuck[0], f"deadlock: {waits}")
    return order, clocks


def _check_end(instructions: Sequence[Instruction], clocks: Indices) -> None:
    """Refuse a stream with several FINISH, or whose last FINISH does not wait for all queues."""
    end = len(instructions) - 1
    for index, instruction in enumerate(instructions[:end]):
        if isinstance(instruction, Finish):
            raise StreamError(index, "FINISH before the end of the stream")
        if clocks[end, queue_of(instruction)] < index:
            queue = queue_of(instruction).name
            reason = f"FINISH does not wait for {queue}, which may still run"
            raise StreamError(index, reason)


@dataclass
class _Ranges:
    """The byte ranges of DRAM that instructions access: rows of first byte and end, ascending."""

    listed: list[tuple[int, Indices]] = field(default_factory=list)
    low: int = 1 << 62
    high: int = 0

    def add(self, index: int, ranges: Indices) -> None:
        """Record the byte ranges that an instruction loads or stores."""
        self.listed.append((index, ranges))
        self.low = min(self.low, int(ranges[0, 0]))
        self.high = max(self.high, int(ranges[-1, 1]))

    def sharing(self, ranges: Indices) -> Iterator[tuple[int, int]]:
        """Yield recorded instructions that overlap ``ranges``, with the first shared address."""
        # Operands and results mostly lie apart: then no ranges need a comparison.
        if self.high <= ranges[0, 0] or ranges[-1, 1] <= self.low:
            return
        for index, recorded in self.listed:
            if ranges[-1, 1] <= recorded[0, 0] or recorded[-1, 1] <= ranges[0, 0]:
                continue
            low = np.maximum(ranges[:, None, 0], recorded[None, :, 0])
            both = low < np.minimum(ranges[:, None, 1], recorded[None, :, 1])
            if both.any():
                yield index, int(low[both].min())


@dataclass
class _State:
    """The accesses so far: for each element and queue, the newest read and the newest write."""

    device: Device
    instructions: Sequence[Instruction]
    clocks: Indices
    memory: bytes | bytearray
    reads: dict[MemoryId, Indices] = field(default_factory=dict)
    writes: dict[MemoryId, Indices] = field(default_factory=dict)
    micro_ops: Indices = field(init=False)
    loaded: _Ranges = field(default_factory=_Ranges)
    stored: _Ranges = field(default_factory=_Ranges)
    # Elements of the loops since the last load of micro-ops, by their fields: a layer repeats few.
    looped: dict[tuple[int, ...], Indices] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for buffer in _BUFFERS:
            shape = (self.device.depth(buffer), len(Queue))
            self.reads[buffer] = np.full(shape, NEVER, dtype=np.int64)
            self.writes[buffer] = np.full(shape, NEVER, dtype=np.int64)
        self.micro_ops = np.zeros((self.device.depth(MemoryId.MICRO_OP), 3), dtype=np.int64)

    def visit(self, index: int) -> None:
        """Check an instruction's accesses against all earlier accesses, and record them."""
        instruction = self.instructions[index]
        if isinstance(instruction, Transfer) and instruction.columns:
            self._dram(index, instruction)
        for access in self._accesses(index, instruction):
            self._access(index, access)
        if isinstance(instruction, Transfer) and instruction.memory is MemoryId.MICRO_OP:
            self._load_micro_ops(index, instruction)

    def _accesses(self, index: int, instruction: Instruction) -> Iterator[_Access]:
        """Yield the on-chip accesses of an instruction, reads before writes.

        Raises:
            StreamError: an element is outside of its buffer.
        """
        match instruction:
            case Transfer(opcode=opcode, memory=memory) if instruction.elements:
                buffer = _ALIASES.get(memory, memory)
                end = instruction.sram + instruction.elements
                self._inside(index, buffer, end - 1)
                yield _Access(buffer, np.arange(instruction.sram, end), opcode is Opcode.LOAD)
            case Multiply(loop=loop) if loop.steps:
                yield _Access(MemoryId.MICRO_OP, np.arange(loop.begin, loop.end), False)
                sums = self._destination(index, loop)
                if not instruction.reset:
                    src = (loop.src_outer, loop.src_inner)
                    yield self._looped(index, MemoryId.INPUT, loop, 1, src)
                    wgt = (instruction.wgt_outer, instruction.wgt_inner)
                    yield self._looped(index, MemoryId.WEIGHT, loop, 2, wgt)
                    yield sums
                yield replace(sums, write=True)
            case Arithmetic(loop=loop, immediate=immediate) if loop.steps:
                yield _Access(MemoryId.MICRO_OP, np.arange(loop.begin, loop.end), False)
                sums = self._destination(index, loop)
                yield sums
                if immediate is None:
                    src = (loop.src_outer, loop.src_inner)
                    yield self._looped(index, MemoryId.ACCUMULATOR, loop, 1, src)
                yield replace(sums, write=True)

    def _destination(self, index: int, loop: Loop) -> _Access:
        factors = (loop.dst_outer, loop.dst_inner)
        return self._looped(index, MemoryId.ACCUMULATOR, loop, 0, factors)

    def _inside(self, index: int, buffer: MemoryId, last: int) -> None:
        depth = self.device.depth(buffer)
        if last >= depth:
            raise StreamError(index, f"{buffer.name} element {last} of {depth}")

    def _looped(
        self, index: int, buffer: MemoryId, loop: Loop, column: int, factors: tuple[int, int]
    ) -> _Access:
        """Return the read of the distinct elements that a loop touches in a buffer.

        Args:
            index: of the instruction.
            buffer: that the loop reads.
            loop: of the instruction.
            column: of the micro-ops: 0 for dst, 1 for src, 2 for wgt.
            factors: of the outer and the inner loop.
        """
        outer, inner = factors
        key = (buffer, column, loop.begin, loop.end, loop.outer, loop.inner, outer, inner)
        if key in self.looped:
            return _Access(buffer, self.looped[key], False)
        base = np.unique(self.micro_ops[loop.begin : loop.end, column])
        last = int(base[-1]) + (loop.outer - 1) * outer + (loop.inner - 1) * inner
        self._inside(index, buffer, last)
        # A factor of zero goes over the same elements again.
        y = np.arange(loop.outer if outer else 1) * outer
        x = np.unique((np.arange(loop.inner if inner else 1) * inner)[:, None] + base)
        self.looped[key] = np.unique(y[:, None] + x)
        return _Access(buffer, self.looped[key], False)

    def _access(self, index: int, access: _Access) -> None:
        reads, writes = self.reads[access.buffer], self.writes[access.buffer]
        touched = writes[access.elements]
        if not access.write:
            missing = np.flatnonzero((touched == NEVER).all(axis=1))
            if len(missing):
                element = access.elements[missing[0]]
                reason = f"reads {access.buffer.name} element {element}, which nothing wrote"
                raise StreamError(index, reason)
        else:
            touched = np.maximum(touched, reads[access.elements])
        this_queue = queue_of(self.instructions[index])
        late = touched > self.clocks[index]
        late[:, this_queue] = False  # a queue runs its own instructions in order
        if late.any():
            element, queue = np.argwhere(late)[0]
            where = f"{access.buffer.name} element {access.elements[element]}"
            raise self._race(index, int(touched[element, queue]), where)
        (writes if access.write else reads)[access.elements, this_queue] = index

    def _race(self, index: int, other: int, where: str) -> StreamError:
        first, second = sorted((index, other))
        queues = [queue_of(self.instructions[n]).name for n in (first, second)]
        reason = f"race with instruction {first} at {where}: no token orders"
        return StreamError(second, f"{reason} {queues[1]} after {queues[0]}")

    def _dram(self, index: int, transfer: Transfer) -> None:
        """Check that a transfer's addresses are in DRAM and do not race with earlier transfers."""
        element = self.device.element(transfer.memory)
        rows = np.arange(transfer.rows, dtype=np.int64)[:, None]
        size = transfer.columns * element
        begins = (transfer.dram + rows * transfer.stride) * element
        ranges = np.hstack([begins, begins + size])
        end = int(ranges.max()) if len(ranges) else transfer.dram * element
        if end > len(self.memory):
            reason = f"address {end} is outside of memory, which has {len(self.memory)} bytes"
            raise StreamError(index, reason)
        if not len(ranges):
            return
        store = transfer.opcode is Opcode.STORE
        for other, address in (self.loaded if store else self.stored).sharing(ranges):
            queue = queue_of(self.instructions[other])
            if self.clocks[index, queue] < other:
                raise self._race(index, other, f"DRAM address {address:#x}")
        (self.stored if store else self.loaded).add(index, ranges)

    def _load_micro_ops(self, index: int, transfer: Transfer) -> None:
        """Keep the micro-ops that an instruction loads; refuse those that the stream stored."""
        if not transfer.elements:
            return
        element = self.device.element(MemoryId.MICRO_OP)
        micro_ops = np.zeros((transfer.elements, 3), dtype=np.int64)
        for row in range(transfer.rows):
            at = (transfer.dram + row * transfer.stride) * element
            data = bytes(self.memory[at : at + transfer.columns * element])
            for other, address in self.stored.sharing(np.array([[at, at + len(data)]])):
                reason = f"loads micro-ops at {address:#x} that instruction {other} stored"
                raise StreamError(index, f"{reason}: nothing can be proved")
            first = (transfer.pad_above + row) * transfer.pitch + transfer.pad_left
            try:
                micro_ops[first : first + transfer.columns] = decode_micro_ops(data, self.device)
            except AcceleratorError as error:
                raise StreamError(index, error.what) from error
        self.micro_ops[transfer.sram : transfer.sram + transfer.elements] = micro_ops
        self.looped.clear()
