# SPDX-License-Identifier: Apache-2.0
"""Compilers, sysroot and emulator of this machine, and their command lines."""

from __future__ import annotations

import enum
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from crosslab.errors import UserError
from groundwork import apt
from groundwork.hashing import digest

# The first clang with the ratified vector intrinsics that this project's kernels are tried with.
MINIMUM_CLANG = 19
NEWEST_CLANG = 30
# The first whose scheduling models of RISC-V cores have vector instructions.
OLDEST_TUNING_CLANG = 21
MINIMUM_QEMU = (7, 0)
ZIGLANG_PIN = "ziglang==0.15.2"
# Its wheels for Linux on x86-64 and on AArch64.
ZIGLANG_SHA256 = (
    "806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
    "edc0aa60ec964a4cf462d40f68d7de242ddf37fd9a80f2afaee6397059463230",
)
TRIPLE = "riscv64-linux-gnu"
QEMU = "qemu-riscv64"
SYSROOT = Path("/usr/riscv64-linux-gnu")
GCC_CROSS = Path("/usr/lib/gcc-cross/riscv64-linux-gnu")
# Versions of the C++ library that Debian has for another machine.
STDCPP = (12, 13, 14, 11, 15)
NATIVE_LINK = ("-Wl,--gc-sections", "-pthread", "-ldl")
PREPARE = "uv run crosslab prepare"
CLANG_PACKAGE = f"clang-{MINIMUM_CLANG}"
LIBC_PACKAGE = "libc6-dev-riscv64-cross"


def stdcpp_packages(installed: Path = Path("/var/lib/dpkg/info")) -> tuple[str, ...]:
    """Return Debian's packages of the C++ library for riscv64; those of this release first.

    The folder ``installed`` of dpkg lists GCC's packages, whose versions are those of the release.
    """
    names = (path.name.split("-")[1] for path in installed.glob("gcc-*-base*.list"))
    own = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    return tuple(f"libstdc++-{n}-dev-riscv64-cross" for n in dict.fromkeys((*own, *STDCPP)))


class CompilerKind(enum.StrEnum):
    """Origin of the compiler."""

    CLANG = "clang"
    ZIG = "zig"
    NATIVE = "native"


class Machine(enum.StrEnum):
    """Machine that is compiled for."""

    RISCV64 = "riscv64"
    HOST = "host"


@dataclass(frozen=True)
class Toolchain:
    """A C and C++ compiler for one machine, with its target options.

    Attributes:
        kind: where it comes from.
        machine: what it compiles for.
        cc: command that compiles C.
        cxx: command that compiles C++ which may throw. Never with vectors for riscv64: a
            scalable spill in a frame makes libgcc's unwinder abort.
        link: options that choose the linker.
        version: compiler and sysroot, for people.
        digest: the same for cache keys.
    """

    kind: CompilerKind
    machine: Machine
    cc: tuple[str, ...]
    cxx: tuple[str, ...]
    link: tuple[str, ...]
    version: str
    digest: str

    @property
    def is_clang(self) -> bool:
        """True if the command is clang's own, not GCC's and not zig's."""
        return Path(self.cxx[0]).name.startswith("clang")


