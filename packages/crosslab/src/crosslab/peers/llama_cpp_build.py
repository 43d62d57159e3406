# SPDX-License-Identifier: Apache-2.0
"""Build of llama.cpp's libraries from a pinned source, for a board and for this machine."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crosslab.assemble.cmake import find_tool
from crosslab.assemble.pinned_archive import LLAMA_CPP, PinnedArchive, unpack_source
from crosslab.cached_build import cached_build
from crosslab.errors import LabError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import Machine, Toolchain
from groundwork.hashing import digest

NAME = LLAMA_CPP
# Parts of the distribution that the build needs.
PARTS = ("CMakeLists.txt", "cmake/", "include/", "src/", "ggml/", "vendor/", "LICENSE")
# vset* in llama.cpp's assembly has no policies, which clang 19 refuses; the defaults are added.
WITHOUT_POLICY = re.compile(r'("vset[i]?vli zero, [^"\\]*?e\d+, *mf?\d)(\\n)')
# SpacemiT's sources need GCC: clang has no parameters of type auto in C++17, and prefixes vmadot.
AUTO = "constexpr auto div_round_up(auto up, auto down)"
TEMPLATE = "template <class U, class D> constexpr auto div_round_up(U up, D down)"
VMADOT = r"""__asm__(".macro vmadot to, left, right\n.option push\n.option arch, +xsmtvdot\n"
        "smt.vmadot \\to, \\left, \\right\n.option pop\n.endm\n");
"""
# Options of builds. Those with half-precision vectors (Zvfh) use different kernels.
BUILDS = {"zvfh": ("-DGGML_RV_ZVFH=ON",), "plain": ("-DGGML_RV_ZVFH=OFF",)}
HOST = "host"
CROSS_OPTIONS = (
    *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64"),
    *("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DGGML_RV_ZICBOP=OFF"),
)
# GGML_NATIVE would compile for this CPU, but other machines may share the cache.
OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF", "-DLLAMA_OPENSSL=OFF"),
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")),
    *("-DLLAMA_BUILD_APP=OFF", "-DGGML_CCACHE=OFF"),
)
LIBRARIES = (
    "src/libllama.a",
    *(f"ggml/src/{library}.a" for library in ("libggml", "libggml-cpu", "libggml-base")),
)
LIBRARY_NAMES = tuple(Path(library).name for library in LIBRARIES)


def build_libraries(
    source: PinnedArchive,
    cache: Path,
    toolchain: Toolchain,
    goal: str,
    builds: Mapping[str, Sequence[str]] = BUILDS,
) -> Path:
    """Build llama.cpp's libraries once; return the cached folder, with a folder per build.

    Args:
        source: archive of llama.cpp.
        cache: folder of builds that clones share.
        toolchain: toolchain for a board, or for this machine.
        goal: goal of the build: "llama" with all dependencies, or "ggml".
        builds: options of CMake by build, for a board.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be downloaded or compiled.
    """

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="llama-cpp-") as folder:
            tree = _unpack(source, Path(folder))
            _compile(tree, Path(folder) / "build", toolchain, goal, builds, out)

    key = digest(source.sha256, Path(__file__), toolchain.digest, goal, *builds)
    return cached_build(cache, "peer-llama.cpp", key, make)


def _unpack(source: PinnedArchive, folder: Path) -> Path:
    """Unpack the sources that a build needs, and change what clang does not compile."""
    tree = unpack_source(source, PARTS, folder)
    cpu = tree / "ggml" / "src" / "ggml-cpu"
    _change(cpu / "arch/riscv/quants.c", lambda text: WITHOUT_POLICY.sub(r"\1, tu, mu\2", text))
    _change(cpu / "spacemit/rvv_kernels.h", lambda text: text.replace(AUTO, TEMPLATE))
    _change(cpu / "spacemit/ime1_kernels.cpp", lambda text: VMADOT * ("vmadot " in text) + text)
    return tree


def _change(file: Path, change: Callable[[str], str]) -> None:
    text = file.read_text(encoding="utf-8")
    if (changed := change(text)) == text:
        raise LabError(f"{file.name} of {NAME} has another form; is it a new version?")
    file.write_text(changed, encoding="utf-8")


def _compile(
    tree: Path,
    build: Path,
    toolchain: Toolchain,
    goal: str,
    builds: Mapping[str, Sequence[str]],
    out: Path,
) -> None:
    """Compile all builds in one folder, as the builds differ only in one library."""
    if toolchain.machine is not Machine.RISCV64:
        builds = {HOST: ()}
    else:
        builds = {name: (*CROSS_OPTIONS, *options) for name, options in builds.items()}
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    aim = " ".join(toolchain.cc[1:])
    flags = [f"-DCMAKE_C_COMPILER={toolchain.cc[0]}", f"-DCMAKE_CXX_COMPILER={toolchain.cxx[0]}"]
    flags += [f"-DCMAKE_C_FLAGS={aim}", f"-DCMAKE_CXX_FLAGS={aim}"]
    flags += [f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    build.mkdir()
    for name, options in builds.items():
        configure = [cmake, "-G", "Ninja", "-S", str(tree), *OPTIONS, *options, *flags]
        for command in (configure, [ninja, "--quiet", goal]):
            run_compiler(f"building {NAME}", command, build)
        (out / name).mkdir()
        for library in LIBRARIES:
            if (build / library).exists():
                shutil.copy(build / library, out / name)
    for headers in (tree / "include", tree / "ggml" / "include"):
        shutil.copytree(headers, out / "include", dirs_exist_ok=True)
