# SPDX-License-Identifier: Apache-2.0
"""Runs of OpenBLAS's products of linear layers under the instruction counter.

OpenBLAS is the shared library in a pinned wheel for riscv64. It has kernels for VLEN 128, and for
256 and more, and chooses by the CPU when it is loaded.
"""

from __future__ import annotations

import json
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

from crosslab.assemble.pinned_archive import PinnedArchive, download
from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, find_cross
from crosslab.run.counter import count_guest
from crosslab.run.emulator import GuestMachine
from crosslab.run.measurement import Measurement
from groundwork.hashing import digest

NAME = "openblas"
DRIVER = Path(__file__).parents[1] / "native" / "peers" / "openblas.c"
LIBRARY = "libscipy_openblas.so"
WHEEL = ("--only-binary=:all:", "--platform=manylinux_2_39_riscv64")
# Orders of the weights; which order is faster differs between sgemm and sgemv.
ORDERS = ("stored", "transposed")
WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Werror")
# Version of glibc that the library needs; Debian 12's is older. The driver defines the function.
NEW_VERSION = "GLIBC_2.38"
# Flag of ELF that makes a missing version a warning instead of an error.
WEAK_VERSION = 2


def build_openblas(wheel: PinnedArchive, cache: Path) -> Path:
    """Build the program that calls OpenBLAS, with the library, once; return its path.

    Raises:
        UserError: there is no clang.
        LabError: the wheel cannot be downloaded, or the program does not compile.
    """
    toolchain = find_cross(CompilerKind.CLANG)

    def make(out: Path) -> None:
        library = out / LIBRARY
        with (
            tempfile.TemporaryDirectory(prefix="openblas-") as folder,
            zipfile.ZipFile(download(wheel, Path(folder), WHEEL)) as packed,
        ):
            (member,) = (name for name in packed.namelist() if name.endswith(LIBRARY))
            library.write_bytes(packed.read(member))
        _weaken(library, NEW_VERSION)
        command = [*toolchain.cc, *WARNINGS, "-O2", str(DRIVER), *toolchain.link]
        # Resolve symbols at the start, so that only products are counted.
        command += ["-rdynamic", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
        command += [str(library), "-o", str(out / NAME)]
        run_compiler(f"building {NAME}", command, out)

    key = digest(wheel.sha256, Path(__file__), DRIVER, toolchain.digest)
    return cached_build(cache, f"peer-{NAME}", key, make) / NAME


def _weaken(library: Path, version: str) -> None:
    """Let a library load with a C library that lacks a symbol version."""
    with library.open("r+b") as file:
        offsets = list(_version_flags(ELFFile(file), version))
        if not offsets:
            raise LabError(f"{library.name} does not need {version}; is it another wheel?")
        for offset in offsets:
            file.seek(offset)
            file.write(struct.pack("<H", WEAK_VERSION))


def _version_flags(elf: ELFFile, version: str) -> Iterator[int]:
    """Yield the file offsets of a required symbol version's flags."""
    section = elf.get_section_by_name(".gnu.version_r")
    at = section["sh_offset"]
    for need, wanted in section.iter_versions():
        position = at + need["vn_aux"]
        for entry in wanted:
            if entry.name == version:
                yield position + 4  # behind the name's hash
            position += entry["vna_next"]
        at += need["vn_next"]


def run_openblas(
    program: Path, order: str, products: Sequence[Sequence[int]], *, vlen: int, cache: Path
) -> tuple[str, Measurement]:
    """Run products under the counter, with a region for each product.

    Args:
        program: program of :func:`build_openblas`.
        order: order of the weights, one of :data:`ORDERS`.
        products: (rows, outputs, inputs) of each product.
        vlen: bits in a vector register.
        cache: folder of the compiled plugin.

    Returns:
        name of the kernels that OpenBLAS chose, and the counts.

    Raises:
        LabError: the program fails, or a product is wrong.
    """
    words = [order, *(str(size) for product in products for size in product)]
    machine = GuestMachine(vlen=vlen, environment={"OPENBLAS_NUM_THREADS": "1"})
    answer, measured = count_guest(program, words, machine, cache)
    try:
        return str(json.loads(answer)["kernels"]), measured
    except (ValueError, KeyError) as error:
        raise LabError(f"the answer of {NAME} cannot be read: {answer[:200]!r}") from error
