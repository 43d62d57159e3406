# SPDX-License-Identifier: Apache-2.0
"""Encodings of instructions (16 bytes) and micro-ops (4 bytes): little-endian, as C bit fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from accelerator.device import (
    DRAM_ADDRESS_BITS,
    SRAM_ADDRESS_BITS,
    WORD_BITS,
    Device,
    MemoryId,
)
from accelerator.errors import AcceleratorError, StreamError
from accelerator.isa.instructions import (
    INSTRUCTION_BYTES,
    AluOp,
    Arithmetic,
    Finish,
    Instruction,
    Loop,
    MicroOp,
    Multiply,
    Opcode,
    Queue,
    Tokens,
    Transfer,
    queue_of,
)

OPCODE_BITS = 3
MOST_SHIFT = 31
IMMEDIATE_BITS = 16

_TOKEN_FIELDS = tuple((f.name, 1) for f in fields(Tokens))
_TRANSFER = (
    ("memory", 3),
    ("sram", SRAM_ADDRESS_BITS),
    ("dram", DRAM_ADDRESS_BITS),
    *((name, 16) for name in ("rows", "columns", "stride")),
    *((name, 4) for name in ("pad_above", "pad_below", "pad_left", "pad_right")),
)


def _loop_fields(device: Device) -> tuple[tuple[str, int], ...]:
    micro = device.address_bits(MemoryId.MICRO_OP)
    return (("reset", 1), ("begin", micro), ("end", micro + 1), ("outer", 14), ("inner", 14))


def _fields(opcode: Opcode, device: Device) -> tuple[tuple[str, int], ...]:
    """Return names and widths of the fields after the opcode, in the order of the encoding."""
    sums = device.address_bits(MemoryId.ACCUMULATOR)
    value = device.address_bits(MemoryId.INPUT)
    weight = device.address_bits(MemoryId.WEIGHT)
    dst = (("dst_outer", sums), ("dst_inner", sums))
    match opcode:
        case Opcode.LOAD | Opcode.STORE:
            rest = _TRANSFER
        case Opcode.GEMM:
            src = (("src_outer", value), ("src_inner", value))
            rest = (*_loop_fields(device), *dst, *src, ("wgt_outer", weight), ("wgt_inner", weight))
        case Opcode.ALU:
            src = (("src_outer", sums), ("src_inner", sums))
            end = (("op", 3), ("use_immediate", 1), ("immediate", IMMEDIATE_BITS))
            rest = (*_loop_fields(device), *dst, *src, *end)
        case Opcode.FINISH:
            rest = ()
    return (*_TOKEN_FIELDS, *rest)


@lru_cache
def _places(opcode: Opcode, device: Device) -> tuple[tuple[str, int, int], ...]:
    """Return name, first bit and width of each field; a field lies within a 64-bit word."""
    at, places = OPCODE_BITS, []
    for name, width in _fields(opcode, device):
        if at // WORD_BITS != (at + width - 1) // WORD_BITS:
            at = -(-at // WORD_BITS) * WORD_BITS
        places.append((name, at, width))
        at += width
    return tuple(places)


def _values(instruction: Instruction) -> tuple[Opcode, dict[str, Any]]:
    """Return the opcode of an instruction, and the values of its fields among others."""
    loop = vars(getattr(instruction, "loop", instruction))
    values = {**vars(instruction.tokens), **loop, **vars(instruction)}
    match instruction:
        case Transfer(opcode=opcode):
            return opcode, values
        case Multiply():
            return Opcode.GEMM, values
        case Arithmetic(immediate=immediate):
            used = {"use_immediate": immediate is not None, "immediate": immediate or 0}
            return Opcode.ALU, {**values, "reset": 0, **used}
        case Finish():
            return Opcode.FINISH, values


def encode(instructions: Iterable[Instruction], device: Device) -> bytes:
    """Return the stream of instructions, 16 bytes each.

    Raises:
        StreamError: a value does not fit its field, or :func:`decode` would refuse it.
    """
    words = []
    for index, instruction in enumerate(instructions):
        opcode, values = _values(instruction)
        word = int(opcode)
        for name, at, width in _places(opcode, device):
            value = int(values[name])
            low, high = (
                (-(1 << (width - 1)), 1 << (width - 1)) if name == "immediate" else (0, 1 << width)
            )
            if not low <= value < high:
                raise StreamError(
                    index, f"{opcode.name} {name} is {value}, which does not fit in {width} bits"
                )
            word |= (value & ((1 << width) - 1)) << at
        _refuse(index, instruction, device)
        words.append(word.to_bytes(INSTRUCTION_BYTES, "little"))
    return b"".join(words)


def decode(stream: bytes, device: Device) -> list[Instruction]:
    """Return the instructions of a stream.

    Raises:
        StreamError: an unknown opcode, operation or buffer, bits set outside of all fields, tokens
            for a queue that does not exist, or a shift over 31.
        AcceleratorError: the stream does not consist of whole instructions.
    """
    if len(stream) % INSTRUCTION_BYTES:
        raise AcceleratorError(f"a stream of {len(stream)} bytes: instructions have 16 each")
    instructions = []
    for index in range(len(stream) // INSTRUCTION_BYTES):
        data = stream[index * INSTRUCTION_BYTES : (index + 1) * INSTRUCTION_BYTES]
        instruction = _decode_one(index, int.from_bytes(data, "little"), device)
        _refuse(index, instruction, device)
        instructions.append(instruction)
    return instructions


def _decode_one(index: int, word: int, device: Device) -> Instruction:
    code = word & ((1 << OPCODE_BITS) - 1)
    if code not in list(Opcode):
        raise StreamError(index, f"unknown opcode {code}")
    opcode = Opcode(code)
    values, rest = {}, word & ~((1 << OPCODE_BITS) - 1)
    for name, at, width in _places(opcode, device):
        mask = (1 << width) - 1
        values[name] = word >> at & mask
        rest &= ~(mask << at)
    if rest:
        raise StreamError(index, f"{opcode.name} has bit {rest.bit_length() - 1} set, no field")
    tokens = Tokens(*(bool(values[name]) for name, _ in _TOKEN_FIELDS))
    if opcode is Opcode.FINISH:
        return Finish(tokens)
    if opcode in (Opcode.LOAD, Opcode.STORE):
        if values["memory"] not in list(MemoryId):
            raise StreamError(index, f"{opcode.name} has unknown buffer {values['memory']}")
        sizes = {name: values[name] for name, _ in _TRANSFER[1:]}
        return Transfer(opcode, MemoryId(values["memory"]), **sizes, tokens=tokens)
    loop = Loop(**{f.name: values[f.name] for f in fields(Loop)})
    if opcode is Opcode.GEMM:
        operands = values["wgt_outer"], values["wgt_inner"], bool(values["reset"])
        return Multiply(loop, *operands, tokens)
    if values["op"] not in list(AluOp):
        raise StreamError(index, f"ALU has unknown operation {values['op']}")
    if values["reset"]:
        raise StreamError(index, "ALU has the bit of reset set, which is GEMM's")
    immediate = values["immediate"]
    immediate -= (immediate >> (IMMEDIATE_BITS - 1)) << IMMEDIATE_BITS
    if not values["use_immediate"] and immediate:
        raise StreamError(index, f"ALU has immediate {immediate} and does not use it")
    used = immediate if values["use_immediate"] else None
    return Arithmetic(loop, AluOp(values["op"]), used, tokens)


def _refuse(index: int, instruction: Instruction, device: Device) -> None:
    """Raise StreamError for values that fit their fields but have no meaning."""
    queue, tokens = queue_of(instruction), instruction.tokens
    if queue is Queue.LOAD and (tokens.pop_prev or tokens.push_prev):
        raise StreamError(index, "no queue is before LOAD's to exchange tokens with")
    if queue is Queue.STORE and (tokens.pop_next or tokens.push_next):
        raise StreamError(index, "no queue is after STORE's to exchange tokens with")
    match instruction:
        case Transfer(opcode=Opcode.LOAD, memory=MemoryId.OUTPUT):
            raise StreamError(index, "LOAD cannot fill the output buffer")
        case Transfer(opcode=Opcode.STORE):
            if instruction.memory is not MemoryId.OUTPUT:
                raise StreamError(index, f"STORE cannot read buffer {instruction.memory.name}")
            if instruction.pitch != instruction.columns or (
                instruction.pad_above or instruction.pad_below
            ):
                raise StreamError(index, "STORE with padding")
        case Multiply(loop=loop) | Arithmetic(loop=loop):
            depth = device.depth(MemoryId.MICRO_OP)
            if loop.begin > loop.end or loop.end > depth:
                reason = f"micro-ops {loop.begin} to {loop.end} of {depth}"
                raise StreamError(index, reason)
    if isinstance(instruction, Arithmetic) and instruction.op is AluOp.SHR:
        shift = instruction.immediate
        if shift is not None and abs(shift) > MOST_SHIFT:
            raise StreamError(index, f"SHR by {shift}: at most {MOST_SHIFT} either way")


def _micro_widths(device: Device) -> tuple[int, int, int]:
    sums = device.address_bits(MemoryId.ACCUMULATOR)
    return (
        sums,
        max(sums, device.address_bits(MemoryId.INPUT)),
        device.address_bits(MemoryId.WEIGHT),
    )


def encode_micro_ops(micro_ops: Sequence[MicroOp], device: Device) -> bytes:
    """Return encoded micro-ops, 4 bytes each.

    Raises:
        AcceleratorError: an index does not fit its field.
    """
    dst, src, wgt = _micro_widths(device)
    words = []
    for index, op in enumerate(micro_ops):
        pairs = (("dst", op.dst, dst), ("src", op.src, src), ("wgt", op.wgt, wgt))
        for name, value, width in pairs:
            if not 0 <= value < 1 << width:
                raise AcceleratorError(
                    f"micro-op {index}: {name} is {value}, which does not fit in {width} bits"
                )
        words.append(op.dst | op.src << dst | op.wgt << (dst + src))
    return np.array(words, dtype="<u4").tobytes()


def decode_micro_ops(data: bytes, device: Device) -> npt.NDArray[np.int64]:
    """Return micro-ops as rows of dst, src, wgt.

    Raises:
        AcceleratorError: bits are set outside of all fields.
    """
    dst, src, wgt = _micro_widths(device)
    words = np.frombuffer(data, dtype="<u4").astype(np.int64)
    over = np.flatnonzero(words >> (dst + src + wgt))
    if len(over):
        raise AcceleratorError(f"micro-op {over[0]}: {int(words[over[0]]):#x} has bits of no field")
    columns = (words & ((1 << dst) - 1), words >> dst & ((1 << src) - 1), words >> (dst + src))
    return np.stack(columns, axis=1)
