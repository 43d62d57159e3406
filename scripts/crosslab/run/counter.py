# SPDX-License-Identifier: Apache-2.0
"""Count the instructions of a guest: whole, between marks, and by function."""

from __future__ import annotations

import bisect
import json
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from common.hashing import digest
from crosslab.cached_build import cached_build
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import find_native, require_qemu
from crosslab.run.emulator import GuestMachine, GuestResult, run_guest

PLUGIN = Path(__file__).parents[1] / "native" / "counter"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
UNNAMED = "(no symbol)"

# The plugin interface by QEMU's version: see native/counter/qemu_plugin_api.h.
PLUGIN_API = (((9, 1), 3), ((9, 0), 2), ((0,), 1))


@dataclass(frozen=True)
class Counts:
    """Executed instructions.

    Attributes:
        insns: all of them.
        vector: vector instructions, memory included, vset* not.
        vsetvl: vsetvli, vsetivli, vsetvl.
        vmem: vector loads and stores.
        lmul_weighted: the others (scalar and vset*) once, and each vector instruction with the
            LMUL in force (a fraction with 1); whole-register moves, loads and stores with
            their number of registers.
        unknown_lmul: vector instructions that ran after a vsetvl, whose vtype is in a register
            and is not followed; they weigh 1. Compilers hardly make one.
    """

    insns: int = 0
    vector: int = 0
    vsetvl: int = 0
    vmem: int = 0
    lmul_weighted: int = 0
    unknown_lmul: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def phase_counts(regions: Sequence[Counts], prefills: int) -> tuple[Counts, Counts | None]:
    """Counts of the two phases of an answer.

    Args:
        regions: counts of each call: first the prefill's, then the decode steps.
        prefills: number of the prefill's calls.

    Returns:
        the prefill's calls together, and the mean of the decode steps after the first, which also
        grows the allocator's pools; of the first when it is alone; None without decode steps.
    """
    steps = regions[prefills:]
    steady = steps[1:] or steps
    total = asdict(sum(steady, Counts()))
    mean = {name: round(value / len(steady)) for name, value in total.items()} if steady else None
    return sum(regions[:prefills], Counts()), Counts(**mean) if mean else None


@dataclass(frozen=True)
class FunctionCounts:
    """Instructions of one function itself, without its callees."""

    symbol: str
    whole: Counts
    region: Counts


@dataclass(frozen=True)
class Measurement:
    """Result of the counter.

    Attributes:
        whole: the program from its start to its end.
        regions: one a pair of marks, in order; the marks themselves are outside.
        threads: how many ran.
        functions: by symbol, most instructions in the regions first; empty unless asked for.
    """

    whole: Counts
    regions: tuple[Counts, ...]
    threads: int
    functions: tuple[FunctionCounts, ...] = ()

    @property
    def region(self) -> Counts:
        """All regions together."""
        return sum(self.regions, Counts())


def build_plugin(cache: Path) -> Path:
    """Compile the plugin for the emulator that is here; once.

    Raises:
        UserError: there is no emulator, or none that loads plugins, or no compiler.
        LabError: it does not compile.
    """
    qemu = require_qemu()
    if not qemu.plugins:
        have = ".".join(map(str, qemu.version))
        raise UserError(
            f"{qemu.path} ({have}) was built without plugins: it cannot count instructions",
            remedy="put a qemu-riscv64 with plugins first on PATH; Debian 12's qemu-user has them",
        )
    api = next(number for version, number in PLUGIN_API if qemu.version >= version)
    toolchain = find_native()
    command = [*toolchain.cc, *FLAGS, *WARNINGS, f"-DMLC_RVV_PLUGIN_API={api}", "counter.c"]

    def make(out: Path) -> None:
        done = subprocess.run(
            [*command, "-o", str(out / "counter.so"), "-lpthread"],
            cwd=PLUGIN,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            raise LabError(f"compiling the counter failed:\n{done.stderr.strip()}")

    key = digest(toolchain.digest, " ".join(command), PLUGIN)
    return cached_build(cache, "counter", key, make) / "counter.so"


def count_guest(
    program: Path,
    arguments: Sequence[str],
    machine: GuestMachine,
    cache: Path,
    *,
    cwd: Path | None = None,
    functions: bool = False,
) -> tuple[GuestResult, Measurement]:
    """Run a program under the counter.

    Args:
        program: the guest; with ``functions``, static and not stripped.
        arguments: its arguments.
        machine: the CPU. One thread counts the same from run to run; several do not.
        cache: folder for the compiled plugin.
        cwd: where the guest runs.
        functions: count by function too.

    Raises:
        LabError: see :func:`run_guest`; or the marks do not come in pairs.
    """
    plugin = build_plugin(cache)
    with tempfile.TemporaryDirectory(prefix="counter-") as folder:
        report = Path(folder) / "counts.json"
        option = f"{plugin},out={report}" + (",blocks=on" if functions else "")
        result = run_guest(program, arguments, machine, cwd=cwd, plugin=["-plugin", option])
        try:
            table = json.loads(report.read_text(encoding="utf-8"))
        except OSError as error:
            raise LabError(f"{program.name} ended without a report of the counter") from error
    if not table["balanced"]:
        raise LabError(f"{program.name}: the marks of the region do not come in pairs")
    return result, read_measurement(table, program if functions else None)


def run_counted(
    program: Path, arguments: Sequence[str], machine: GuestMachine, cache: Path
) -> tuple[GuestResult, Measurement | None]:
    """As :func:`count_guest`; an emulator that loads no plugins runs it without counting.

    Returns:
        what the guest said, and its counts or None.

    Raises:
        LabError: see :func:`count_guest`.
    """
    if require_qemu().plugins:
        return count_guest(program, arguments, machine, cache)
    return run_guest(program, arguments, machine), None


def read_measurement(table: Mapping[str, Any], program: Path | None) -> Measurement:
    """The plugin's JSON; with a program, its blocks summed up by the program's symbols.

    Raises:
        LabError: the program has no symbols.
    """
    by_symbol: tuple[FunctionCounts, ...] = ()
    if program is not None:
        by_symbol = _by_function(table["blocks"], Symbols.of(program))
    return Measurement(
        whole=Counts(**table["whole"]),
        regions=tuple(Counts(**counts) for counts in table["regions"]),
        threads=table["threads"],
        functions=by_symbol,
    )


def _by_function(
    blocks: Iterable[Mapping[str, Any]], symbols: Symbols
) -> tuple[FunctionCounts, ...]:
    whole: dict[str, Counts] = {}
    region: dict[str, Counts] = {}
    for block in blocks:
        name = symbols.at(block["address"])
        whole[name] = whole.get(name, Counts()) + Counts(**block["whole"])
        region[name] = region.get(name, Counts()) + Counts(**block["region"])
    found = [FunctionCounts(name, whole[name], region[name]) for name in whole]
    return tuple(sorted(found, key=lambda f: (-f.region.insns, -f.whole.insns, f.symbol)))


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
