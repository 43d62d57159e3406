# SPDX-License-Identifier: Apache-2.0
"""``crosslab core-loops``: pipeline cycles of a round of each innermost loop in an object file.

A loop is the code from the target of a backward branch to that branch, without calls and other
loops in it. Nothing is executed: the vtype in force is that of the last vset* above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import Section
from rich.console import Console
from rich.table import Table

from crosslab.cores.core import Core, core_option
from crosslab.cores.machine import machine_of
from crosslab.cores.pipeline import Translator
from crosslab.errors import UserError
from crosslab.run.decode import Unit
from crosslab.run.measurement import VTYPE_UNKNOWN, Kind, Segment
from crosslab.run.symbols import Symbols
from groundwork.command_line import Parser

# R_RISCV_BRANCH and R_RISCV_RVC_BRANCH of the RISC-V ELF psABI.
BRANCHES = (16, 44)
RV64 = 64  # bits of an address
# Rounds before the measurement, and measured rounds.
WARM, ROUNDS = 20, 10


@dataclass(frozen=True)
class Loop:
    """A loop: function, address, and (encoding, kind) of each instruction."""

    symbol: str
    address: int
    instructions: tuple[tuple[int, Kind], ...]


def loops_of(path: Path) -> Iterator[Loop]:
    """Yield the innermost loops of an object file or program, in order.

    Raises:
        UserError: the file is missing, is not an ELF file for riscv64, has no branch targets, or
            is an object with several sections of code.
        LabError: the file has no symbols.
    """
    for start, words in code_of(path):
        yield from _loops(Symbols.of(path), start, words)


def code_of(path: Path) -> list[tuple[int, dict[int, int]]]:
    """Return the address of each code section, and its instructions by address.

    Raises:
        UserError: the file is missing, is not an ELF file for riscv64, has no branch targets, or
            is an object with several sections of code.
    """
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf.get_machine_arch() != "RISC-V" or elf.elfclass != RV64:
                raise UserError(
                    f"{path} is for {elf.get_machine_arch()}, {elf.elfclass} bits, not for riscv64",
                    remedy="compile it with --target riscv64-linux-gnu (crosslab kernels --target "
                    "riscv64)",
                )
            if any(map(_has_branches, elf.iter_sections())):
                raise UserError(
                    f"{path} has no targets of branches: the linker fills them in",
                    remedy="compile with -mno-relax (crosslab kernels --no-relax)",
                )
            parts = [
                section
                for section in elf.iter_sections()
                if section.name.startswith(".text") and section["sh_size"]
            ]
            if elf["e_type"] == "ET_REL" and len(parts) > 1:
                raise UserError(
                    f"{path} has several sections of code, which have no addresses yet",
                    remedy="compile with -fno-function-sections, or link it",
                )
            return [(part["sh_addr"], dict(_words(part["sh_addr"], part.data()))) for part in parts]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ELFError as error:
        raise UserError(f"{path} is not an ELF file: {error}") from error


def _has_branches(section: Section) -> bool:
    """True if the section lets the linker write the targets of conditional branches."""
    if not isinstance(section, RelocationSection) or not section.name.startswith(".rela.text"):
        return False
    return any(entry["r_info_type"] in BRANCHES for entry in section.iter_relocations())


def _loops(symbols: Symbols, start: int, words: dict[int, int]) -> Iterator[Loop]:
    addresses = list(words)
    segment = Segment(start, tuple(words.values()))
    kinds = dict(zip(addresses, segment.kinds(VTYPE_UNKNOWN), strict=True))
    places = {at: place for place, at in enumerate(addresses)}
    ends = {at: target for at in addresses if (target := _target(at, words[at])) is not None}
    for end, begin in ends.items():
        if begin > end or begin not in words:
            continue
        inside = addresses[places[begin] : places[end] + 1]
        if any(ends.get(at, end + 1) <= at for at in inside if at != end):
            continue
        if any(_calls(words[at]) for at in inside):
            continue
        yield Loop(symbols.at(begin), begin, tuple((words[at], kinds[at]) for at in inside))


def _words(start: int, code: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 2 <= len(code):
        size = 4 if code[at] & 3 == 3 else 2
        yield start + at, int.from_bytes(code[at : at + size], "little")
        at += size


def _calls(word: int) -> bool:
    """Return True for a jump that keeps its return address: ``jal`` and ``jalr`` to ra or t0."""
    if word & 3 == 3:
        return word & 0x7F in (0x67, 0x6F) and word >> 7 & 31 in (1, 5)
    return word & 0xF07F == 0x9002 and word >> 7 != 0x9002 >> 7


def _target(at: int, word: int) -> int | None:
    """Return the target address of a conditional branch; None for other instructions."""
    if word & 0x7F == 0x63:
        value = (word >> 8 & 15) << 1 | (word >> 25 & 63) << 5 | (word >> 7 & 1) << 11
        return at + value - ((word >> 31 & 1) << 12)
    if word & 3 == 1 and word < 1 << 16 and word >> 13 in (6, 7):
        value = (word >> 3 & 3) << 1 | (word >> 10 & 3) << 3 | (word >> 2 & 1) << 5
        value |= (word >> 5 & 3) << 6
        return at + value - ((word >> 12 & 1) << 8)
    return None


def cycles_of_loop(core: Core, loop: Loop) -> float:
    """Return the cycles of a round of a loop in the steady state, on the core's pipeline."""
    translator, machine = Translator(core), machine_of(core.require_pipeline())
    steps = [translator.step(word, kind) for word, kind in loop.instructions]
    for _ in range(WARM):
        machine.run(steps)
    start = machine.now
    for _ in range(ROUNDS):
        machine.run(steps)
    return (machine.now - start) / ROUNDS


def cycles_of_units(core: Core, loop: Loop) -> dict[Unit, float]:
    """Return the cycles of a round's instructions, summed by unit; NaN: a cost is unknown."""
    sums = dict.fromkeys(Unit, 0.0)
    for _, kind in loop.instructions:
        sums[kind.instruction.unit] += core.cost(kind).cycles
    return sums


def main(argv: Sequence[str]) -> int:
    """Print the cycles of the loops of an object file.

    Raises:
        UserError: the file has no loops, or the core has no pipeline.
    """
    options = Parser(
        prog="crosslab core-loops",
        description="Print the cycles of a round of each innermost loop in an object file, by a "
        "core's pipeline. Compile with -mno-relax, else the object does not have branch targets.",
    )
    options.add_argument("object", type=Path, help="object file or program for riscv64")
    options.add_argument(
        "--core", type=core_option, default="spacemit-x60", help="core (%(default)s)"
    )
    options.add_argument("--function", help="only the loops of this function (all)")
    args = options.parse_args(argv)
    matches = [c for c in loops_of(args.object) if args.function in (None, c.symbol)]
    if not matches:
        raise UserError(
            f"{args.object} has no such loop",
            remedy="--function takes a whole name, such as mlc_axpy_m4",
        )
    table = Table(title=f"{args.core.name}: cycles of a round", box=None, padding=(0, 1, 0, 0))
    for heading in ("function", "at", "instructions", *(u.value for u in Unit), "pipeline"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for loop in matches:
        sums = cycles_of_units(args.core, loop)
        table.add_row(
            loop.symbol,
            f"{loop.address:#x}",
            str(len(loop.instructions)),
            *(f"{sums[unit]:.1f}" for unit in Unit),
            f"{cycles_of_loop(args.core, loop):.1f}",
        )
    Console(highlight=False, width=120).print(table)
    return 0
