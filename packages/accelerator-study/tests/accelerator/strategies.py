# SPDX-License-Identifier: Apache-2.0
"""Random instructions and programs for a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from accelerator.device import Device, MemoryId
from accelerator.isa.encoding import encode, encode_micro_ops
from accelerator.isa.instructions import (
    AluOp,
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    MicroOp,
    Multiply,
    Opcode,
    Tokens,
    Transfer,
    queue_of,
)
from accelerator.isa.tokens import Operation, with_tokens

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


PLACES = 48  # elements of each buffer that random programs use
REGION = 1 << 16  # bytes of DRAM for each buffer
BUFFERS = (MemoryId.MICRO_OP, MemoryId.WEIGHT, MemoryId.INPUT, MemoryId.ACCUMULATOR)
OUTPUT_AT = (1 + len(BUFFERS)) * REGION
MEMORY_BYTES = OUTPUT_AT + 2 * REGION


@st.composite
def programs(draw: st.DrawFn, device: Device) -> tuple[bytes, bytes]:
    """A stream that is in order, and memory for it: all buffers filled, then random work."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    memory = bytearray(random.integers(0, 256, MEMORY_BYTES, dtype=np.uint8).tobytes())
    indices = random.integers(0, PLACES // 2, (PLACES, 3)).tolist()
    code = encode_micro_ops([MicroOp(*each) for each in indices], device)
    memory[REGION : REGION + len(code)] = code
    listed: list[Instruction] = [_load(device, buffer, 0, PLACES) for buffer in BUFFERS]
    for _ in range(draw(st.integers(1, 6))):
        listed.append(draw(_work(device)))
    out = device.element(MemoryId.OUTPUT)
    listed.append(Transfer(Opcode.STORE, MemoryId.OUTPUT, 0, OUTPUT_AT // out, 4, 12, 13))
    operations = []
    for index, instruction in enumerate([*listed, Finish()]):
        near = [n for n in range(index) if abs(_queue(listed, n) - queue_of(instruction)) <= 1]
        operations.append(Operation(instruction, tuple(near)))
    return encode(with_tokens(operations), device), bytes(memory)


def _queue(listed: list[Instruction], index: int) -> int:
    return queue_of(listed[index])


def _load(device: Device, buffer: MemoryId, sram: int, columns: int) -> Transfer:
    plain = BUFFERS.index(MemoryId.ACCUMULATOR if buffer is MemoryId.ACCUMULATOR_8BIT else buffer)
    dram = (1 + plain) * REGION // device.element(buffer)
    return Transfer(Opcode.LOAD, buffer, sram, dram, 1, columns, columns)


@st.composite
def _work(draw: st.DrawFn, device: Device) -> Instruction:
    kind = draw(st.sampled_from(["load", "gemm", "alu"]))
    if kind == "load":
        buffer = draw(st.sampled_from([b for b in LOADABLE if b is not MemoryId.MICRO_OP]))
        pads = [draw(st.integers(0, 2)) for _ in range(4)]
        rows, columns = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        plain = _load(device, buffer, draw(st.integers(0, 3)), 1)
        return replace(
            plain,
            rows=rows,
            columns=columns,
            stride=draw(st.integers(0, 4)),
            pad_above=pads[0],
            pad_below=pads[1],
            pad_left=pads[2],
            pad_right=pads[3],
        )
    begin = draw(st.integers(0, PLACES))
    factors = [draw(st.integers(0, 3)) for _ in range(4)]
    loop = Loop(
        begin,
        draw(st.integers(begin, PLACES)),
        draw(st.integers(0, 4)),
        draw(st.integers(0, 4)),
        *factors,
    )
    if kind == "gemm":
        weights = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        return Multiply(loop, *weights, draw(st.booleans()))
    op = draw(st.sampled_from(AluOp))
    most = 31 if op is AluOp.SHR else 32767
    immediate = draw(st.integers(-most, most))
    register = op is not AluOp.SHR and draw(st.booleans())
    return Arithmetic(loop, op, None if register else immediate)
