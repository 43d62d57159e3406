# SPDX-License-Identifier: Apache-2.0
"""The functions of a program by address."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.errors import LabError

UNNAMED = "(no symbol)"


@dataclass(frozen=True)
class Symbols:
    """Functions of a program by address.

    A function reaches to the next one: the sizes in the table are not to be trusted (LLVM 22
    states 36 bytes for a function of 15 KB), and code from assembly often states none.

    Attributes:
        starts: first address of each, ascending.
        names: their symbols.
        end: the address behind the last one.
    """

    starts: tuple[int, ...]
    names: tuple[str, ...]
    end: int

    @classmethod
    def of(cls, program: Path) -> Symbols:
        """Read the symbol table of a 64-bit little-endian ELF file.

        Raises:
            LabError: the file is no such ELF, or is stripped.
        """
        data = program.read_bytes()
        if data[:6] != b"\x7fELF\x02\x01":
            raise LabError(f"{program} is not a 64-bit little-endian ELF program")
        sections = _elf_sections(data)
        code = [(s[3], s[3] + s[5]) for s in sections if s[2] & EXECUTABLE]
        found = sorted(set(_elf_functions(data, sections, code)))
        if not found:
            raise LabError(
                f"{program} has no symbols to count by function", remedy="link it unstripped"
            )
        starts, names = zip(*found, strict=True)
        return cls(starts, names, max(end for _, end in code))

    def at(self, address: int) -> str:
        """The function that this address belongs to."""
        index = bisect.bisect_right(self.starts, address) - 1
        return self.names[index] if index >= 0 and address < self.end else UNNAMED


SYMBOL_TABLE = 2
EXECUTABLE = 4
FUNCTION = 2
NO_TYPE = 0

# Name, type, flags, address, offset, size, link, info, alignment, entry size.
Section = tuple[int, ...]


def _elf_sections(data: bytes) -> list[Section]:
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    return [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]


def _elf_functions(
    data: bytes, sections: Sequence[Section], code: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, str]]:
    """Start and name of each function in ``.symtab``."""
    for section in (s for s in sections if s[1] == SYMBOL_TABLE):
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if index == 0 or info & 15 not in (FUNCTION, NO_TYPE):
                continue
            text = data[strings + name : data.index(b"\0", strings + name)].decode(errors="replace")
            # "$x" and ".L" are the assembler's own marks, not functions.
            own = text and not text.startswith(("$", ".L"))
            if own and any(low <= value < high for low, high in code):
                yield value, text
