# SPDX-License-Identifier: Apache-2.0
"""The language in which kernels/loops/*.py describe a loop: RVV instructions on named values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction


class Bank(Enum):
    """A register file."""

    VECTOR = "v"
    INTEGER = "x"
    FLOAT = "f"


@dataclass(eq=False)
class Value:
    """A value in registers that the scheduler chooses.

    Attributes:
        bank: the register file.
        size: registers of its group.
        cuts: where its parts begin, if instructions use them one by one.
        memory: what is reached by it, in dependences, if it is a pointer.
    """

    bank: Bank
    size: int = 1
    cuts: set[int] = field(default_factory=set)
    memory: str = ""

    def part(self, first: int) -> View:
        """The part that begins with a register of the group."""
        self.cuts.add(first)
        return View(self, first)


@dataclass(frozen=True)
class View:
    """A part of a group of registers.

    Attributes:
        value: the group.
        first: number of the first register in the group.
    """

    value: Value
    first: int


@dataclass(frozen=True)
class Argument:
    """A parameter of the C function, in an integer register that the compiler chooses.

    Attributes:
        c_type: as in C.
        name: as in C.
        moves: true for a pointer that instructions advance.
    """

    c_type: str
    name: str
    moves: bool = False

    @property
    def memory(self) -> str:
        """What is reached by the pointer, in dependences."""
        return f"*{self.name}"


@dataclass(frozen=True)
class Constant:
    """A number in a register that the compiler chooses."""

    number: int | float

    @property
    def name(self) -> str:
        """Name of the operand in the inline assembly."""
        return "c" + re.sub(r"\W", "_", str(self.number))


@dataclass(frozen=True)
class Type:
    """A vector type.

    Attributes:
        bits: of an element.
        lmul: registers of a group of 32-bit elements; of other widths as many elements.
        count: the parameter that is the number of elements.
    """

    bits: int
    lmul: Fraction
    count: str

    def holds(self, op: Op) -> bool:
        """True if the instruction can run under it: loads and stores name their own width."""
        if op.type is None or op.type == self:
            return True
        return op.moves_memory and (self.lmul, self.count) == (op.type.lmul, op.type.count)

    def group(self, bits: int) -> Fraction:
        """Registers of as many elements of another width."""
        return self.lmul * bits / 32

    def column(self, bits: int) -> str:
        """Name of the type with an element width, as in a core's table: ``e32m4``."""
        lmul = self.group(bits)
        return f"e{bits}" + (f"m{lmul}" if lmul >= 1 else f"mf{lmul.denominator}")


Vector = Value | View
Pointer = Argument | Value
Operand = Value | View | Argument | Constant | int | str


@dataclass(eq=False)
class Op:
    """One instruction.

    Attributes:
        mnemonic: of the instruction.
        text: its operands as a format, one field for each entry of ``operands``.
        operands: registers, and immediate numbers or C constants as text.
        reads: what it reads.
        writes: what it writes.
        type: vector type that it needs; of loads and stores only the number of elements matters.
        number: position in its section.
    """

    mnemonic: str
    text: str
    operands: tuple[Operand, ...]
    reads: tuple[object, ...]
    writes: tuple[object, ...]
    type: Type | None
    number: int

    @property
    def moves_memory(self) -> bool:
        """True for vector loads and stores."""
        return _MEMORY.match(self.mnemonic) is not None

    @property
    def inputs(self) -> list[object]:
        """What it reads, by parts of groups."""
        return list(_by_parts(self.reads))

    @property
    def outputs(self) -> list[object]:
        """What it writes, by parts of groups."""
        return list(_by_parts(self.writes))

    def values(self) -> Iterator[Value]:
        """The values in its operands."""
        for operand in self.operands:
            if isinstance(operand, Value | View):
                yield operand.value if isinstance(operand, View) else operand


def _by_parts(places: Sequence[object]) -> Iterator[object]:
    for place in places:
        if isinstance(place, Value) and place.cuts:
            yield from (View(place, first) for first in sorted(place.cuts))
        else:
            yield place


_WIDENS = re.compile(r"vf?w")
_ACCUMULATES = re.compile(r"vf?w?n?m(acc|sac|add|sub)(su|us|u)?\.")
_MEMORY = re.compile(r"v[ls]s?e(\d+)\.v")


