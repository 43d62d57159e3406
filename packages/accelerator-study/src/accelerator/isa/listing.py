# SPDX-License-Identifier: Apache-2.0
"""A stream as text, an instruction a line."""

from __future__ import annotations

from accelerator.device import Device, MemoryId
from accelerator.isa.encoding import decode
from accelerator.isa.instructions import (
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    Multiply,
    Opcode,
    Transfer,
    queue_of,
)

_SHORT = {
    MemoryId.MICRO_OP: "uop",
    MemoryId.WEIGHT: "wgt",
    MemoryId.INPUT: "inp",
    MemoryId.ACCUMULATOR: "acc",
    MemoryId.OUTPUT: "out",
    MemoryId.ACCUMULATOR_8BIT: "acc8",
}


def text_of(instruction: Instruction, device: Device) -> str:
    """Return an instruction as a line of text, without its position."""
    match instruction:
        case Transfer(opcode=opcode, memory=memory):
            address = instruction.dram * device.element(memory)
            name, end = _SHORT[memory], instruction.sram + instruction.elements
            arrow = "<-" if opcode is Opcode.LOAD else "->"
            size = f"{instruction.rows}x{instruction.columns}/{instruction.stride}"
            pads = [n for name, n in vars(instruction).items() if name.startswith("pad_")]
            padding = f" pad {','.join(map(str, pads))}" if any(pads) else ""
            body = f"{name}[{instruction.sram}:{end}] {arrow} {address:#010x} {size}{padding}"
            word = opcode.name.lower()
        case Multiply(loop=loop):
            word = "reset" if instruction.reset else "gemm"
            body = _loop_text(loop)
            if not instruction.reset:
                body += f" wgt+{instruction.wgt_outer},{instruction.wgt_inner}"
        case Arithmetic(loop=loop, op=op, immediate=immediate):
            word = op.name.lower()
            body = f"{'' if immediate is None else f'{immediate} '}{_loop_text(loop)}"
        case Finish():
            word, body = "finish", ""
    return f"{word:<7}{body:<62} {instruction.tokens}".rstrip()


def _loop_text(loop: Loop) -> str:
    steps = f"{loop.outer}x{loop.inner}xuop[{loop.begin}:{loop.end}]"
    return f"{steps} dst+{loop.dst_outer},{loop.dst_inner} src+{loop.src_outer},{loop.src_inner}"


def disassemble(stream: bytes, device: Device) -> str:
    """Return a stream as text, an instruction a line.

    Raises:
        StreamError: :func:`decode` refuses an instruction.
    """
    return "".join(
        f"{n:6}  {queue_of(i).name.lower():<8}{text_of(i, device)}\n"
        for n, i in enumerate(decode(stream, device))
    )
