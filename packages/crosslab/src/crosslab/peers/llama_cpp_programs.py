# SPDX-License-Identifier: Apache-2.0
"""Programs with llama.cpp: for the instruction counter, and for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from crosslab.assemble.pinned_archive import PinnedArchive
from crosslab.cached_build import cached_build
from crosslab.cores.core import Core
from crosslab.errors import UserError
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
from crosslab.peers.llama_cpp_build import (
    BUILDS,
    HOST,
    LIBRARY_NAMES,
    NAME,
    build_libraries,
)
from groundwork.hashing import digest

DRIVER = Path(__file__).parents[1] / "native" / "peers" / "llama_cpp.cpp"
HEADER = DRIVER.with_suffix(".h")
# Sources of the programs for this machine.
READER = DRIVER.with_name("llama_cpp_text.cpp")
FILLER = DRIVER.with_name("llama_cpp_cache.cpp")
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def build_llama_cpp(source: PinnedArchive, cache: Path, core: Core | None) -> dict[str, Path]:
    """Build the program for each of :data:`BUILDS` once, in ten CPU minutes; return the paths.

    If LLVM has a scheduling model of the core, and a clang with the model is installed, builds with
    matrix products tuned for the core are added.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be downloaded or compiled.
    """
    toolchain = find_cross(CompilerKind.CLANG)
    plain = build_libraries(source, cache, toolchain, "llama")
    programs = _programs(cache, toolchain, plain, plain)
    tune = core.llvm if core else ""
    if suffix := require_tuning_clang(tune) if tune else None:
        tuned = tuned_toolchain(toolchain, suffix, tune)
        tuned_libraries = build_libraries(source, cache, tuned, "ggml")
        for build, path in _programs(cache, toolchain, plain, tuned_libraries).items():
            programs[f"{build}, clang{suffix} -mtune={tune}"] = path
    return programs


def _programs(cache: Path, toolchain: Toolchain, libraries: Path, ggml: Path) -> dict[str, Path]:
    """Link the program of each build, with ggml's libraries of a folder; return the paths."""

    def make(out: Path) -> None:
        for build in BUILDS:
            parts = [(libraries if "llama" in n else ggml) / build / n for n in LIBRARY_NAMES]
            link_program(DRIVER, toolchain, libraries, parts, out / build)

    key = digest(libraries.name, ggml.name, DRIVER, HEADER, Path(__file__))
    linked = cached_build(cache, "peer-program", key, make)
    return {build: linked / build for build in BUILDS}


def link_program(
    program: Path,
    toolchain: Toolchain,
    libraries: Path,
    parts: Sequence[Path],
    out: Path,
) -> None:
    """Compile a program, and link it with libraries of llama.cpp; it is static for a board.

    Args:
        program: source of the program.
        toolchain: compiler and linker.
        libraries: folder of :func:`build_libraries`, for the headers.
        parts: libraries and further objects, in the linker's order.
        out: the file to write.

    Raises:
        LabError: the program does not compile or link.
    """
    static = ["-static"] if toolchain.machine is Machine.RISCV64 else []
    command = [*toolchain.cxx, "-std=c++17", "-O2", *WARNINGS, f"-I{libraries / 'include'}"]
    command += [str(program), *map(str, parts), *static, *toolchain.link, "-lpthread"]
    run_compiler(f"building {NAME}", [*command, "-o", str(out)], out.parent)


def build_native(source: PinnedArchive, program: Path, cache: Path) -> Path:
    """Build a program for this machine once; takes minutes.

    Args:
        source: archive of llama.cpp.
        program: source of the program: :data:`READER` or :data:`FILLER`.
        cache: folder of builds that clones share.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be downloaded or compiled.
    """
    toolchain = find_native()
    if toolchain.kind is not CompilerKind.NATIVE:
        raise UserError(
            f"{NAME} is built with GCC or clang; this machine has {toolchain.version} only",
            remedy="install g++, or leave out --peer to measure ours alone",
        )
    libraries = build_libraries(source, cache, toolchain, "llama")
    parts = [libraries / HOST / name for name in LIBRARY_NAMES]

    def make(out: Path) -> None:
        link_program(program, toolchain, libraries, parts, out / program.stem)

    key = digest(libraries.name, program, HEADER, Path(__file__))
    return cached_build(cache, "peer-native", key, make) / program.stem


def tuned_toolchain(toolchain: Toolchain, suffix: str, tune: str) -> Toolchain:
    """Return the toolchain with a newer clang that tunes for a core."""
    cc, cxx = (
        (f"{name}{suffix}", *rest, f"-mtune={tune}")
        for name, (_, *rest) in (("clang", toolchain.cc), ("clang++", toolchain.cxx))
    )
    version = ".".join(map(str, clang_version(cc[0])))
    return replace(toolchain, cc=cc, cxx=cxx, digest=digest(toolchain.digest, version, tune))
