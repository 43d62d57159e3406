# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, built from a pinned source distribution: for a board, and for this machine."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from crosslab.build.pinned_archive import LLAMA_CPP, PinnedArchive, unpack_source
from crosslab.cached_build import cached_build
from crosslab.cores.core import Core
from crosslab.errors import LabError, UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import (
    CompilerKind,
    Machine,
    Toolchain,
    clang_version,
    find_cross,
    find_native,
)
from crosslab.host.tuning import require_tuning_clang
from groundwork.hashing import digest

NAME = LLAMA_CPP
DRIVER = Path(__file__).parents[1] / "native" / "peers" / "llama_cpp.cpp"
READER = DRIVER.with_name("llama_cpp_text.cpp")
# What of the distribution a build of the library reads.
PARTS = ("CMakeLists.txt", "cmake/", "include/", "src/", "ggml/", "vendor/", "LICENSE")
# Its inline assembly leaves the policies out, which clang 19 does not take; these are the defaults.
WITHOUT_POLICY = re.compile(r'("vset[i]?vli zero, [^"\\]*?e\d+, *mf?\d)(\\n)')
# A build with halves in vectors (Zvfh) has other kernels than one without.
BUILDS = {"zvfh": "ON", "plain": "OFF"}
HOST = "host"
CROSS_OPTIONS = (
    *("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64"),
    *("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DGGML_RV_ZICBOP=OFF"),
)
# GGML_NATIVE would compile for this very CPU: another machine may share the cache.
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
WARNINGS = ("-Wall", "-Wextra", "-Werror")
LIBRARY_NAMES = tuple(Path(library).name for library in LIBRARIES)


def build_llama_cpp(source: PinnedArchive, cache: Path, core: Core | None) -> dict[str, Path]:
    """The program of each of :data:`BUILDS`, made once; about ten minutes of a CPU.

    With a core that LLVM has a scheduling model of, also of builds whose matrix products are
    compiled for it, if a clang that has the model is installed.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be had, or does not compile.
    """
    toolchain = find_cross(CompilerKind.CLANG)
    plain = _build(source, cache, toolchain, "llama")
    programs = _link(cache, toolchain, plain, {})
    tune = core.llvm if core else ""
    if suffix := require_tuning_clang(tune) if tune else None:
        tuned = _tuned(toolchain, suffix, tune)
        found = _build(source, cache, tuned, "ggml")
        for build, path in _link(cache, toolchain, plain, {"ggml": found}).items():
            programs[f"{build}, clang{suffix} -mtune={tune}"] = path
    return programs


def build_reader(source: PinnedArchive, cache: Path) -> Path:
    """The program for this machine that reads a text (:data:`READER`), made once; minutes.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be had, or does not compile.
    """
    toolchain = find_native()
    if toolchain.kind is not CompilerKind.NATIVE:
        raise UserError(
            f"{NAME} is built with GCC or clang; this machine has {toolchain.version} only",
            remedy="install g++, or leave out --peer to measure ours alone",
        )
    libraries = _build(source, cache, toolchain, "llama")

    def make(out: Path) -> None:
        parts = [str(libraries / HOST / name) for name in LIBRARY_NAMES]
        command = [*toolchain.cxx, "-std=c++17", "-O2", *WARNINGS, f"-I{libraries / 'include'}"]
        command += [str(READER), *parts, *toolchain.link, "-lm", "-o", str(out / READER.stem)]
        run_compiler(f"building {NAME}", command, out)

    key = digest(libraries.name, READER, Path(__file__))
    return cached_build(cache, "peer-reader", key, make) / READER.stem


def _tuned(toolchain: Toolchain, suffix: str, tune: str) -> Toolchain:
    """The toolchain with a newer clang that compiles for a core."""
    cc, cxx = (
        (f"{name}{suffix}", *rest, f"-mtune={tune}")
        for name, (_, *rest) in (("clang", toolchain.cc), ("clang++", toolchain.cxx))
    )
    version = ".".join(map(str, clang_version(cc[0])))
    return replace(toolchain, cc=cc, cxx=cxx, digest=digest(toolchain.digest, version, tune))


def _build(source: PinnedArchive, cache: Path, toolchain: Toolchain, goal: str) -> Path:
    """The folder of a goal's libraries, one folder for each build."""

    def make(out: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="llama-cpp-") as folder:
            tree = _unpack(source, Path(folder))
            _compile(tree, Path(folder) / "build", toolchain, goal, out)

    key = digest(source.sha256, Path(__file__), toolchain.digest, goal)
    return cached_build(cache, "peer-llama.cpp", key, make)


def _link(
    cache: Path, toolchain: Toolchain, libraries: Path, others: Mapping[str, Path]
) -> dict[str, Path]:
    """The programs of :data:`BUILDS`; the libraries of ggml may be others."""
    ggml = others.get("ggml", libraries)

    def make(out: Path) -> None:
        include = f"-I{libraries / 'include'}"
        for build in BUILDS:
            parts = [str((libraries if "llama" in n else ggml) / build / n) for n in LIBRARY_NAMES]
            command = [*toolchain.cxx, "-std=c++17", "-O2", include, str(DRIVER), *toolchain.link]
            command += ["-static", *parts, "-o", str(out / build), "-lpthread"]
            run_compiler(f"building {NAME}", command, out)

    made = cached_build(cache, "peer-program", digest(libraries.name, ggml.name, DRIVER), make)
    return {build: made / build for build in BUILDS}


def _unpack(source: PinnedArchive, folder: Path) -> Path:
    """The parts of llama.cpp that a build reads, with policies in its inline assembly."""
    tree = unpack_source(source, PARTS, folder)
    assembly = tree / "ggml" / "src" / "ggml-cpu" / "arch" / "riscv" / "quants.c"
    text, changed = WITHOUT_POLICY.subn(r"\1, tu, mu\2", assembly.read_text(encoding="utf-8"))
    if not changed:
        raise LabError(
            f"{assembly.name} of {NAME} has no assembly of the expected form; is it a new version?"
        )
    assembly.write_text(text, encoding="utf-8")
    return tree


def _compile(tree: Path, build: Path, toolchain: Toolchain, goal: str, out: Path) -> None:
    """All builds in one folder: they differ in one library, and the rest is compiled once."""
    builds: dict[str, tuple[str, ...]] = {HOST: ()}
    if toolchain.machine is Machine.RISCV64:
        builds = {n: (*CROSS_OPTIONS, f"-DGGML_RV_ZVFH={zvfh}") for n, zvfh in BUILDS.items()}
    cmake, ninja = _tool("cmake"), _tool("ninja")
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


def _tool(name: str) -> str:
    """A program of the Python environment, else of the system."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise UserError(
            f"{name}, which builds {NAME}, is missing",
            remedy="it is in the group peers of pyproject.toml, which nox -s bench -- --peer "
            "installs, and so does: uv run --group peers crosslab VERB",
        )
    return path
