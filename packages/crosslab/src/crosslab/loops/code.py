# SPDX-License-Identifier: Apache-2.0
"""Language of the loop descriptions in kernels/loops/*.py: RVV instructions on named values."""

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
        size: number of registers of its group.
        cuts: first registers of the parts that instructions use separately.
        memory: name of the memory that a pointer reaches, for dependences.
    """

    bank: Bank
    size: int = 1
    cuts: set[int] = field(default_factory=set)
    memory: str = ""

    def part(self, first: int) -> View:
        """Return the part of the group from register number ``first`` of the group on."""
        self.cuts.add(first)
        return View(self, first)


@dataclass(frozen=True)
class View:
    """A part of a register group.

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
        c_type: C type.
        name: C name.
        moves: True for a pointer that instructions advance.
    """

    c_type: str
    name: str
    moves: bool = False

    @property
    def memory(self) -> str:
        """Name of the memory that the pointer reaches, for dependences."""
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
        bits: bits of an element.
        lmul: registers of a group of 32-bit elements; groups of other widths have as many elements.
        count: name of the parameter with the number of elements.
    """

    bits: int
    lmul: Fraction
    count: str

    def holds(self, op: Op) -> bool:
        """True if an instruction can run under this type; for loads and stores any width fits."""
        if op.type is None or op.type == self:
            return True
        return op.moves_memory and (self.lmul, self.count) == (op.type.lmul, op.type.count)

    def group(self, bits: int) -> Fraction:
        """Return the registers of a group with as many elements of ``bits`` bits."""
        return self.lmul * bits / 32

    def column(self, bits: int) -> str:
        """Return the column of a core's table for an element width: ``e32m4``."""
        lmul = self.group(bits)
        return f"e{bits}" + (f"m{lmul}" if lmul >= 1 else f"mf{lmul.denominator}")


Vector = Value | View
Pointer = Argument | Value
Operand = Value | View | Argument | Constant | int | str


@dataclass(eq=False)
class Op:
    """An instruction.

    Attributes:
        mnemonic: name of the instruction.
        text: format of the operands, with a field for each entry of ``operands``.
        operands: registers, immediate numbers, and C constants as text.
        reads: values and memory that it reads.
        writes: values and memory that it writes.
        type: required vector type; for loads and stores only the number of elements matters.
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
        """Registers and memory that the instruction reads; a group with cuts as its parts."""
        return list(_by_parts(self.reads))

    @property
    def outputs(self) -> list[object]:
        """Registers and memory that the instruction writes; a group with cuts as its parts."""
        return list(_by_parts(self.writes))

    def values(self) -> Iterator[Value]:
        """Yield the values in the instruction's operands."""
        for operand in self.operands:
            if isinstance(operand, Value | View):
                yield operand.value if isinstance(operand, View) else operand


def _by_parts(entries: Sequence[object]) -> Iterator[object]:
    for entry in entries:
        if isinstance(entry, Value) and entry.cuts:
            yield from (View(entry, first) for first in sorted(entry.cuts))
        else:
            yield entry


_WIDENS = re.compile(r"vf?w")
_ACCUMULATES = re.compile(r"vf?w?n?m(acc|sac|add|sub)(su|us|u)?\.")
_MEMORY = re.compile(r"v[ls]s?e(\d+)\.v")


