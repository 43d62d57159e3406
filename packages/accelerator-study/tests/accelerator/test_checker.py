# SPDX-License-Identifier: Apache-2.0
"""The token checker: sound streams pass, and each kind of fault is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerator import functional
from accelerator.checker import check
from accelerator.device import Device, MemoryId, load_device
from accelerator.errors import AcceleratorError, StreamError
from accelerator.isa.encoding import encode, encode_micro_ops
from accelerator.isa.instructions import (
    NO_TOKENS,
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
    edges,
    queue_of,
)
from accelerator.isa.tokens import Operation, with_tokens
from accelerator.layer import LinearLayer
from accelerator.lowering import lower
from accelerator.program import Mapping, Program

DEVICE = load_device("vta-1x16x16")
BATCHED = load_device("vta-16x16x16")
FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")
MICRO_OPS = encode_micro_ops([MicroOp(0, 0, 0), MicroOp(8, 1, 0)], DEVICE)
MEMORY = bytearray(MICRO_OPS.ljust(8192, b"\0"))
LOOP = Loop(0, 1, 1, 1)


def load(memory: MemoryId, dram: int = 0, **changes: object) -> Transfer:
    plain = Transfer(Opcode.LOAD, memory, 0, dram, 1, 1, 1)
    return replace(plain, **changes)  # type: ignore[arg-type]


UOP = load(MemoryId.MICRO_OP, columns=2)
STORE = Transfer(Opcode.STORE, MemoryId.OUTPUT, 0, 256, 1, 1, 1)
SMALL = [
    Operation(UOP),
    Operation(Multiply(LOOP, reset=True)),
    Operation(load(MemoryId.INPUT)),
    Operation(load(MemoryId.WEIGHT)),
    Operation(Multiply(LOOP), (2, 3)),
    Operation(STORE, (4,)),
    Operation(Finish(), (5,)),
]


def stream_of(instructions: Sequence[Instruction]) -> bytes:
    return encode(instructions, DEVICE)


def lowered(device: Device, halves: int = 2) -> Program:
    return lower(
        LinearLayer("some", 2 * device.batch, 70, 70), Mapping(2, 2, 2, True, halves), device
    )


def test_a_small_stream_is_proved() -> None:
    instructions = with_tokens(SMALL)
    assert check(stream_of(instructions), DEVICE, MEMORY) == instructions
    assert sum(i.tokens.push_next for i in instructions) == 2  # one load speaks for both


@pytest.mark.parametrize("device", [DEVICE, BATCHED], ids=lambda d: d.name)
@pytest.mark.parametrize("halves", [1, 2])
def test_lowered_streams_are_proved(device: Device, halves: int) -> None:
    program = lowered(device, halves)
    assert check(program.stream, device, program.image()) == program.instructions
    for queue in Queue:
        pushes = [edges(each)[1] for each in program.instructions if queue_of(each) is queue]
        # VTA's own queues of tokens hold as many as the whole stream pushes.
        assert all(sum(to in pushed for pushed in pushes) < 512 for to in Queue)


def test_every_flag_that_is_taken_away_is_missed() -> None:
    program = lowered(BATCHED)
    memory = program.image()
    faults = 0
    for index, instruction in enumerate(program.instructions):
        for flag in FLAGS:
            if not getattr(instruction.tokens, flag):
                continue
            tokens = replace(instruction.tokens, **{flag: False})
            changed = list(program.instructions)
            changed[index] = replace(instruction, tokens=tokens)
            stream = encode(changed, BATCHED)
            with pytest.raises(AcceleratorError) as caught:
                check(stream, BATCHED, memory)
            kind = "deadlock" if flag.startswith("push") else "left over"
            assert kind in caught.value.what
            with pytest.raises(AcceleratorError, match=f"{kind}"):
                functional.run(BATCHED, stream, bytearray(memory))
            faults += 1
    assert faults > 40


def test_every_pair_that_is_taken_away_is_a_race() -> None:
    """Without a token and its taker nothing deadlocks, and the checker alone sees it."""
    program = lowered(BATCHED)
    memory = program.image()
    for out, into in (("push_next", "pop_prev"), ("push_prev", "pop_next")):
        changed = list(program.instructions)
        for flag in (out, into):
            at = next(n for n, i in enumerate(changed) if getattr(i.tokens, flag))
            tokens = replace(changed[at].tokens, **{flag: False})
            changed[at] = replace(changed[at], tokens=tokens)
        with pytest.raises(StreamError, match=r"race with instruction \d+ at"):
            check(encode(changed, BATCHED), BATCHED, memory)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_proved_gives_the_same_bytes_in_every_order(data: st.DataObject) -> None:
    """Random flags: most are refused; what passes does not depend on the order of the queues."""
    operations = []
    for number, operation in enumerate(SMALL):
        earlier = [n for n in range(number) if data.draw(st.integers(0, 3)) == 0]
        near = [n for n in earlier if not {number, n} <= {2, 3, 5} or 5 not in (number, n)]
        operations.append(replace(operation, after=(*operation.after, *near)))
    instructions = list(with_tokens(operations))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(instructions) - 1))
        flag = data.draw(st.sampled_from(FLAGS))
        tokens = replace(instructions[at].tokens, **{flag: False})
        instructions[at] = replace(instructions[at], tokens=tokens)
    stream = stream_of(instructions)
    try:
        check(stream, DEVICE, MEMORY)
    except AcceleratorError:
        return
    after = []
    for order in range(functional.ORDERS):
        memory = bytearray(MEMORY)
        functional.run(DEVICE, stream, memory, order)
        after.append(bytes(memory))
    assert len(set(after)) == 1


def test_circles_are_named() -> None:
    first = load(MemoryId.INPUT, tokens=Tokens(pop_next=True, push_next=True))
    second = Multiply(LOOP, reset=True, tokens=Tokens(pop_prev=True, push_prev=True))
    with pytest.raises(StreamError, match="deadlock: instruction 1 of LOAD waits for 2"):
        check(stream_of([UOP, first, second, Finish()]), DEVICE, MEMORY)
    with pytest.raises(AcceleratorError, match="instruction 1 of LOAD waits for a token"):
        functional.run(DEVICE, stream_of([UOP, first, second, Finish()]), bytearray(MEMORY))


def changed(at: int, instruction: Instruction) -> list[Instruction]:
    instructions = list(with_tokens(SMALL))
    instructions[at] = replace(instruction, tokens=instructions[at].tokens)
    return instructions


@pytest.mark.parametrize(
    ("instructions", "message", "runs"),
    [
        (changed(2, load(MemoryId.INPUT, sram=2047, columns=2)), "INPUT element 2048", False),
        (changed(2, load(MemoryId.INPUT, dram=512)), "address 8208 is outside", False),
        (changed(5, replace(STORE, dram=1 << 31)), "is outside of memory", False),
        (changed(4, Multiply(Loop(0, 1, 2, 1, 2047))), "race|nothing wrote", True),
        (changed(4, Multiply(Loop(1, 2, 2, 1, 2040))), "ACCUMULATOR element 2048", False),
        (changed(4, Multiply(Loop(1, 2, 1, 1))), "INPUT element 1, which nothing", True),
        (changed(4, Multiply(LOOP, wgt_outer=1)), "", True),
        (changed(4, Arithmetic(Loop(2, 3, 1, 1), AluOp.ADD, 1)), "MICRO_OP element 2", True),
        (changed(2, Finish()), "deadlock|FINISH before", False),
        (changed(6, UOP), "does not end with FINISH", False),
    ],
)
def test_faults_are_named(instructions: list[Instruction], message: str, runs: bool) -> None:
    """Those that a run shows, whatever the order, the simulator refuses as well."""
    stream = stream_of(instructions)
    if message:
        with pytest.raises(AcceleratorError, match=message):
            check(stream, DEVICE, MEMORY)
    else:
        check(stream, DEVICE, MEMORY)
    if runs:
        functional.run(DEVICE, stream, bytearray(MEMORY))
    else:
        with pytest.raises(AcceleratorError):
            functional.run(DEVICE, stream, bytearray(MEMORY))


def test_a_loop_over_reloaded_micro_ops_has_other_elements() -> None:
    again = [Operation(load(MemoryId.MICRO_OP, dram=1)), Operation(Multiply(LOOP), (4,))]
    operations = [*SMALL[:5], *again, Operation(STORE, (6,)), Operation(Finish(), (7,))]
    with pytest.raises(StreamError, match="INPUT element 1, which nothing wrote"):
        check(stream_of(with_tokens(operations)), DEVICE, MEMORY)


def test_equal_loops_over_buffers_of_other_sizes_are_both_checked() -> None:
    smaller = replace(DEVICE, accumulator=DEVICE.accumulator // 2)
    loop = Loop(0, 1, 3, 1, src_outer=512)
    operations = [
        *SMALL[:4],
        *(Operation(load(MemoryId.INPUT, sram=each)) for each in (512, 1024)),
        Operation(Multiply(loop), (3, 5)),
        Operation(Arithmetic(loop, AluOp.ADD)),
        Operation(STORE, (7,)),
        Operation(Finish(), (8,)),
    ]
    with pytest.raises(StreamError, match="ACCUMULATOR element 1024 of 1024"):
        check(encode(with_tokens(operations), smaller), smaller, MEMORY)


def test_finish_waits_for_all() -> None:
    instructions = list(with_tokens(SMALL))
    last = len(instructions) - 1
    instructions[last] = Finish()
    instructions[last - 1] = replace(STORE, tokens=Tokens(pop_prev=True))
    with pytest.raises(StreamError, match="FINISH does not wait for STORE"):
        check(stream_of(instructions), DEVICE, MEMORY)


def test_memory_that_is_loaded_and_stored_without_order_is_a_race() -> None:
    operations = list(SMALL)
    operations[5] = Operation(replace(STORE, dram=0), (4,))
    operations.insert(6, Operation(load(MemoryId.INPUT, sram=1)))
    operations.insert(7, Operation(Multiply(LOOP), (6,)))
    operations[8] = Operation(Finish(), (5, 7))
    with pytest.raises(StreamError, match="race with instruction 5 at DRAM address 0x0"):
        check(stream_of(with_tokens(operations)), DEVICE, MEMORY)


def test_dependencies_that_no_token_can_carry() -> None:
    with pytest.raises(ValueError, match="waits for LOAD"):
        with_tokens([Operation(load(MemoryId.INPUT)), Operation(STORE, (0,))])
    with pytest.raises(ValueError, match="which is later"):
        with_tokens([Operation(STORE, (1,)), Operation(Finish())])
    assert with_tokens([Operation(UOP), Operation(Finish(), (0,))])[1].tokens == NO_TOKENS


def test_a_long_program_is_proved() -> None:
    program = lower(LinearLayer("o_proj", 37, 576, 576), Mapping(37, 18, 18), DEVICE)
    values = np.ones((37, 576), dtype=np.int8)
    check(program.stream, DEVICE, program.image(values))
