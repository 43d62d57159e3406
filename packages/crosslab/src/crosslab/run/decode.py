# SPDX-License-Identifier: Apache-2.0
"""Decoder of RV64GCV encodings to vector mnemonics and classes of scalar instructions.

Vector mnemonics are those of the "V" extension 1.0 and Zvfh. Scalar instructions have a class, by
their effect on a pipeline: ``load``, ``store``, ``branch``, ``jump``, ``add`` (any integer
operation of one step), ``mul``, ``div``, ``fload``, ``fstore``, ``fma`` (any floating-point
operation without its own class), ``fdiv`` (division and root), ``fmove`` (between the register
files, and sign injection), ``atomic``, ``system``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache


class Unit(Enum):
    """Part of a core that executes an instruction."""

    SCALAR = "scalar"
    MEMORY = "vector memory"
    ARITHMETIC = "vector arithmetic"


@dataclass(frozen=True)
class Instruction:
    """An instruction without its registers.

    Attributes:
        mnemonic: name in assembly; for a scalar instruction, its class.
        unit: part of the core that executes it.
        masked: the instruction has the mask ``v0.t``.
        zero_stride: a strided load or store whose stride is ``x0``.
        element_width: element width in bits that a load or store encodes; 0 for other instructions.
        registers: number of registers of a whole-register move, load or store; else 0.
        sets: lowest six bits of the vtype that vset* sets; -1: unknown (vsetvl); None: not a vset*.
    """

    mnemonic: str
    unit: Unit = Unit.SCALAR
    masked: bool = False
    zero_stride: bool = False
    element_width: int = 0
    registers: int = 0
    sets: int | None = None

    @property
    def vector(self) -> bool:
        """True if the instruction works on vectors; vset* does not."""
        return self.unit is not Unit.SCALAR


# By funct6; missing numbers are reserved encodings of version 1.0.
_INTEGER = {
    **{0: "vadd", 2: "vsub", 3: "vrsub", 4: "vminu", 5: "vmin", 6: "vmaxu", 7: "vmax", 9: "vand"},
    **{10: "vor", 11: "vxor", 12: "vrgather", 14: "vslideup", 15: "vslidedown", 16: "vadc"},
    **{17: "vmadc", 18: "vsbc", 19: "vmsbc", 23: "vmerge", 24: "vmseq", 25: "vmsne", 26: "vmsltu"},
    **{27: "vmslt", 28: "vmsleu", 29: "vmsle", 30: "vmsgtu", 31: "vmsgt", 32: "vsaddu"},
    **{33: "vsadd", 34: "vssubu", 35: "vssub", 37: "vsll", 39: "vsmul", 40: "vsrl", 41: "vsra"},
    **{42: "vssrl", 43: "vssra", 44: "vnsrl", 45: "vnsra", 46: "vnclipu", 47: "vnclip"},
    **{48: "vwredsumu", 49: "vwredsum"},
}
_MULTIPLY = {
    **{0: "vredsum", 1: "vredand", 2: "vredor", 3: "vredxor", 4: "vredminu", 5: "vredmin"},
    **{6: "vredmaxu", 7: "vredmax", 8: "vaaddu", 9: "vaadd", 10: "vasubu", 11: "vasub"},
    **{14: "vslide1up", 15: "vslide1down", 23: "vcompress", 24: "vmandn", 25: "vmand"},
    **{26: "vmor", 27: "vmxor", 28: "vmorn", 29: "vmnand", 30: "vmnor", 31: "vmxnor"},
    **{32: "vdivu", 33: "vdiv", 34: "vremu", 35: "vrem", 36: "vmulhu", 37: "vmul", 38: "vmulhsu"},
    **{39: "vmulh", 41: "vmadd", 43: "vnmsub", 45: "vmacc", 47: "vnmsac", 48: "vwaddu"},
    **{49: "vwadd", 50: "vwsubu", 51: "vwsub", 52: "vwaddu.w", 53: "vwadd.w", 54: "vwsubu.w"},
    **{55: "vwsub.w", 56: "vwmulu", 58: "vwmulsu", 59: "vwmul", 60: "vwmaccu", 61: "vwmacc"},
    **{62: "vwmaccus", 63: "vwmaccsu"},
}
_FLOAT = {
    **{0: "vfadd", 1: "vfredusum", 2: "vfsub", 3: "vfredosum", 4: "vfmin", 5: "vfredmin"},
    **{6: "vfmax", 7: "vfredmax", 8: "vfsgnj", 9: "vfsgnjn", 10: "vfsgnjx", 14: "vfslide1up"},
    **{15: "vfslide1down", 23: "vfmerge", 24: "vmfeq", 25: "vmfle", 27: "vmflt", 28: "vmfne"},
    **{29: "vmfgt", 31: "vmfge", 32: "vfdiv", 33: "vfrdiv", 36: "vfmul", 39: "vfrsub"},
    **{40: "vfmadd", 41: "vfnmadd", 42: "vfmsub", 43: "vfnmsub", 44: "vfmacc", 45: "vfnmacc"},
    **{46: "vfmsac", 47: "vfnmsac", 48: "vfwadd", 49: "vfwredusum", 50: "vfwsub"},
    **{51: "vfwredosum", 52: "vfwadd.w", 54: "vfwsub.w", 56: "vfwmul", 60: "vfwmacc"},
    **{61: "vfwnmacc", 62: "vfwmsac", 63: "vfwnmsac"},
}
_REDUCTIONS = ("vred", "vwred", "vfred", "vfwred")
_NARROWING = {"vnsrl", "vnsra", "vnclipu", "vnclip"}
# Operand v0 is not a mask; vm = 1 is another instruction, or (vmadc, vmsbc) means no carry in.
_CARRIES = {"vadc", "vmadc", "vsbc", "vmsbc", "vmerge", "vfmerge"}
# Conversions (funct6 = 18 of the floating-point forms) by vs1.
_CONVERSIONS = ("xu.f", "x.f", "f.xu", "f.x", "f.f", "rod.f.f", "rtz.xu.f", "rtz.x.f")
_FLOAT_UNARY = {0: "vfsqrt.v", 4: "vfrsqrt7.v", 5: "vfrec7.v", 16: "vfclass.v"}
_EXTENSIONS = {2: "vzext.vf8", 3: "vsext.vf8", 4: "vzext.vf4", 5: "vsext.vf4"}
_EXTENSIONS |= {6: "vzext.vf2", 7: "vsext.vf2"}
_MASK_UNARY = {1: "vmsbf.m", 2: "vmsof.m", 3: "vmsif.m", 16: "viota.m", 17: "vid.v"}
# By funct6 of the multiply forms, then vs1.
_UNARY = {
    16: {0: "vmv.x.s", 16: "vcpop.m", 17: "vfirst.m"},
    18: _EXTENSIONS,
    20: _MASK_UNARY,
}
_SUFFIX = {0: "v", 1: "v", 2: "v", 3: "i", 4: "x", 5: "f", 6: "x"}
_CRYPTO = "vector crypto"


@cache
def decode(word: int) -> Instruction:
    """Decode an encoding of 16 or 32 bits; the lowest two bits of 32-bit encodings are 3."""
    if word & 3 != 3:
        return Instruction(_compressed(word))
    opcode = word & 0x7F
    if opcode == 0x57:
        return _vector(word)
    if opcode in (0x07, 0x27) and not 1 <= _bits(word, 14, 12) <= 4:
        return _vector_memory(word)
    if opcode == 0x77:
        return Instruction(_CRYPTO, Unit.ARITHMETIC)
    return Instruction(_scalar(word))


def _bits(word: int, high: int, low: int) -> int:
    return (word >> low) & ((1 << (high - low + 1)) - 1)


def _vector(word: int) -> Instruction:
    form = _bits(word, 14, 12)
    if form == 7:
        return _vset(word)
    funct6, source, masked = _bits(word, 31, 26), _bits(word, 19, 15), not _bits(word, 25, 25)
    if form == 3 and funct6 == 39 and not masked:
        name = f"vmv{source + 1}r.v"
        return Instruction(name, Unit.ARITHMETIC, registers=source + 1)
    if form in (0, 3, 4):
        mnemonic = _integer(funct6, form, masked)
    elif form in (2, 6):
        mnemonic = _multiply(funct6, form, source)
    else:
        mnemonic = _float(funct6, form, source, masked)
    if mnemonic.split(".")[0] in _CARRIES or mnemonic.startswith("vcompress"):
        masked = False
    return Instruction(mnemonic, Unit.ARITHMETIC, masked)


def _vset(word: int) -> Instruction:
    if not word >> 31:
        return Instruction("vsetvli", sets=_bits(word, 25, 20))
    if word >> 30 == 3:
        return Instruction("vsetivli", sets=_bits(word, 25, 20))
    return Instruction("vsetvl", sets=-1)


def _integer(funct6: int, form: int, masked: bool) -> str:
    if funct6 == 14 and form == 0:
        return "vrgatherei16.vv"
    name, kind = _INTEGER.get(funct6, "reserved"), _SUFFIX[form]
    if name in _CARRIES and (masked or name in ("vadc", "vsbc")):
        return f"{name}.v{kind}m"
    if name == "vmerge":
        return f"vmv.v.{kind}"
    if name.startswith(_REDUCTIONS):
        return f"{name}.vs"
    return f"{name}.{'w' if name in _NARROWING else 'v'}{kind}"


def _multiply(funct6: int, form: int, source: int) -> str:
    if form == 6 and funct6 == 16:
        return "vmv.s.x"
    if form == 2 and funct6 in _UNARY:
        return _UNARY[funct6].get(source, "reserved")
    name = _MULTIPLY.get(funct6, "reserved")
    if form == 2 and 24 <= funct6 <= 31:
        return f"{name}.mm"
    return (
        "vcompress.vm" if name == "vcompress" else _with_operands(name, "v" if form == 2 else "x")
    )


def _float(funct6: int, form: int, source: int, masked: bool) -> str:
    if funct6 == 16:
        return "vfmv.f.s" if form == 1 else "vfmv.s.f"
    if form == 1 and funct6 == 18:
        widths = ("vfcvt", "vfwcvt", "vfncvt")
        which, kind = divmod(source, 8)
        return f"{widths[which % 3]}.{_CONVERSIONS[kind]}.{'w' if which == 2 else 'v'}"
    if form == 1 and funct6 == 19:
        return _FLOAT_UNARY.get(source, "reserved")
    name = _FLOAT.get(funct6, "reserved")
    if name == "vfmerge":
        return "vfmerge.vfm" if masked else "vfmv.v.f"
    return _with_operands(name, "v" if form == 1 else "f")


def _with_operands(name: str, kind: str) -> str:
    if name.startswith(_REDUCTIONS):
        return f"{name}.vs"
    return f"{name}{kind}" if name.endswith(".w") else f"{name}.v{kind}"


def _vector_memory(word: int) -> Instruction:
    letter = "l" if word & 0x7F == 0x07 else "s"
    width = {0: 8, 5: 16, 6: 32, 7: 64}.get(_bits(word, 14, 12), 8)
    fields, mode, source = _bits(word, 31, 29) + 1, _bits(word, 27, 26), _bits(word, 24, 20)
    masked = not _bits(word, 25, 25)
    registers, zero = 0, False
    segments = f"seg{fields}" if fields > 1 else ""
    if mode == 0 and source == 8:
        registers = fields
        name = f"v{letter}{fields}r" + (f"e{width}.v" if letter == "l" else ".v")
    elif mode == 0 and source == 11:
        name = f"v{letter}m.v"
    elif mode == 0:
        name = f"v{letter}{segments}e{width}{'ff' if source == 16 else ''}.v"
    elif mode == 2:
        zero = source == 0
        name = f"v{letter}s{segments}e{width}.v"
    else:
        order = "u" if mode == 1 else "o"
        name = f"v{letter}{order}x{segments}ei{width}.v"
    return Instruction(name, Unit.MEMORY, masked, zero, width, registers)


def _scalar(word: int) -> str:
    opcode = _bits(word, 6, 2)
    simple = {0: "load", 1: "fload", 8: "store", 9: "fstore", 11: "atomic", 24: "branch"}
    simple |= {25: "jump", 27: "jump", 3: "system", 28: "system"}
    if opcode in simple:
        return simple[opcode]
    if opcode in (12, 14) and _bits(word, 31, 25) == 1:
        return "div" if _bits(word, 14, 14) else "mul"
    if opcode == 20:
        operation = _bits(word, 31, 27)
        if operation in (3, 11):
            return "fdiv"
        return "fmove" if operation in (4, 28, 30) else "fma"
    return "fma" if 16 <= opcode <= 19 else "add"


def _compressed(word: int) -> str:
    quadrant, funct3 = word & 3, _bits(word, 15, 13)
    if quadrant == 1:
        return {5: "jump", 6: "branch", 7: "branch"}.get(funct3, "add")
    memory = {1: "fload", 2: "load", 3: "load", 5: "fstore", 6: "store", 7: "store"}
    if quadrant == 2 and funct3 == 4:
        # c.jr and c.jalr have no second register; c.mv and c.add have one.
        jump = _bits(word, 6, 2) == 0 and _bits(word, 11, 7) != 0
        return "jump" if jump else "add"
    return memory.get(funct3, "add")
