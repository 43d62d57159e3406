# SPDX-License-Identifier: Apache-2.0
"""The registers that an instruction of RV64GCV reads and writes.

A register is a number: 0 to 31 are x, 32 to 63 are f, 64 to 95 are v; :data:`VSTATE` is vl and
vtype together. ``x0`` is left out. Each register of a vector group is listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from crosslab.run.decode import Instruction

FLOAT, VECTOR, VSTATE = 32, 64, 96
REGISTERS = VSTATE + 1
_LINK, STACK = 1, 2
_MASK = VECTOR

# By funct5 of OP-FP: the register files of its result and of its sources.
_FLOAT_FILES = {20: (0, FLOAT), 24: (0, FLOAT), 28: (0, FLOAT), 26: (FLOAT, 0), 30: (FLOAT, 0)}
_ACCUMULATES = re.compile(r"v[fw]*n?m(acc|acc[su]*|sac|add|sub)\.v[vxf]")
_MASKS = re.compile(r"vm(s(eq|ne|lt|le|gt)u?|f(eq|ne|lt|le|gt|ge)|adc|sbc)\..*")
_OF_MASKS = re.compile(r"vm.*\.mm?")
# Instructions without a second source: its field is zero.
_NO_SECOND = ("vid.v", "vmv.s.x", "vfmv.s.f", "vmv.v.v", "vmv.v.x", "vmv.v.i", "vfmv.v.f")
_TO_FIRST = re.compile(r"vmv\.s\.x|vfmv\.s\.f")
_REDUCTION = re.compile(r"vf?w?red.*")
_EXTENSION = re.compile(r"v[sz]ext\.vf(\d)")


@dataclass(frozen=True)
class Operands:
    """Registers that an instruction reads and writes, each listed once."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


def operands(word: int, instruction: Instruction, sew: int, lmul: Fraction) -> Operands:
    """Return the registers that an instruction reads and writes, by the module's numbers.

    Args:
        word: encoding of the instruction.
        instruction: the decoded instruction.
        sew: element width in force, in bits; 0: unknown, taken as the instruction's own.
        lmul: LMUL in force: registers of a group; 1 if unknown.
    """
    if instruction.vector and word & 0x7F in (0x07, 0x27):
        reads, writes = _vector_memory(word, instruction, sew, lmul)
    elif instruction.vector:
        reads, writes = _vector(word, instruction, sew, lmul)
    elif instruction.sets is not None:
        sources = [] if word >> 30 == 3 else [_bits(word, 15)]
        sources += [_bits(word, 20)] if word >> 30 == 2 else []
        reads, writes = sources, [_bits(word, 7), VSTATE]
    else:
        reads, writes = _scalar(word) if word & 3 == 3 else _compressed(word)
    return Operands(tuple(sorted({r for r in reads if r})), tuple(sorted({r for r in writes if r})))


Registers = tuple[list[int], list[int]]


def _bits(word: int, low: int, width: int = 5) -> int:
    return (word >> low) & ((1 << width) - 1)


def _group(first: int, registers: Fraction | int) -> Iterator[int]:
    for register in range(first, min(first + max(1, math.ceil(registers)), 32)):
        yield VECTOR + register


def _vector(word: int, instruction: Instruction, sew: int, lmul: Fraction) -> Registers:
    name, form = instruction.mnemonic, _bits(word, 12, 3)
    rd, first, second = _bits(word, 7), _bits(word, 15), _bits(word, 20)
    if instruction.registers:
        whole = instruction.registers
        return [*_group(second, whole)], [*_group(rd, whole)]
    doubled = 2 * lmul
    reads = [VSTATE]
    if name not in _NO_SECOND:
        reads += _group(second, _second_width(name, lmul))
    if form in (0, 1, 2) and not _unary(name):
        reads += _group(first, _first_width(name, sew, lmul))
    elif form in (4, 6) and name != "vmv.x.s":
        reads.append(first)
    elif form == 5:
        reads.append(FLOAT + first)
    result = doubled if name.startswith(("vw", "vfw")) else lmul
    if any(pattern.fullmatch(name) for pattern in (_MASKS, _REDUCTION, _OF_MASKS, _TO_FIRST)):
        result = Fraction(1)
    writes = [*_group(rd, result)]
    if name in ("vmv.x.s", "vcpop.m", "vfirst.m"):
        writes = [rd]
    elif name == "vfmv.f.s":
        writes = [FLOAT + rd]
    if instruction.masked or _ACCUMULATES.fullmatch(name) or name.startswith("vslideup"):
        reads += writes
    if instruction.masked or name.endswith(("vm", "vxm", "vim", "vvm", "vfm")):
        reads.append(_MASK)
    return reads, writes


def _unary(name: str) -> bool:
    """True if the field of the first source selects the operation."""
    return bool(
        re.match(r"v[sz]ext|vf[wn]?cvt|vfsqrt|vfr(sqrt7|ec7)|vfclass|vms[bio]f|viota|vid", name)
        or name in ("vcpop.m", "vfirst.m", "vmv.x.s", "vfmv.f.s", "vmv.s.x")
    )


