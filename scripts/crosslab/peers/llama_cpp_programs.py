# SPDX-License-Identifier: Apache-2.0
"""Programs with llama.cpp: one for the instruction counter, and those for this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from crosslab.build.pinned_archive import PinnedArchive
from crosslab.cached_build import cached_build
from crosslab.cores.core import Core
from crosslab.errors import UserError
from crosslab.host.objects import run_compiler
from crosslab.host.toolchain import CompilerKind, Toolchain, clang_version, find_cross, find_native
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
# For this machine.
READER = DRIVER.with_name("llama_cpp_text.cpp")
FILLER = DRIVER.with_name("llama_cpp_cache.cpp")
WARNINGS = ("-Wall", "-Wextra", "-Werror")


def build_llama_cpp(source: PinnedArchive, cache: Path, core: Core | None) -> dict[str, Path]:
    """The program of each of :data:`BUILDS`, made once; about ten minutes of a CPU.

    With a core that LLVM has a scheduling model of, also of builds whose matrix products are
    compiled for it, if a clang that has the model is installed.

    Raises:
        UserError: a tool is missing.
        LabError: the source cannot be had, or does not compile.
    """
    toolchain = find_cross(CompilerKind.CLANG)
    plain = build_libraries(source, cache, toolchain, "llama")
    programs = _link(cache, toolchain, plain, {})
    tune = core.llvm if core else ""
    if suffix := require_tuning_clang(tune) if tune else None:
        tuned = _tuned(toolchain, suffix, tune)
        found = build_libraries(source, cache, tuned, "ggml")
        for build, path in _link(cache, toolchain, plain, {"ggml": found}).items():
            programs[f"{build}, clang{suffix} -mtune={tune}"] = path
    return programs


def build_native(source: PinnedArchive, program: Path, cache: Path) -> Path:
    """A program for this machine, made once; minutes.

    Args:
        source: llama.cpp's.
        program: its source: :data:`READER` or :data:`FILLER`.
        cache: folder of builds that clones share.

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
    libraries = build_libraries(source, cache, toolchain, "llama")

    def make(out: Path) -> None:
        parts = [str(libraries / HOST / name) for name in LIBRARY_NAMES]
        command = [*toolchain.cxx, "-std=c++17", "-O2", *WARNINGS, f"-I{libraries / 'include'}"]
        command += [str(program), *parts, *toolchain.link, "-lm", "-o", str(out / program.stem)]
        run_compiler(f"building {NAME}", command, out)

    key = digest(libraries.name, program, HEADER, Path(__file__))
    return cached_build(cache, "peer-native", key, make) / program.stem


def _tuned(toolchain: Toolchain, suffix: str, tune: str) -> Toolchain:
    """The toolchain with a newer clang that compiles for a core."""
    cc, cxx = (
        (f"{name}{suffix}", *rest, f"-mtune={tune}")
        for name, (_, *rest) in (("clang", toolchain.cc), ("clang++", toolchain.cxx))
    )
    version = ".".join(map(str, clang_version(cc[0])))
    return replace(toolchain, cc=cc, cxx=cxx, digest=digest(toolchain.digest, version, tune))


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

    key = digest(libraries.name, ggml.name, DRIVER, HEADER)
    made = cached_build(cache, "peer-program", key, make)
    return {build: made / build for build in BUILDS}
