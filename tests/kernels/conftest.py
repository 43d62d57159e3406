# SPDX-License-Identifier: Apache-2.0
"""Drivers: one static binary for RISC-V under QEMU, one native with sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from crosslab.assemble.kernels import (
    KERNELS,
    OBJECT,
    KernelTarget,
    build_kernels,
    list_header,
    read_kernels,
)
from crosslab.bench.kernel_bench import SOURCE
from crosslab.errors import UserError
from crosslab.host.toolchain import CompilerKind, Toolchain, find_cross, find_native, require_qemu
from crosslab.models.formats import TABLE

DRIVER = Path(__file__).with_name("driver.c")
# A command, by the length of vectors.
AtVlen = Callable[[int], list[str]]
WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Werror")


def link_driver(
    source: Path, directory: Path, cc: Sequence[str], link: Sequence[str], table: Path = TABLE
) -> str:
    """Compile a driver and link it with the kernel object that lies in ``directory``."""
    (directory / "mlc_rvv_kernel_list.h").write_text(list_header(read_kernels(), table))
    driver, binary = directory / "driver.o", directory / "driver"
    include = [f"-I{directory}", f"-I{KERNELS / 'include'}", f"-I{SOURCE.parent}"]
    subprocess.run([*cc, *WARNINGS, *include, "-c", str(source), "-o", str(driver)], check=True)
    objects = [str(driver), str(directory / OBJECT)]
    subprocess.run([*cc, *link, *objects, "-o", str(binary)], check=True)
    return str(binary)


def rvv_command(source: Path, directory: Path, cross: Toolchain, qemu: Path) -> AtVlen:
    """The command that runs a driver around the kernels for RVV at a VLEN."""
    build_kernels(KernelTarget.RISCV64, directory)
    driver = link_driver(source, directory, [*cross.cc, "-O2"], [*cross.link, "-static"])
    return lambda vlen: [str(qemu), "-cpu", f"rv64,v=true,vlen={vlen},vext_spec=v1.0", driver]


def host_command(source: Path, directory: Path, table: Path = TABLE) -> list[str]:
    """The command that runs a driver around the portable kernels, with sanitizers."""
    try:
        native = find_native()
    except UserError as error:
        pytest.skip(error.what)
    if native.kind is CompilerKind.ZIG:
        pytest.skip("ziglang has no address sanitizer; install gcc or clang")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    build_kernels(KernelTarget.HOST, directory, extra_flags=sanitizers, table=table)
    cc = [*native.cc, *sanitizers, "-O1", "-DDRIVER_RED_ZONES"]
    return [link_driver(source, directory, cc, [], table)]


@pytest.fixture(scope="session")
def cross() -> Toolchain:
    try:
        return find_cross()
    except UserError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def qemu(emulator: None) -> Path:
    return require_qemu().path


@pytest.fixture(scope="session")
def rvv_driver(cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory) -> AtVlen:
    """The command that runs the driver at a VLEN."""
    return rvv_command(DRIVER, tmp_path_factory.mktemp("rvv"), cross, qemu)


@pytest.fixture(scope="session")
def host_driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the native driver."""
    return host_command(DRIVER, tmp_path_factory.mktemp("host"))
