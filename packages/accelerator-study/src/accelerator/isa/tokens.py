# SPDX-License-Identifier: Apache-2.0
"""Dependency tokens for a list of operations that says which ones each has to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelerator.isa.instructions import NO_TOKENS, Instruction, Queue, Tokens, queue_of


@dataclass(frozen=True)
class Operation:
    """An instruction without tokens, and the earlier operations that must be done before it."""

    instruction: Instruction
    after: tuple[int, ...] = ()


def with_tokens(operations: Sequence[Operation]) -> tuple[Instruction, ...]:
    """Put tokens between neighbouring queues so that every dependency holds.

    A queue is in order and tokens are alike, so the n-th that is popped is the n-th that was
    pushed. A consumer therefore pops one only where it has to wait for something newer than all
    that its queue has waited for before, and the newest of what it waits for pushes it.

    Raises:
        ValueError: a dependency on a later operation, or between LOAD and STORE, which exchange
            no tokens.
    """
    queues = [queue_of(operation.instruction) for operation in operations]
    flags: list[set[str]] = [set() for _ in operations]
    waited: dict[tuple[Queue, Queue], int] = {}
    for index, operation in enumerate(operations):
        here = queues[index]
        for producer in sorted(operation.after, reverse=True):
            there = queues[producer]
            if producer >= index:
                raise ValueError(f"operation {index} waits for {producer}, which is later")
            if abs(there - here) > 1:
                raise ValueError(f"operation {index} of {here.name} waits for {there.name}")
            if there is here or producer <= waited.get((there, here), -1):
                continue
            waited[there, here] = producer
            forward = there < here
            flags[producer].add("push_next" if forward else "push_prev")
            flags[index].add("pop_prev" if forward else "pop_next")
    return tuple(
        replace(o.instruction, tokens=Tokens(**dict.fromkeys(f, True)) if f else NO_TOKENS)
        for o, f in zip(operations, flags, strict=True)
    )