@dataclass(frozen=True)
class Emulator:
    """A user-mode emulator.

    Attributes:
        path: the program.
        version: its version.
        plugins: it loads plugins, so that instructions can be counted; Debian 13's does not.
        loader: words before the program, of one that has its libraries beside it.
    """

    path: Path
    version: tuple[int, ...]
    plugins: bool
    loader: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The words that run it."""
        return (*self.loader, str(self.path))


def output_of(command: list[str] | tuple[str, ...]) -> str | None:
    """Return the standard output of a command in the C locale; None if it fails or is missing."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=120,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def version_tuple(text: str) -> tuple[int, ...]:
    """The first dotted number of a text: ``(19, 1, 7)``; empty if it has no number."""
    found = re.search(r"\b\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


@lru_cache
def clang_version(command: str) -> tuple[int, ...]:
    """Version of a clang on the path; empty when it is missing or is not clang."""
    path = shutil.which(command)
    text = output_of([path, "-dumpversion"]) if path else None
    return version_tuple(text) if text else ()


def find_clang() -> tuple[str, tuple[int, ...]] | None:
    """Return suffix ("-19", or "" for plain ``clang``) and version of the best clang, or None.

    Of the versions from MINIMUM_CLANG on, the oldest is preferred. Without any, the version is
    too old.
    """
    suffixes = [f"-{n}" for n in range(MINIMUM_CLANG, NEWEST_CLANG)]
    suffixes += ["", *(f"-{n}" for n in range(MINIMUM_CLANG - 1, 12, -1))]
    found = [(s, clang_version(f"clang++{s}")) for s in suffixes]
    good = [(s, v) for s, v in found if v and shutil.which(f"clang{s}")]
    fit = [pair for pair in good if pair[1][0] >= MINIMUM_CLANG]
    return next(iter(fit or good), None)


@lru_cache
def tuning_clang(cpu: str) -> str | None:
    """Return the suffix of the newest clang that schedules code for a CPU; None: no clang does.

    LLVM's models of cores with vectors are from version 21 on, so that an older clang is not asked.
    """
    for number in range(NEWEST_CLANG, OLDEST_TUNING_CLANG - 1, -1):
        clang = f"clang-{number}"
        options = [f"--target={TRIPLE}", f"-mtune={cpu}", "-fsyntax-only", "-xc", os.devnull]
        if clang_version(clang) and output_of([clang, *options]) is not None:
            return f"-{number}"
    return None


def lld_package() -> str:
    """Return Debian's package of the LLD for the best clang, or for the clang to install."""
    clang = find_clang()
    suffix = clang[0] if clang and clang[1][0] >= MINIMUM_CLANG else f"-{MINIMUM_CLANG}"
    return f"lld{suffix}"


def find_lld(suffix: str) -> Path | None:
    """Return the path of the LLD of a clang's suffix, else of plain ``ld.lld``; None without."""
    names = [f"ld.lld{suffix}", "ld.lld"] if suffix else ["ld.lld"]
    paths = (shutil.which(name) for name in names)
    return next((Path(p) for p in paths if p), None)


def sysroot_parts() -> tuple[Path | None, Path | None]:
    """Return the paths of the riscv64 C library and C++ library, each None if it is missing."""
    libc = SYSROOT / "lib" / "libc.a"
    stdcpp = sorted(GCC_CROSS.glob("*/libstdc++.a"), key=lambda p: version_tuple(p.parent.name))
    header = SYSROOT / "include" / "stdio.h"
    whole = libc.is_file() and header.is_file()
    return (libc if whole else None), (stdcpp[-1] if stdcpp else None)


def find_ziglang() -> str | None:
    """Version of PyPI's ziglang in this environment, or None."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return metadata.version("ziglang")


@lru_cache
def find_qemu() -> Emulator | None:
    """Return ``qemu-riscv64`` of any version, or None; ``qemu-riscv64-static`` has no plugins."""
    path = shutil.which(QEMU)
    text = output_of([path, "--version"]) if path else None
    if not path or not text:
        return None
    options = output_of([path, "--help"]) or ""
    return Emulator(Path(path), version_tuple(text), "-plugin" in options)


def require_qemu() -> Emulator:
    """Return the system's ``qemu-riscv64``.

    Raises:
        UserError: the emulator is missing, or older than the ratified vector extension.
    """
    qemu = find_qemu()
    if qemu is None:
        raise UserError("qemu-riscv64 is not installed", remedy=f"type: {PREPARE}")
    if qemu.version < MINIMUM_QEMU:
        have = ".".join(map(str, qemu.version))
        raise UserError(
            f"{qemu.path} is version {have}, without RVV 1.0; 7.0 or newer is needed",
            remedy="install a newer qemu-user and put it first on PATH",
        )
    return qemu


def find_cross(prefer: CompilerKind | None = None) -> Toolchain:
    """Return the compiler for riscv64: clang with lld and Debian's sysroot, else ziglang.

    Args:
        prefer: accept only this kind, CLANG or ZIG; None: both.

    Raises:
        UserError: no compiler works; the message names what is missing or too old.
    """
    if prefer in (None, CompilerKind.CLANG):
        clang = _clang_cross()
        if clang is not None:
            return clang
    if prefer in (None, CompilerKind.ZIG) and (version := find_ziglang()):
        return _zig_cross(version)
    remedy = f"type: {PREPARE}"
    if prefer is CompilerKind.CLANG and find_ziglang():
        # With ziglang nothing is missing for PREPARE.
        needed = (CLANG_PACKAGE, lld_package(), LIBC_PACKAGE, stdcpp_packages()[0])
        remedy = apt.command_line(needed)
    raise UserError(f"no compiler for riscv64: {_why_no_cross(prefer)}", remedy=remedy)


def _why_no_cross(prefer: CompilerKind | None) -> str:
    reasons = []
    clang = find_clang()
    libc, stdcpp = sysroot_parts()
    if clang is None:
        reasons.append(f"clang {MINIMUM_CLANG} or newer is not installed")
    elif clang[1][0] < MINIMUM_CLANG:
        have = ".".join(map(str, clang[1]))
        reasons.append(f"clang{clang[0]} is version {have}, {MINIMUM_CLANG} or newer is needed")
    elif find_lld(clang[0]) is None:
        reasons.append("lld is not installed")
    if libc is None or stdcpp is None:
        reasons.append("the riscv64 C and C++ libraries are not installed")
    if prefer is CompilerKind.ZIG:
        reasons = []
    if prefer is not CompilerKind.CLANG:
        reasons.append("the Python package ziglang is not installed either")
    return "; ".join(reasons)


def _clang_cross() -> Toolchain | None:
    clang = find_clang()
    libc, stdcpp = sysroot_parts()
    if clang is None or clang[1][0] < MINIMUM_CLANG or libc is None or stdcpp is None:
        return None
    suffix, version = clang
    lld = find_lld(suffix)
    if lld is None:
        return None
    aim = (f"--target={TRIPLE}", "-march=rv64gc", "-mabi=lp64d")
    text = f"clang {'.'.join(map(str, version))}, libstdc++ {stdcpp.parent.name}, {lld.name}"
    return Toolchain(
        kind=CompilerKind.CLANG,
        machine=Machine.RISCV64,
        cc=(f"clang{suffix}", *aim),
        cxx=(f"clang++{suffix}", *aim),
        link=(f"--ld-path={lld}", "-Wl,--gc-sections"),
        version=text,
        digest=digest(text, libc, stdcpp),
    )


def _zig_cross(version: str) -> Toolchain:
    aim = ("-target", "riscv64-linux-musl", "-mcpu=generic_rv64+m+a+f+d+c")
    # zig's headers do not say the byte order in the way that tvm_ffi asks for it.
    common = (*aim, "-DTVM_FFI_CMAKE_LITTLE_ENDIAN=1")
    zig = (sys.executable, "-m", "ziglang")
    text = f"ziglang {version}, musl, libc++"
    return Toolchain(
        kind=CompilerKind.ZIG,
        machine=Machine.RISCV64,
        cc=(*zig, "cc", *common),
        cxx=(*zig, "c++", *common),
        link=("-Wl,--gc-sections",),
        version=text,
        digest=digest(text),
    )


def find_native() -> Toolchain:
    """Return the compiler for this machine: clang or GCC from the system, else ziglang.

    Raises:
        UserError: no compiler is installed.
    """
    pairs = [("gcc", "g++"), ("clang", "clang++"), ("cc", "c++")]
    clang = find_clang()
    if clang and clang[0]:
        pairs.insert(0, (f"clang{clang[0]}", f"clang++{clang[0]}"))
    for cc, cxx in pairs:
        if shutil.which(cc) and shutil.which(cxx):
            text = f"{cc} {(output_of([cc, '-dumpfullversion', '-dumpversion']) or '').strip()}"
            # Faster than the system's linker by several times.
            lld = find_lld(clang[0]) if clang and cc == f"clang{clang[0]}" else None
            link = (f"--ld-path={lld}", *NATIVE_LINK) if lld else NATIVE_LINK
            key = digest(text, str(lld), platform.machine())
            return Toolchain(CompilerKind.NATIVE, Machine.HOST, (cc,), (cxx,), link, text, key)
    if version := find_ziglang():
        zig = (sys.executable, "-m", "ziglang")
        text = f"ziglang {version}"
        key = digest(text, platform.machine())
        return Toolchain(
            CompilerKind.ZIG, Machine.HOST, (*zig, "cc"), (*zig, "c++"), NATIVE_LINK, text, key
        )
    raise UserError("no C compiler for this machine", remedy=f"type: {PREPARE}")
