# SPDX-License-Identifier: Apache-2.0
"""Encoding of instructions and micro-ops, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instructions

from accelerator.device import Device, MemoryId, load_device
from accelerator.errors import AcceleratorError, StreamError
from accelerator.isa.encoding import decode, decode_micro_ops, encode, encode_micro_ops
from accelerator.isa.instructions import (
    AluOp,
    Arithmetic,
    Finish,
    Loop,
    MicroOp,
    Multiply,
    Opcode,
    Tokens,
    Transfer,
)
from accelerator.isa.listing import disassemble

DEVICE = load_device("vta-1x16x16")
BATCHED = load_device("vta-16x16x16")
WORD = (1 << 64) - 1


@pytest.mark.parametrize("device", [DEVICE, BATCHED], ids=lambda d: d.name)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_round_trip(device: Device, data: st.DataObject) -> None:
    listed = data.draw(st.lists(instructions(device), max_size=4))
    stream = encode(listed, device)
    assert len(stream) == 16 * len(listed)
    assert decode(stream, device) == listed
    assert disassemble(stream, device).count("\n") == len(listed)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_any_16_bytes_are_refused_or_come_back(data: bytes) -> None:
    try:
        found = decode(data, DEVICE)
    except StreamError as error:
        assert error.index == 0
    else:
        assert encode(found, DEVICE) == data


# Bit positions: apache/tvm-vta, include/vta/hw_spec.h, for the default configuration.


def test_fields_of_a_load() -> None:
    tokens = Tokens(pop_next=True, push_next=True)
    load = Transfer(Opcode.LOAD, MemoryId.INPUT, 0x123, 0x89ABCDEF, 2, 3, 5, 1, 2, 3, 4, tokens)
    word = int.from_bytes(encode([load], DEVICE), "little")
    first = 0 | 1 << 4 | 1 << 6 | 2 << 7 | 0x123 << 10 | 0x89ABCDEF << 26
    second = 2 | 3 << 16 | 5 << 32 | 1 << 48 | 2 << 52 | 3 << 56 | 4 << 60
    assert (word & WORD, word >> 64) == (first, second)


def test_fields_of_a_gemm() -> None:
    gemm = Multiply(Loop(7, 9, 3, 4, 11, 12, 13, 14), 15, 16, True, Tokens(pop_prev=True))
    word = int.from_bytes(encode([gemm], DEVICE), "little")
    first = 2 | 1 << 3 | 1 << 7 | 7 << 8 | 9 << 21 | 3 << 35 | 4 << 49
    second = 11 | 12 << 11 | 13 << 22 | 14 << 33 | 15 << 44 | 16 << 54
    assert (word & WORD, word >> 64) == (first, second)


def test_fields_of_an_alu() -> None:
    alu = Arithmetic(Loop(1, 2, 3, 4, 5, 6, 7, 8), AluOp.SHR, -9, Tokens(push_next=True))
    word = int.from_bytes(encode([alu], DEVICE), "little")
    first = 4 | 1 << 6 | 1 << 8 | 2 << 21 | 3 << 35 | 4 << 49
    second = 5 | 6 << 11 | 7 << 22 | 8 << 33 | 3 << 44 | 1 << 47 | (-9 & 0xFFFF) << 48
    assert (word & WORD, word >> 64) == (first, second)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (5, "unknown opcode 5"),
        (3 | 1 << 7, "FINISH has bit 7 set"),
        (0 | 6 << 7, "unknown buffer 6"),
        (0 | 4 << 7, "cannot fill the output"),
        (0 | 1 << 3 | 2 << 7, "no queue is before LOAD"),
        (1 | 1 << 4 | 4 << 7, "no queue is after STORE"),
        (1 | 2 << 7, "STORE cannot read buffer INPUT"),
        (1 | 4 << 7 | 1 << (64 + 60), "STORE with padding"),
        (4 | 5 << (64 + 44), "unknown operation 5"),
        (4 | 1 << 7, "bit of reset"),
        (4 | 3 << (64 + 44) | 1 << (64 + 47) | 32 << (64 + 48), "SHR by 32"),
        (4 | 1 << (64 + 48), "does not use it"),
        (2 | 2 << 8 | 1 << 21, "micro-ops 2 to 1"),
        (2 | 8193 << 21, "micro-ops 0 to 8193"),
    ],
)
def test_a_bad_encoding_is_refused(word: int, message: str) -> None:
    stream = encode([Finish()], DEVICE) + word.to_bytes(16, "little")
    with pytest.raises(StreamError, match=f"instruction 1: .*{message}") as caught:
        decode(stream, DEVICE)
    assert caught.value.index == 1


def test_half_an_instruction_is_refused() -> None:
    with pytest.raises(AcceleratorError, match="24 bytes"):
        decode(bytes(24), DEVICE)


@pytest.mark.parametrize("immediate", [-32769, 32768])
def test_a_value_that_does_not_fit_is_refused(immediate: int) -> None:
    with pytest.raises(StreamError, match="immediate is"):
        encode([Arithmetic(Loop(0, 1, 1, 1), AluOp.ADD, immediate)], DEVICE)


def test_micro_ops() -> None:
    data = encode_micro_ops([MicroOp(1, 2, 3), MicroOp(2047, 2047, 1023)], DEVICE)
    assert int.from_bytes(data[:4], "little") == 1 | 2 << 11 | 3 << 22
    assert decode_micro_ops(data, DEVICE).tolist() == [[1, 2, 3], [2047, 2047, 1023]]
    with pytest.raises(AcceleratorError, match="dst is 2048"):
        encode_micro_ops([MicroOp(2048)], DEVICE)
    with pytest.raises(AcceleratorError, match="bits of no field"):
        decode_micro_ops(b"\xff\xff\xff\xff", BATCHED)
