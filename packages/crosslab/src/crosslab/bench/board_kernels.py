# SPDX-License-Identifier: Apache-2.0
"""``crosslab board-kernels``: count llama.cpp's kernels and ours on the cores of boards."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from crosslab.assemble.kernels import read_kernels
from crosslab.assemble.pinned_archive import read_archive
from crosslab.bench.kernel_bench import Case, attention_case, build, count
from crosslab.boards.board import read_boards
from crosslab.boards.kernels import FILE, HEADER
from crosslab.cached_build import CACHE_OPTION, cached_build
from crosslab.cores.core import Core, core_list
from crosslab.cores.cycles import Cycles
from crosslab.cores.pipeline import all_cycles
from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import CompilerKind, find_cross
from crosslab.peers.llama_cpp_build import LIBRARY_NAMES, build_libraries
from crosslab.peers.llama_cpp_programs import DRIVER, link_program
from crosslab.project import PROJECT
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from groundwork.command_line import Parser, output_file
from groundwork.files import atomic_write
from groundwork.hashing import digest

SOURCE = DRIVER.with_name("llama_cpp_kernels.cpp")
# The build with half-precision vectors repacks weights; owners' builds have them.
BUILD = "zvfh"
DIGITS = 4


# Rows, outputs and inputs of our products with weights in a file's blocks.
PROMPT, TOKEN = (64, 512, 2048), (1, 512, 2048)
OURS = ("q4_0", "q8_0", "q4_K", "q6_K")
# Keys in a tile of our attention, and sizes of a head.
KEYS, HEADS = 16, (64, 128)


def count_kernels(cores: Sequence[Core], cache: Path, file: Path = FILE) -> None:
    """Count all kernels on cores, and write the table; rows of other cores stay.

    Args:
        cores: the cores.
        cache: folder of finished builds.
        file: the table to write.

    Raises:
        UserError: a tool is missing, or the file is not such a table.
        LabError: a program does not compile or run.
    """
    tables = _earlier(file)
    program = _program(cache)
    for core in cores:
        tables[core.key] = []
        for name, cycles, work in (*_count(program, core, cache), *_ours(core, cache)):
            figures = (cycles.pipeline or cycles.serial, cycles.serial, cycles.vec_serial)
            cells = (f"{figure / work:.{DIGITS}g}" for figure in figures)
            tables[core.key].append([core.key, name, *cells])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(row for rows in tables.values() for row in rows)
    atomic_write(file, text.getvalue())


def _earlier(file: Path) -> dict[str, list[list[str]]]:
    """Return the rows of a table by core; none without the file.

    Raises:
        UserError: the file is not such a table.
    """
    if not file.exists():
        return {}
    try:
        header, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}", remedy="give another --out") from error
    if tuple(header) != HEADER or any(len(row) != len(HEADER) for row in rows):
        raise UserError(f"{file} is not a table of kernels", remedy="give another --out")
    tables: dict[str, list[list[str]]] = {}
    for row in rows:
        tables.setdefault(row[0], []).append(row)
    return tables


def _ours(core: Core, cache: Path) -> Iterator[tuple[str, Cycles, int]]:
    """Yield name, cycles and multiply-adds of our products, with kernels compiled for the core."""
    named = [
        (
            f"ours {'gemm' if sizes is PROMPT else 'gemv'} {kind}",
            [Case(f"gemm_gguf_{kind.lower()}", sizes)],
        )
        for kind in OURS
        for sizes in (PROMPT, TOKEN)
    ]
    kernels = [kernel for kernel in read_kernels() if kernel.kv_tile == KEYS]
    for head in HEADS:  # queries by keys, and scores by values
        products = [attention_case(kernel) for kernel in kernels if kernel.d == head]
        named.append((f"ours attention {head}", products))
    cases = [case for _, some in named for case in some]
    with tempfile.TemporaryDirectory(prefix="board-kernels-") as folder:
        measured = count(build(Path(folder), cache, core=core), cases, core.vlen, cache)
    region = 0
    for name, some in named:
        regions = range(region, region := region + len(some))
        yield name, all_cycles(core, measured, regions), sum(case.macs for case in some)


def _program(cache: Path) -> Path:
    """Build the program that runs each of llama.cpp's kernels, unless cached; return its path.

    The first call builds llama.cpp, too, which takes minutes.

    Raises:
        UserError: a tool is missing.
        LabError: llama.cpp or the program does not compile.
    """
    toolchain = find_cross(CompilerKind.CLANG)
    libraries = build_libraries(read_archive(PROJECT), cache, toolchain, "llama")

    parts = [libraries / BUILD / name for name in LIBRARY_NAMES if "llama" not in name]

    def make(out: Path) -> None:
        link_program(SOURCE, toolchain, libraries, parts, out / SOURCE.stem)

    key = digest(libraries.name, SOURCE, Path(__file__))
    return cached_build(cache, "peer-kernels", key, make) / SOURCE.stem


def _count(program: Path, core: Core, cache: Path) -> Iterator[tuple[str, Cycles, int]]:
    """Yield name, cycles, and multiply-adds or elements, of llama.cpp's kernels."""
    machine = GuestMachine(vlen=core.vlen, zvfh=True)
    output, measured = count_guest(program, [], machine, cache)
    lines = [line.rpartition(",") for line in output.splitlines()]
    if len(lines) != len(measured.regions):
        raise LabError(f"{program.name} names {len(lines)} of {len(measured.regions)} kernels")
    for region, (name, _, work) in enumerate(lines):
        yield name, all_cycles(core, measured, [region]), int(work)


def main(argv: Sequence[str]) -> int:
    """Count the kernels, and write the table.

    Raises:
        UserError: a tool is missing.
        LabError: a program does not compile or run.
    """
    options = Parser(
        prog="crosslab board-kernels",
        description="Count the kernels of llama.cpp and ours on cores of boards, for board-check. "
        "Builds llama.cpp once; takes minutes.",
    )
    known = ",".join(dict.fromkeys(board.core for board in read_boards()))
    options.add_argument(
        "--core", type=core_list, default=core_list(known), help=f"cores, with commas ({known})"
    )
    options.add_argument(
        "--out", type=output_file, default=FILE, help="the table to write (kernels.csv)"
    )
    options.add_argument("--cache", **CACHE_OPTION)
    args = options.parse_args(argv)
    count_kernels(args.core, args.cache, args.out)
    return 0
