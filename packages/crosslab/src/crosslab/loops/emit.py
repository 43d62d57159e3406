# SPDX-License-Identifier: Apache-2.0
"""Converter of an ordered loop to a C function with inline assembly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crosslab.loops.code import Argument, Bank, Constant, Loop, Op, Operand, Type, Value, View
from crosslab.loops.schedule import Order


class _Assembly:
    """Lines of assembly, with the vector type in force after the lines.

    Args:
        registers: register of each value.
        narrower: factor by which groups are narrower than in the description.
    """

    def __init__(self, registers: Mapping[Value, str], narrower: int) -> None:
        self._registers, self._narrower = registers, narrower
        self.lines: list[str] = []
        self.type: Type | None = None

    def put(self, ops: Iterable[Op]) -> None:
        """Append instructions, and the vset* instructions for their vector types."""
        for op in ops:
            if op.type and not (self.type and self.type.holds(op)):
                self.switch(op.type)
            self.lines.append(f"{op.mnemonic} " + op.text.format(*map(self.name, op.operands)))

    def switch(self, to: Type) -> None:
        """Append a vset* instruction if another vector type is in force."""
        if to == self.type:
            return
        same = self.type and (self.type.lmul, self.type.count) == (to.lmul, to.count)
        width, lmul = Type(to.bits, to.lmul / self._narrower, "").column(to.bits).split("m")
        count = "zero" if same else f"%[{to.count}]"
        self.lines.append(f"vsetvli zero, {count}, {width}, m{lmul}, ta, ma")
        self.type = to

    def name(self, operand: Operand) -> str:
        """Return an operand in assembly syntax."""
        if isinstance(operand, Value):
            return self._registers[operand]
        if isinstance(operand, View):
            return f"v{int(self._registers[operand.value][1:]) + operand.first}"
        if isinstance(operand, Argument | Constant):
            return f"%[{operand.name}]"
        return str(operand)


def function(
    name: str, loop: Loop, order: Order, registers: Mapping[Value, str], narrower: int = 1
) -> str:
    """Return the C function of a loop; ``narrower`` divides the registers of each group."""
    assembly = _Assembly(registers, narrower)
    assembly.put(loop.before)
    assembly.put(op for op in order.ops if op.number in order.ahead)
    assert loop.times is not None
    times = f"%[{loop.times.name}]"
    # A pass begins with the type that it ends with.
    passes = _Assembly(registers, narrower)
    passes.put(order.ops)
    if passes.type:
        assembly.switch(passes.type)
    count = f"addi {times}, {times}, -1"
    assembly.lines += [count, f"beqz {times}, 2f", "1:", count]
    assembly.put(order.ops)
    assembly.lines += [f"bnez {times}, 1b", "2:"]
    assembly.put(op for op in order.ops if op.number not in order.ahead)
    assembly.put(loop.after)
    return _wrapped(name, loop, assembly.lines, registers)


def _wrapped(name: str, loop: Loop, lines: Sequence[str], registers: Mapping[Value, str]) -> str:
    moving = [a for a in loop.arguments if a.moves]
    fixed = [a for a in loop.arguments if not a.moves]
    ops = (*loop.before, *loop.body, *loop.after)
    constants = sorted(
        {o for op in ops for o in op.operands if isinstance(o, Constant)}, key=lambda c: c.name
    )
    inputs = [f'[{a.name}] "r"({a.name})' for a in fixed]
    for constant in constants:
        file, suffix = ("f", "f") if isinstance(constant.number, float) else ("r", "L")
        inputs.append(f'[{constant.name}] "{file}"({constant.number}{suffix})')
    outputs = ", ".join(f'[{a.name}] "+r"({a.name})' for a in moving)
    parameters = ", ".join(f"{a.c_type}{a.name}" for a in loop.arguments)
    used = {name for value, first in registers.items() for name in _group(value, first)}
    clobbers = ", ".join(f'"{r}"' for r in ("memory", "vl", "vtype", *sorted(used)))
    text = "\n".join(f'      "{line}\\n"' for line in lines)
    return (
        f"__attribute__((noinline)) static void {name}({parameters}) {{\n"
        f"  __asm__ volatile(\n{text}\n      : {outputs}\n      : {', '.join(inputs)}\n"
        f"      : {clobbers});\n}}\n"
    )


def _group(value: Value, first: str) -> Iterable[str]:
    if value.bank is not Bank.VECTOR:
        return (first,)
    return (f"v{int(first[1:]) + i}" for i in range(value.size))
