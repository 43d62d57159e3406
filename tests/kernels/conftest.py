# SPDX-License-Identifier: Apache-2.0
"""Drivers: one static binary for RISC-V under QEMU, one native with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from crosslab.build.kernels import (
    KERNELS,
    OBJECT,
    KernelTarget,
    build_kernels,
    list_header,
    read_kernels,
)
from crosslab.errors import UserError
from crosslab.host.toolchain import CompilerKind, Toolchain, find_cross, find_native, require_qemu

DRIVER = Path(__file__).with_name("driver.c")
WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Werror")


def require(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def link_driver(directory: Path, cc: Sequence[str], link: Sequence[str]) -> str:
    """Compile the driver and link it with the kernel object that lies in ``directory``."""
    (directory / "mlc_rvv_kernel_list.h").write_text(list_header(read_kernels()))
    driver, binary = directory / "driver.o", directory / "driver"
    include = [f"-I{directory}", f"-I{KERNELS / 'include'}"]
    subprocess.run([*cc, *WARNINGS, *include, "-c", str(DRIVER), "-o", str(driver)], check=True)
    objects = [str(driver), str(directory / OBJECT)]
    subprocess.run([*cc, *link, *objects, "-o", str(binary)], check=True)
    return str(binary)


@pytest.fixture(scope="session")
def cross() -> Toolchain:
    try:
        return find_cross()
    except UserError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def qemu() -> Path:
    try:
        return require_qemu().path
    except UserError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def rvv_driver(
    cross: Toolchain, qemu: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], list[str]]:
    """The command that runs the driver at a VLEN."""
    directory = tmp_path_factory.mktemp("rvv")
    build_kernels(KernelTarget.RISCV64, directory)
    driver = link_driver(directory, [*cross.cc, "-O2"], [*cross.link, "-static"])
    return lambda vlen: [str(qemu), "-cpu", f"rv64,v=true,vlen={vlen},vext_spec=v1.0", driver]


@pytest.fixture(scope="session")
def host_driver(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the native driver."""
    try:
        native = find_native()
    except UserError as error:
        pytest.skip(error.what)
    if native.kind is CompilerKind.ZIG:
        pytest.skip("ziglang has no address sanitizer; install gcc or clang")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    directory = tmp_path_factory.mktemp("host")
    build_kernels(KernelTarget.HOST, directory, extra_flags=sanitizers)
    return [link_driver(directory, [*native.cc, *sanitizers, "-O1", "-DDRIVER_RED_ZONES"], [])]