class Width:
    """Instructions of one vector type."""

    def __init__(self, loop: Loop, of: Type) -> None:
        self._loop, self.type = loop, of

    def vector(self) -> Value:
        """Registers for a vector of this type."""
        return self._group(self.type.bits)

    def _group(self, bits: int) -> Value:
        return Value(Bank.VECTOR, max(1, int(self.type.group(bits))))

    def make(self, mnemonic: str, *sources: Operand) -> Value:
        """A new value."""
        bits = self.type.bits * (2 if _WIDENS.match(mnemonic) else 1)
        made = self._group(bits)
        self.put(mnemonic, made, *sources)
        return made

    def put(self, mnemonic: str, to: Vector, *sources: Operand) -> None:
        """Replace a value, or add to it (``vmacc``)."""
        reads = _registers(sources) + ((to,) if _ACCUMULATES.match(mnemonic) else ())
        text = ", ".join(["{}"] * (len(sources) + 1))
        self._loop.add(mnemonic, text, (to, *sources), reads, (to,), self.type)

    def load(
        self,
        mnemonic: str,
        pointer: Argument,
        step: Operand | None = None,
        memory: str = "",
        stride: Operand | None = None,
    ) -> Value:
        """The vector at a pointer; then the pointer advances by ``step`` bytes.

        ``stride``: bytes between its elements, of ``vlse*``.
        """
        match = _MEMORY.match(mnemonic)
        assert match is not None, mnemonic
        made = self._group(int(match[1]))
        self.load_to(made, mnemonic, pointer, step, memory, stride)
        return made

    def load_to(
        self,
        to: Vector,
        mnemonic: str,
        pointer: Argument,
        step: Operand | None = None,
        memory: str = "",
        stride: Operand | None = None,
    ) -> None:
        """Load a vector into registers that exist; then the pointer advances.

        ``memory`` names what is read: a load waits for stores to the same name.
        """
        reads = (pointer, memory or pointer.memory)
        operands: tuple[Operand, ...] = (to, pointer) if stride is None else (to, pointer, stride)
        text = "{}, ({})" + ", {}" * (stride is not None)
        self._loop.add(mnemonic, text, operands, reads, (to,), self.type)
        if step is not None:
            self._loop.advance(pointer, step)

    def store(
        self,
        mnemonic: str,
        value: Vector,
        pointer: Argument,
        step: Operand | None = None,
        memory: str = "",
    ) -> None:
        """Write a vector to memory; then the pointer advances."""
        writes = (memory or pointer.memory,)
        self._loop.add(mnemonic, "{}, ({})", (value, pointer), (value, pointer), writes, self.type)
        if step is not None:
            self._loop.advance(pointer, step)


class Loop:
    """A description: what comes before the loop, an iteration, and what comes after it.

    Args:
        lmul: registers of a group of 32-bit elements; of other widths as many elements.
    """

    def __init__(self, lmul: int) -> None:
        self.lmul = Fraction(lmul)
        self.arguments: list[Argument] = []
        self.before: list[Op] = []
        self.body: list[Op] = []
        self.after: list[Op] = []
        self.times: Argument | None = None
        self._section = self.before

    def pointer(self, c_type: str, name: str) -> Argument:
        """A parameter that instructions advance."""
        return self._argument(Argument(c_type, name, moves=True))

    def pointers(self, **c_types: str) -> list[Argument]:
        """Parameters that instructions advance, by name."""
        return [self.pointer(c_type, name) for name, c_type in c_types.items()]

    def parameters(self, *names: str) -> list[Argument]:
        """Integers that stay as they are."""
        return [self._argument(Argument("int64_t ", name)) for name in names]

    def _argument(self, argument: Argument) -> Argument:
        self.arguments.append(argument)
        return argument

    def widths(self, count: str, *bits: int, halves: int = 0) -> list[Width]:
        """Vector types of as many elements as the parameter ``count`` says.

        Args:
            count: name of the parameter.
            bits: of an element.
            halves: how often the widest group is halved for these types.
        """
        if all(a.name != count for a in self.arguments):
            self._argument(Argument("size_t ", count))
        return [Width(self, Type(b, self.lmul / 2**halves, count)) for b in bits]

    @contextmanager
    def repeat(self, name: str) -> Iterator[None]:
        """The loop; the parameter of that name says how often, at least once."""
        self.times = self.pointer("int64_t ", name)
        self._section = self.body
        yield
        self._section = self.after

    def rows(self, first: Argument, distance: Operand, count: int) -> list[Pointer]:
        """Pointers to so many rows, ``distance`` bytes apart; each advances by itself."""
        found: list[Pointer] = [first]
        for _ in range(1, count):
            made = Value(Bank.INTEGER, memory=first.memory)
            reads = _registers((found[-1], distance))
            self.add("add", "{}, {}, {}", (made, found[-1], distance), reads, (made,))
            found.append(made)
        return found

    def advance(self, pointer: Pointer, step: Operand) -> None:
        """Add bytes to a pointer."""
        mnemonic = "addi" if isinstance(step, int) else "add"
        reads = _registers((pointer, step))
        self.add(mnemonic, "{}, {}, {}", (pointer, pointer, step), reads, (pointer,))

    def scalar(self, mnemonic: str, pointer: Pointer, offset: int) -> Value:
        """The number at an offset of a pointer: ``lb``, ``lw`` or ``flw``."""
        made = Value(Bank.FLOAT if mnemonic.startswith("f") else Bank.INTEGER)
        reads = (pointer, pointer.memory)
        self.add(mnemonic, "{}, {}({})", (made, offset, pointer), reads, (made,))
        return made

    def add(
        self,
        mnemonic: str,
        text: str,
        operands: tuple[Operand, ...],
        reads: tuple[object, ...],
        writes: tuple[object, ...],
        vector_type: Type | None = None,
    ) -> None:
        """Append any instruction."""
        number = len(self._section)
        self._section.append(Op(mnemonic, text, operands, reads, writes, vector_type, number))


def _registers(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    return tuple(o for o in operands if isinstance(o, Value | View | Argument))