class Width:
    """Builder of instructions with one vector type."""

    def __init__(self, loop: Loop, of: Type) -> None:
        self._loop, self.type = loop, of

    def vector(self) -> Value:
        """Create a value that holds a vector of this type."""
        return self._group(self.type.bits)

    def _group(self, bits: int) -> Value:
        return Value(Bank.VECTOR, max(1, int(self.type.group(bits))))

    def make(self, mnemonic: str, *sources: Operand) -> Value:
        """Add an instruction that writes a new value, twice as wide for ``vw*``; return it."""
        bits = self.type.bits * (2 if _WIDENS.match(mnemonic) else 1)
        result = self._group(bits)
        self.put(mnemonic, result, *sources)
        return result

    def put(self, mnemonic: str, to: Vector, *sources: Operand) -> None:
        """Add an instruction that replaces a value, or accumulates into the value (``vmacc``)."""
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
        """Load the vector at a pointer into a new value; then advance the pointer by ``step``.

        ``step``: bytes. ``stride``: bytes between the elements, for ``vlse*``.
        """
        match = _MEMORY.match(mnemonic)
        assert match is not None, mnemonic
        result = self._group(int(match[1]))
        self.load_to(result, mnemonic, pointer, step, memory, stride)
        return result

    def load_to(
        self,
        to: Vector,
        mnemonic: str,
        pointer: Argument,
        step: Operand | None = None,
        memory: str = "",
        stride: Operand | None = None,
    ) -> None:
        """Load a vector into an existing value; then advance the pointer by ``step`` bytes.

        ``memory`` names the memory that is read: a load waits for stores to the same name.
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
        """Store a vector; then advance the pointer by ``step`` bytes; ``memory``: see load_to."""
        writes = (memory or pointer.memory,)
        self._loop.add(mnemonic, "{}, ({})", (value, pointer), (value, pointer), writes, self.type)
        if step is not None:
            self._loop.advance(pointer, step)


class Loop:
    """Description of a loop: instructions before it, in an iteration, and after it.

    Args:
        lmul: registers of a group of 32-bit elements; groups of other widths have as many elements.
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
        """Add a parameter: a pointer or counter that instructions change."""
        return self._argument(Argument(c_type, name, moves=True))

    def pointers(self, **c_types: str) -> list[Argument]:
        """Add parameters that instructions advance, given as name and C type."""
        return [self.pointer(c_type, name) for name, c_type in c_types.items()]

    def parameters(self, *names: str) -> list[Argument]:
        """Add integer parameters that do not change."""
        return [self._argument(Argument("int64_t ", name)) for name in names]

    def _argument(self, argument: Argument) -> Argument:
        self.arguments.append(argument)
        return argument

    def widths(self, count: str, *bits: int, halves: int = 0) -> list[Width]:
        """Return builders for vector types with the number of elements in the parameter ``count``.

        Args:
            count: name of the parameter.
            bits: bits of an element, for each type.
            halves: how often the widest group is halved for these types.
        """
        if all(a.name != count for a in self.arguments):
            self._argument(Argument("size_t ", count))
        return [Width(self, Type(b, self.lmul / 2**halves, count)) for b in bits]

    @contextmanager
    def repeat(self, name: str) -> Iterator[None]:
        """Delimit the body of the loop; the parameter ``name`` counts iterations (1 or more)."""
        self.times = self.pointer("int64_t ", name)
        self._section = self.body
        yield
        self._section = self.after

    def rows(self, first: Argument, distance: Operand, count: int) -> list[Pointer]:
        """Return pointers to ``count`` rows, ``distance`` bytes apart; each advances separately."""
        addresses: list[Pointer] = [first]
        for _ in range(1, count):
            pointer = Value(Bank.INTEGER, memory=first.memory)
            reads = _registers((addresses[-1], distance))
            self.add("add", "{}, {}, {}", (pointer, addresses[-1], distance), reads, (pointer,))
            addresses.append(pointer)
        return addresses

    def advance(self, pointer: Pointer, step: Operand) -> None:
        """Add an instruction that adds bytes to a pointer."""
        mnemonic = "addi" if isinstance(step, int) else "add"
        reads = _registers((pointer, step))
        self.add(mnemonic, "{}, {}, {}", (pointer, pointer, step), reads, (pointer,))

    def integer(self, mnemonic: str, *sources: Operand) -> Value:
        """Add an instruction that writes a new integer; return it."""
        result = Value(Bank.INTEGER)
        text = ", ".join(["{}"] * (len(sources) + 1))
        self.add(mnemonic, text, (result, *sources), _registers(sources), (result,))
        return result

    def scalar(self, mnemonic: str, pointer: Pointer, offset: int) -> Value:
        """Load the number ``offset`` bytes after a pointer, with ``lb``, ``lw`` and the like."""
        number = Value(Bank.FLOAT if mnemonic.startswith("f") else Bank.INTEGER)
        reads = (pointer, pointer.memory)
        self.add(mnemonic, "{}, {}({})", (number, offset, pointer), reads, (number,))
        return number

    def add(
        self,
        mnemonic: str,
        text: str,
        operands: tuple[Operand, ...],
        reads: tuple[object, ...],
        writes: tuple[object, ...],
        vector_type: Type | None = None,
    ) -> None:
        """Append an instruction, given by the fields of :class:`Op`, to the current section."""
        number = len(self._section)
        self._section.append(Op(mnemonic, text, operands, reads, writes, vector_type, number))


def _registers(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    return tuple(o for o in operands if isinstance(o, Value | View | Argument))
