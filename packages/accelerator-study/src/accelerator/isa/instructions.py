# SPDX-License-Identifier: Apache-2.0
"""VTA's instructions and micro-ops, and the queues that run them.

Three queues run side by side, each in its own order: LOAD fills the input and weight buffers,
COMPUTE runs GEMM, ALU and the loads of micro-ops and accumulators, STORE writes results. A queue
exchanges tokens with the previous and the next queue; an instruction may wait for a token of either
queue (pop), and send a token to either queue at its end (push).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

from accelerator.device import INSTRUCTION_BITS, MemoryId

INSTRUCTION_BYTES = INSTRUCTION_BITS // 8
MOST_COLUMNS = (1 << 16) - 1


class Opcode(IntEnum):
    """The kind of an instruction."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class AluOp(IntEnum):
    """An ALU operation on 32-bit integers that wrap around; a negative SHR shifts left."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Queue(IntEnum):
    """A unit that runs instructions in order; tokens pass between neighbours."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


@dataclass(frozen=True)
class Tokens:
    """The tokens that an instruction waits for and sends; prev is the queue before its queue."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    def __str__(self) -> str:
        return " ".join(f.name.replace("_", "-") for f in fields(self) if getattr(self, f.name))


NO_TOKENS = Tokens()


@dataclass(frozen=True)
class Transfer:
    """LOAD or STORE: ``rows`` of ``columns`` elements, ``stride`` apart in DRAM, dense on chip.

    Addresses are in elements of the buffer. Padding is zeros around the loaded elements.
    """

    opcode: Opcode
    memory: MemoryId
    sram: int
    dram: int
    rows: int
    columns: int
    stride: int
    pad_above: int = 0
    pad_below: int = 0
    pad_left: int = 0
    pad_right: int = 0
    tokens: Tokens = NO_TOKENS

    @property
    def pitch(self) -> int:
        """The elements of a row on chip, with padding."""
        return self.pad_left + self.columns + self.pad_right

    @property
    def elements(self) -> int:
        """The elements written or read on chip, with padding; 0 if the transfer moves nothing."""
        if not self.columns:
            return 0
        return self.pitch * (self.pad_above + self.rows + self.pad_below)


@dataclass(frozen=True)
class Loop:
    """Two nested loops over micro-ops ``begin`` to ``end``, and their increments of indices."""

    begin: int
    end: int
    outer: int
    inner: int
    dst_outer: int = 0
    dst_inner: int = 0
    src_outer: int = 0
    src_inner: int = 0

    @property
    def steps(self) -> int:
        """The number of steps of the core: micro-ops times iterations."""
        return max(0, self.end - self.begin) * self.outer * self.inner


@dataclass(frozen=True)
class Multiply:
    """GEMM: add products of input and weight blocks to accumulators, or zero accumulators."""

    loop: Loop
    wgt_outer: int = 0
    wgt_inner: int = 0
    reset: bool = False
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True)
class Arithmetic:
    """ALU: ``dst = dst OP src`` on accumulators, or ``dst = dst OP immediate``."""

    loop: Loop
    op: AluOp
    immediate: int | None = None
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True)
class Finish:
    """FINISH: the end of a stream."""

    tokens: Tokens = NO_TOKENS


Instruction = Transfer | Multiply | Arithmetic | Finish


@dataclass(frozen=True)
class MicroOp:
    """The indices of a step: accumulator, input (for the ALU: accumulator), weight."""

    dst: int
    src: int = 0
    wgt: int = 0


def queue_of(instruction: Instruction) -> Queue:
    """Return the queue that runs an instruction."""
    if isinstance(instruction, Transfer):
        if instruction.opcode is Opcode.STORE:
            return Queue.STORE
        if instruction.memory in (MemoryId.INPUT, MemoryId.WEIGHT):
            return Queue.LOAD
    return Queue.COMPUTE


def edges(instruction: Instruction) -> tuple[list[Queue], list[Queue]]:
    """Return the queues from which an instruction pops tokens, and to which it pushes."""
    here, tokens = queue_of(instruction), instruction.tokens
    pops = [Queue(here + step) for step, f in ((-1, tokens.pop_prev), (1, tokens.pop_next)) if f]
    pushes = [
        Queue(here + step) for step, f in ((-1, tokens.push_prev), (1, tokens.push_next)) if f
    ]
    return pops, pushes
