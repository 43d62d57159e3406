# SPDX-License-Identifier: Apache-2.0
"""Random instructions for a device."""

from __future__ import annotations

from hypothesis import strategies as st

from accelerator.device import Device, MemoryId
from accelerator.isa import (
    AluOp,
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    Multiply,
    Opcode,
    Tokens,
    Transfer,
)

LOADABLE = [m for m in MemoryId if m is not MemoryId.OUTPUT]


def _bits(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1)


@st.composite
def instructions(draw: st.DrawFn, device: Device) -> Instruction:
    """An instruction that :func:`accelerator.isa.encode` takes."""
    opcode = draw(st.sampled_from(Opcode))
    flags = [draw(st.booleans()) for _ in range(4)]
    if opcode is Opcode.FINISH:
        return Finish(Tokens(*flags))
    if opcode in (Opcode.LOAD, Opcode.STORE):
        load = opcode is Opcode.LOAD
        memory = draw(st.sampled_from(LOADABLE)) if load else MemoryId.OUTPUT
        first = load and memory in (MemoryId.INPUT, MemoryId.WEIGHT)
        tokens = Tokens(
            flags[0] and not first, flags[1] and load, flags[2] and not first, flags[3] and load
        )
        pads = [draw(_bits(4)) if load else 0 for _ in range(4)]
        sizes = [draw(_bits(16)) for _ in range(3)]
        return Transfer(opcode, memory, draw(_bits(16)), draw(_bits(32)), *sizes, *pads, tokens)
    sums, value, weight = (
        device.address_bits(m) for m in (MemoryId.ACCUMULATOR, MemoryId.INPUT, MemoryId.WEIGHT)
    )
    src = sums if opcode is Opcode.ALU else value
    depth = device.depth(MemoryId.MICRO_OP)
    begin = draw(st.integers(0, depth - 1))
    loop = Loop(
        begin,
        draw(st.integers(begin, depth)),
        *(draw(_bits(w)) for w in (14, 14, sums, sums, src, src)),
    )
    if opcode is Opcode.GEMM:
        steps = draw(_bits(weight)), draw(_bits(weight))
        return Multiply(loop, *steps, draw(st.booleans()), Tokens(*flags))
    op = draw(st.sampled_from(AluOp))
    most = 31 if op is AluOp.SHR else 32767
    immediate = draw(st.none() | st.integers(-most, most))
    return Arithmetic(loop, op, immediate, Tokens(*flags))
