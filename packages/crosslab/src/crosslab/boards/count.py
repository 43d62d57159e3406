# SPDX-License-Identifier: Apache-2.0
"""Count the cycles of llama.cpp's kernels on the cores of all boards."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from crosslab.assemble.pinned_archive import read_archive
from crosslab.boards.board import Board
from crosslab.boards.kernels import FILE, HEADER
from crosslab.cached_build import cached_build
from crosslab.cores.core import CORES, Core, read_core
from crosslab.cores.pipeline import all_cycles
from crosslab.errors import LabError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, find_cross
from crosslab.peers.llama_cpp_build import LIBRARY_NAMES, NAME, build_libraries
from crosslab.peers.llama_cpp_programs import DRIVER, WARNINGS
from crosslab.project import PROJECT
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from groundwork.files import atomic_write
from groundwork.hashing import digest

SOURCE = DRIVER.with_name("llama_cpp_kernels.cpp")
# The build with half-precision vectors repacks weights; owners' builds have them.
BUILD = "zvfh"
DIGITS = 4


def count_kernels(boards: Sequence[Board], cache: Path, file: Path = FILE) -> None:
    """Count all kernels on the cores of boards, and write the table.

    Args:
        boards: boards with the cores.
        cache: folder of finished builds.
        file: the table to write.

    Raises:
        UserError: a tool is missing.
        LabError: the program does not compile or run.
    """
    program = _program(cache)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for key in dict.fromkeys(board.core for board in boards):
        core = read_core(CORES, key)
        for name, cycles in _count(program, core, cache):
            writer.writerow((key, name, f"{cycles:.{DIGITS}g}"))
    atomic_write(file, text.getvalue())


def _program(cache: Path) -> Path:
    """Build the program that runs each kernel, once."""
    toolchain = find_cross(CompilerKind.CLANG)
    libraries = build_libraries(read_archive(PROJECT), cache, toolchain, "llama")

    def make(out: Path) -> None:
        parts = [str(libraries / BUILD / name) for name in LIBRARY_NAMES if "llama" not in name]
        command = [*toolchain.cxx, "-std=c++17", "-O2", *WARNINGS, f"-I{libraries / 'include'}"]
        command += [str(SOURCE), *toolchain.link, "-static", *parts, "-lpthread"]
        run_compiler(f"building {NAME}", [*command, "-o", str(out / SOURCE.stem)], out)

    key = digest(libraries.name, SOURCE, Path(__file__))
    return cached_build(cache, "peer-kernels", key, make) / SOURCE.stem


def _count(program: Path, core: Core, cache: Path) -> list[tuple[str, float]]:
    """Return the cycles of each kernel, of the pipeline or without one of the sum."""
    machine = GuestMachine(vlen=core.vlen, zvfh=True)
    result, measured = count_guest(program, [], machine, cache)
    lines = [line.rpartition(",") for line in result.stdout.splitlines()]
    if len(lines) != len(measured.regions):
        raise LabError(f"{program.name} names {len(lines)} of {len(measured.regions)} kernels")
    counted = []
    for region, (name, _, work) in enumerate(lines):
        cycles = all_cycles(core, measured, [region])
        counted.append((name, (cycles.pipeline or cycles.serial) / int(work)))
    return counted
