# SPDX-License-Identifier: Apache-2.0
"""Builds that the tests of runtime, runner and counter share: real tools, built once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from crosslab.assemble.runtime import SHIMS, Runtime, build_runtime, ffi_root
from crosslab.cached_build import default_cache
from crosslab.errors import UserError
from crosslab.host.toolchain import Toolchain, find_cross, find_native, require_qemu
from crosslab.run.counting_qemu import counting_qemu
from support.patched_trees import trees

PROJECT = Path(__file__).resolve().parents[2]
CACHE = default_cache()
VMADOT = Path(__file__).with_name("native") / "vmadot.c"


def need_emulator(*, plugins: bool = False) -> None:
    """Skip where there is no emulator, or none that loads plugins."""
    try:
        counting_qemu(CACHE) if plugins else require_qemu()
    except UserError as error:
        pytest.skip(error.what)


@cache
def cross() -> Toolchain:
    """The compiler for riscv64."""
    try:
        return find_cross()
    except UserError as error:
        pytest.skip(error.what)


def tvm_tree() -> Path:
    """The patched TVM tree."""
    tree = trees() / "tvm"
    if not (tree / "src" / "runtime").is_dir():
        pytest.skip(f"no patched TVM tree in {tree}; make it with: nox -s apply_patches")
    try:
        metadata.distribution("apache-tvm")  # its native libraries serve the tree
    except metadata.PackageNotFoundError:
        pytest.skip("needs apache-tvm")
    return tree


@cache
def runtime() -> Runtime:
    """The runtime for riscv64."""
    return build_runtime(tvm_tree(), cross(), CACHE)


@cache
def sanitizing(kinds: str = "address,undefined") -> Toolchain:
    """The compiler of this machine, when it comes with the sanitizers' libraries.

    Args:
        kinds: the value of ``-fsanitize=``; "fuzzer" asks for libFuzzer.
    """
    try:
        tools = find_native()
    except UserError as error:
        pytest.skip(error.what)
    function = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char *, unsigned long)'
    function = function if "fuzzer" in kinds else "int main()"
    with tempfile.TemporaryDirectory() as folder:
        command = [*tools.cxx, f"-fsanitize={kinds}", "-x", "c++", "-", "-o", "program"]
        done = subprocess.run(
            command,
            cwd=folder,
            input=f"{function} {{ return 0; }}",
            text=True,
            capture_output=True,
            check=False,
        )
    if done.returncode != 0:
        pytest.skip(f"{tools.version} has no sanitizers ({kinds}); Debian: libclang-rt-19-dev")
    return tools


@cache
def host_runtime() -> Runtime:
    """The wheel's runtime for this machine, with the headers of the tree and of its tvm_ffi.

    Programs on it find its libraries by ``LD_LIBRARY_PATH``; see :func:`library_folders`.
    """
    tree, ffi = tvm_tree(), ffi_root()
    names = ("tvm_runtime", "tvm_runtime_extra", "tvm_ffi")
    found = [f for n in names for d in library_folders() for f in d.glob(f"lib{n}.so")]
    includes = (tree / "include", ffi / "include", SHIMS / "include")
    return Runtime(tree, find_native().machine, tuple(found), includes)


def library_folders() -> tuple[Path, Path]:
    """Folders of the libraries that the packages tvm and tvm_ffi bring."""
    return Path(os.environ["TVM_LIBRARY_PATH"]), ffi_root() / "lib"