def _second_width(name: str, lmul: Fraction) -> Fraction:
    if extension := _EXTENSION.fullmatch(name):
        return lmul / int(extension[1])
    if (name.startswith(("vn", "vfncvt")) and not name.startswith("vnm")) or ".w" in name:
        return 2 * lmul
    if re.fullmatch(r"vm.*\.mm?|vcpop\.m|vfirst\.m|viota\.m|vf?mv\.[xf]\.s", name):
        return Fraction(1)
    return lmul


def _first_width(name: str, sew: int, lmul: Fraction) -> Fraction:
    if name == "vrgatherei16.vv" and sew:
        return lmul * 16 / sew
    if _REDUCTION.fullmatch(name) or name.endswith(".mm") or name == "vcompress.vm":
        return Fraction(1)
    return lmul


def _vector_memory(word: int, instruction: Instruction, sew: int, lmul: Fraction) -> Registers:
    width, fields, mode = instruction.element_width, _bits(word, 29, 3) + 1, _bits(word, 26, 2)
    reads = [VSTATE, _bits(word, 15)]
    scaled = lmul * width / sew if sew else lmul
    data = scaled
    if instruction.registers:
        data, fields = Fraction(instruction.registers), 1
    elif instruction.mnemonic in ("vlm.v", "vsm.v"):
        data = Fraction(1)
    elif mode in (1, 3):
        data = lmul
        reads += _group(_bits(word, 20), scaled)
    elif mode == 2:
        reads.append(_bits(word, 20))
    moved = [*_group(_bits(word, 7), max(1, math.ceil(data)) * fields)]
    if instruction.masked:
        reads.append(_MASK)
    if word & 0x7F == 0x27:
        return reads + moved, []
    return reads + (moved if instruction.masked else []), moved


def _scalar(word: int) -> Registers:
    opcode, rd = _bits(word, 2), _bits(word, 7)
    first, second = _bits(word, 15), _bits(word, 20)
    table: dict[int, Registers] = {
        0: ([first], [rd]),
        1: ([first], [FLOAT + rd]),
        8: ([first, second], []),
        9: ([first, FLOAT + second], []),
        4: ([first], [rd]),
        6: ([first], [rd]),
        5: ([], [rd]),
        13: ([], [rd]),
        24: ([first, second], []),
        25: ([first], [rd]),
        27: ([], [rd]),
        28: ([first], [rd]),
    }
    if opcode in table:
        return table[opcode]
    if 16 <= opcode <= 19:
        three = (first, second, _bits(word, 27))
        return [FLOAT + r for r in three], [FLOAT + rd]
    if opcode == 20:
        to, source = _FLOAT_FILES.get(_bits(word, 27), (FLOAT, FLOAT))
        # In conversions, roots and moves, the field of the second source selects the operation.
        two = [first] if _bits(word, 27) in (8, 11, 24, 26, 28, 30) else [first, second]
        return [source + r for r in two if source + r], [to + rd] if to + rd else []
    if opcode in (11, 12, 14):
        return [first, second], [rd]
    return [], []


def _compressed(word: int) -> Registers:
    quadrant, funct3 = word & 3, _bits(word, 13, 3)
    if quadrant == 0:
        low, base = 8 + _bits(word, 2, 3), 8 + _bits(word, 7, 3)
        memory: dict[int, Registers] = {
            0: ([STACK], [low]),
            1: ([base], [FLOAT + low]),
            2: ([base], [low]),
            3: ([base], [low]),
            5: ([base, FLOAT + low], []),
            6: ([base, low], []),
            7: ([base, low], []),
        }
        return memory.get(funct3, ([base], [low]))
    rd = _bits(word, 7)
    if quadrant == 1:
        return _compressed_arithmetic(word, funct3, rd)
    second = _bits(word, 2)
    stack: dict[int, Registers] = {
        0: ([rd], [rd]),
        1: ([STACK], [FLOAT + rd]),
        2: ([STACK], [rd]),
        3: ([STACK], [rd]),
        5: ([STACK, FLOAT + second], []),
        6: ([STACK, second], []),
        7: ([STACK, second], []),
    }
    if funct3 in stack:
        return stack[funct3]
    if not second:
        return [rd], [_LINK] if word >> 12 & 1 else []
    return [second, *([rd] if word >> 12 & 1 else [])], [rd]


def _compressed_arithmetic(word: int, funct3: int, rd: int) -> Registers:
    short = 8 + _bits(word, 7, 3)
    if funct3 in (0, 1):
        return [rd], [rd]
    if funct3 in (2, 3):
        return ([STACK] if funct3 == 3 and rd == STACK else []), [rd]
    if funct3 == 4:
        second = [8 + _bits(word, 2, 3)] if _bits(word, 10, 2) == 3 else []
        return [short, *second], [short]
    return ([], []) if funct3 == 5 else ([short], [])
