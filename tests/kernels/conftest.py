# SPDX-License-Identifier: Apache-2.0
"""Drivers: one static binary for RISC-V under QEMU, one native with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from crosslab.kernels import (
    KERNELS,
    OBJECT,
    KernelTarget,
    build_kernels,
    list_header,
    read_kernels,
)

DRIVER = Path(__file__).with_name("driver.c")
WARNINGS = ("-std=c17", "-Wall", "-Wextra", "-Werror")


def require(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def link_driver(directory: Path, command: list[str]) -> Path:
    """Compile the driver against the kernel object that lies in ``directory``."""
    (directory / "mlc_rvv_kernel_list.h").write_text(list_header(read_kernels()))
    binary = directory / "driver"
    arguments = [*WARNINGS, f"-I{directory}", f"-I{KERNELS / 'include'}", str(DRIVER)]
    subprocess.run([*command, *arguments, str(directory / OBJECT), "-o", str(binary)], check=True)
    return binary


@pytest.fixture(scope="session")
def rvv_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("clang-19", "ld.lld-19", "qemu-riscv64")
    if not Path("/usr/riscv64-linux-gnu/lib/libc.a").exists():
        pytest.skip("not installed: libc6-dev-riscv64-cross")
    directory = tmp_path_factory.mktemp("rvv")
    build_kernels(KernelTarget.RISCV64, directory)
    flags = ["--target=riscv64-linux-gnu", "-march=rv64gc", "-mabi=lp64d", "-fuse-ld=lld-19"]
    return link_driver(directory, ["clang-19", *flags, "-O2", "-static"])


@pytest.fixture(scope="session")
def host_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("clang-19") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not installed: clang-19 or gcc")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    directory = tmp_path_factory.mktemp("host")
    build_kernels(KernelTarget.HOST, directory, compiler=[compiler], extra_flags=sanitizers)
    return link_driver(directory, [compiler, *sanitizers, "-O1", "-DDRIVER_RED_ZONES"])
