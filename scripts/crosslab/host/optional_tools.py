# SPDX-License-Identifier: Apache-2.0
"""System tools that tests alone use: sanitizers, a browser, a booted riscv64 machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.host import toolchain as tools
from groundwork import apt

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class OptionalTool:
    """A tool whose absence skips tests.

    Attributes:
        name: its usual name.
        why: the tests that use it.
        found: it is here.
        packages: Debian packages that bring it; the first that apt knows is installed.
    """

    name: str
    why: str
    found: bool
    packages: tuple[str, ...]


def find_browser() -> str | None:
    """A Chromium, under any of its names."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def examine() -> tuple[OptionalTool, ...]:
    """Look for each tool, again each time."""
    gcc, machine = shutil.which("g++"), shutil.which("qemu-system-riscv64")
    return (
        *_beside_clang(),
        OptionalTool("g++", "TVM's libraries for this machine", bool(gcc), ("g++",)),
        OptionalTool(
            "dpkg-source",
            "Debian's own reading of an exported series",
            bool(shutil.which("dpkg-source")),
            ("dpkg-dev",),
        ),
        OptionalTool("Chromium", "pages in a browser", bool(find_browser()), ("chromium",)),
        OptionalTool("curl", "a client of the server", bool(shutil.which("curl")), ("curl",)),
        OptionalTool(
            "qemu-system-riscv64",
            "the artefact on a booted machine",
            bool(machine),
            ("qemu-system-riscv", "qemu-system-misc"),  # split since Debian 13
        ),
    )


def prepare() -> None:
    """Install the tools that are missing; one line says which were not and why."""
    missing = [tool for tool in examine() if not tool.found]
    if not missing:
        return
    reason = apt.refusal()
    if not reason:
        print("for the tests, installed now with apt-get:", file=sys.stderr)
        apt.update()
        for tool in missing:
            apt.install([_package(tool)])
        missing = [tool for tool in examine() if not tool.found]
        reason = "apt-get failed"
    if missing:
        names = ", ".join(f"{tool.packages[-1]} ({tool.why})" for tool in missing)
        advice = apt.command_line([tool.packages[-1] for tool in missing])
        print(f"not installed, so their tests skip: {names}: {reason}; {advice}", file=sys.stderr)


def _package(tool: OptionalTool) -> str:
    return next(filter(apt.knows, tool.packages), tool.packages[-1])


def _beside_clang() -> Sequence[OptionalTool]:
    """Tools of clang's version; ziglang does not have them."""
    tools.clang_version.cache_clear()
    clang = tools.find_clang()
    if clang is None or clang[1][0] < tools.MINIMUM_CLANG:
        return ()
    suffix, (major, *_) = clang
    folder = tools.output_of([f"clang{suffix}", "-print-resource-dir"]) or "?"
    runtime = any(Path(folder.strip()).glob("lib/*/libclang_rt.fuzzer*.a"))
    names = [f"llvm-{name}-{major}" for name in ("nm", "objdump")]
    return (
        OptionalTool(
            "clang's runtime",
            "sanitizers and libFuzzer",  # GCC has no libFuzzer
            runtime,
            (f"libclang-rt-{major}-dev",),
        ),
        OptionalTool(
            " and ".join(names),
            "the code of kernels",
            all(map(shutil.which, names)),
            (f"llvm-{major}",),
        ),
    )
