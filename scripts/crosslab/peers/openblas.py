# SPDX-License-Identifier: Apache-2.0
"""OpenBLAS's products of linear layers between the marks of the instruction counter.

OpenBLAS is the shared library of a pinned wheel for riscv64, whose kernels for VLEN 128 and for 256
and longer are both in it; at its start it takes the ones that the CPU asks for.
"""

from __future__ import annotations

import json
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

from crosslab.build.pinned_archive import PinnedArchive, download
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
# Orders of the weights, of which sgemm and sgemv are each faster with one.
ORDERS = ("stored", "transposed")
WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Werror")
# Of glibc: Debian 12's is older. The driver has the one function that is wanted of it.
NEW_VERSION = "GLIBC_2.38"
# A flag of ELF: a missing version is a warning, not an error.
WEAK_VERSION = 2


def build_openblas(wheel: PinnedArchive, cache: Path) -> Path:
    """The program that calls OpenBLAS, with its library, made once.

    Raises:
        UserError: there is no clang.
        LabError: the wheel cannot be had, or the program does not compile.
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
        # Bound at the start: what is counted are the products.
        command += ["-rdynamic", "-Wl,-z,now", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
        command += [str(library), "-o", str(out / NAME)]
        run_compiler(f"building {NAME}", command, out)

    key = digest(wheel.sha256, Path(__file__), DRIVER, toolchain.digest)
    return cached_build(cache, f"peer-{NAME}", key, make) / NAME


def _weaken(library: Path, version: str) -> None:
    """Let a library load where its C library lacks a version of symbols."""
    with library.open("r+b") as file:
        places = list(_version_flags(ELFFile(file), version))
        if not places:
            raise LabError(f"{library.name} does not need {version}; is it another wheel?")
        for place in places:
            file.seek(place)
            file.write(struct.pack("<H", WEAK_VERSION))


def _version_flags(elf: ELFFile, version: str) -> Iterator[int]:
    """Offsets in the file of the flags of a version that the library wants."""
    section = elf.get_section_by_name(".gnu.version_r")
    at = section["sh_offset"]
    for need, wanted in section.iter_versions():
        one = at + need["vn_aux"]
        for entry in wanted:
            if entry.name == version:
                yield one + 4  # behind the name's hash
            one += entry["vna_next"]
        at += need["vn_next"]


def run_openblas(
    program: Path, order: str, products: Sequence[Sequence[int]], *, vlen: int, cache: Path
) -> tuple[str, Measurement]:
    """Run products under the counter, a region each.

    Args:
        program: of :func:`build_openblas`.
        order: of the weights, one of :data:`ORDERS`.
        products: rows, outputs and inputs of each.
        vlen: bits in a vector register.
        cache: folder of the compiled plugin.

    Returns:
        the kernels that OpenBLAS chose, and what was counted.

    Raises:
        LabError: the program fails, or a product is wrong.
    """
    words = [order, *(str(size) for product in products for size in product)]
    machine = GuestMachine(vlen=vlen, environment={"OPENBLAS_NUM_THREADS": "1"})
    result, measured = count_guest(program, words, machine, cache)
    try:
        return str(json.loads(result.stdout)["kernels"]), measured
    except (ValueError, KeyError) as error:
        raise LabError(f"the answer of {NAME} cannot be read: {result.stdout[:200]!r}") from error
