# SPDX-License-Identifier: Apache-2.0
"""Dependency tokens for a list of operations with known dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelerator.isa.instructions import NO_TOKENS, Instruction, Queue, Tokens, queue_of


@dataclass(frozen=True)
class Operation:
    """An instruction without tokens, and the earlier operations that must end before it begins."""

    instruction: Instruction
    after: tuple[int, ...] = ()


def with_tokens(operations: Sequence[Operation]) -> tuple[Instruction, ...]:
    """Return the instructions with tokens that make every dependency hold.

    Queues are in order and their tokens are alike, so the n-th pop takes the n-th push. An
    operation therefore pops a token only if it depends on an operation newer than every dependency
    of its queue so far; the newest of its dependencies in the other queue pushes the token.

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
