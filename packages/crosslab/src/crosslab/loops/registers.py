# SPDX-License-Identifier: Apache-2.0
"""Register allocation for the values of an ordered loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crosslab.loops.code import Bank, Constant, Loop, Value
from crosslab.loops.schedule import Order

_NAMES: Mapping[Bank, Sequence[str]] = {
    Bank.VECTOR: [f"v{i}" for i in range(32)],
    Bank.INTEGER: [*(f"t{i}" for i in range(7)), *(f"s{i}" for i in range(2, 12))],
    Bank.FLOAT: [*(f"ft{i}" for i in range(12)), *(f"fa{i}" for i in range(8))],
}
# Integer registers without those for the stack and other fixed addresses, and without one for the
# compiler.
_INTEGERS = 26


def available(loop: Loop) -> dict[Bank, Sequence[str]]:
    """Return the registers for values, without those for the loop's arguments and constants."""
    names = dict(_NAMES)
    ops = (*loop.before, *loop.body, *loop.after)
    constants = {o for op in ops for o in op.operands if isinstance(o, Constant)}
    free = _INTEGERS - len(loop.arguments) - len(constants)
    names[Bank.INTEGER] = _NAMES[Bank.INTEGER][:free]
    return names


def allocate(loop: Loop, order: Order) -> dict[Value, str] | None:
    """Return the (first) register of each value; None if the values do not fit.

    A value keeps its registers from its first instruction to its last. In the body, a lifetime can
    continue after the last instruction at the first one.
    """
    lifetimes = _lifetimes(loop, order)
    keys = (
        lambda v: (-v.size, -lifetimes[v].bit_count()),
        lambda v: (-v.size, lifetimes[v] & -lifetimes[v], -lifetimes[v].bit_count()),
        lambda v: (-v.size, lifetimes[v]),
        lambda v: (-v.size, -lifetimes[v]),
    )
    for key in keys:
        if chosen := _first_fit(available(loop), lifetimes, sorted(lifetimes, key=key)):
            return chosen
    return None


def _first_fit(
    names: Mapping[Bank, Sequence[str]], lifetimes: Mapping[Value, int], values: Sequence[Value]
) -> dict[Value, str] | None:
    taken = {bank: [0] * len(names[bank]) for bank in names}
    chosen: dict[Value, str] = {}
    for value in values:
        first = _place(taken[value.bank], value.size, lifetimes[value])
        if first is None:
            return None
        for register in range(first, first + value.size):
            taken[value.bank][register] |= lifetimes[value]
        chosen[value] = names[value.bank][first]
    return chosen


def _place(taken: Sequence[int], size: int, life: int) -> int | None:
    """Return the first register of an aligned group that is free during a lifetime; None: none."""
    for first in range(0, len(taken) - size + 1, size):
        if not any(taken[first + i] & life for i in range(size)):
            return first
    return None


def _lifetimes(loop: Loop, order: Order) -> dict[Value, int]:
    """Return a bit mask per value: positions (before, in, after the loop) that need the value."""
    sections = (loop.before, order.ops, loop.after)
    touched: dict[Value, list[list[int]]] = {}
    position = 0
    for section, ops in enumerate(sections):
        for op in ops:
            for value in op.values():
                touched.setdefault(value, [[], [], []])[section].append(position)
            position += 1
    start = len(loop.before)
    body = range(start, start + len(order.ops))
    ahead = {start + at for at, op in enumerate(order.ops) if op.number in order.ahead}
    lifetimes = {}
    for value, positions in touched.items():
        if sum(map(bool, positions)) > 1:
            lifetimes[value] = (1 << position) - 1
        elif inside := positions[1]:
            early, late = [p for p in inside if p in ahead], [p for p in inside if p not in ahead]
            if early and late:
                lifetimes[value] = _bits(early[0], body.stop - 1) | _bits(start, late[-1])
            else:
                lifetimes[value] = _bits(inside[0], inside[-1])
        else:
            only = positions[0] or positions[2]
            lifetimes[value] = _bits(only[0], only[-1])
    return lifetimes


def _bits(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


def pinned(loop: Loop) -> frozenset[Value]:
    """Return the values that the loop shares with instructions before or after it."""
    outside = {v for op in (*loop.before, *loop.after) for v in op.values()}
    inside = {v for op in loop.body for v in op.values()}
    return frozenset(outside & inside)
