# SPDX-License-Identifier: Apache-2.0
"""Symbol table of a program: functions by address."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from crosslab.errors import LabError

UNNAMED = "(no symbol)"
# Types of symbols in ELF.
FUNCTION = 2
NO_TYPE = 0


@dataclass(frozen=True)
class Symbols:
    """Functions of a program by address.

    A function ends at the next start: sizes in the table are unreliable (LLVM 22 states 36 bytes
    for a function of 15 KB), and assembly code often states none.

    Attributes:
        starts: first address of each function, ascending.
        names: name of each function.
        end: address after the last code section.
    """

    starts: tuple[int, ...]
    names: tuple[str, ...]
    end: int

    @classmethod
    def of(cls, program: Path) -> Symbols:
        """Read the symbol table of an ELF file.

        Raises:
            LabError: the file is not an ELF file, or has no symbols.
        """
        with program.open("rb") as file:
            try:
                elf = ELFFile(file)
            except ELFError as error:
                raise LabError(f"{program} is not an ELF program: {error}") from error
            code = [
                range(section["sh_addr"], section["sh_addr"] + section["sh_size"])
                for section in elf.iter_sections()
                if section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR
            ]
            functions = sorted(set(_functions(elf, code)))
        if not functions:
            raise LabError(
                f"{program} has no symbols to count by function", remedy="link it unstripped"
            )
        starts, names = zip(*functions, strict=True)
        return cls(starts, names, max(part.stop for part in code))

    def at(self, address: int) -> str:
        """Return the name of the function that contains an address; UNNAMED without one."""
        index = bisect.bisect_right(self.starts, address) - 1
        return self.names[index] if index >= 0 and address < self.end else UNNAMED


def _functions(elf: ELFFile, code: list[range]) -> Iterator[tuple[int, str]]:
    """Yield start and name of each function in ``.symtab``."""
    table = elf.get_section_by_name(".symtab")
    if table is None:
        return
    strings = elf.get_section(table["sh_link"]).data()
    # A static program has tens of thousands of symbols: elftools' objects would take ten seconds.
    for name, info, _, index, value, _ in struct.iter_unpack("<IBBHQQ", table.data()):
        if index == 0 or info & 15 not in (FUNCTION, NO_TYPE):
            continue
        text = strings[name : strings.index(b"\0", name)].decode(errors="replace")
        # "$x" and ".L" are the assembler's own marks, not functions.
        is_name = text and not text.startswith(("$", ".L"))
        if is_name and any(value in part for part in code):
            yield value, text
