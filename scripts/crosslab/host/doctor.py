# SPDX-License-Identifier: Apache-2.0
"""What this machine lacks, why it is needed, and how it gets here."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from crosslab.errors import LabError, UserError
from crosslab.host import toolchain as tools

_out = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Tool:
    """A tool and what is known of it.

    Attributes:
        name: what it is called.
        why: what it is needed for.
        found: version or path; empty when it is not there.
        problem: what is wrong with it; empty when it is good.
        packages: Debian packages that bring it, the preferred one first.
        replaced: ziglang does its work just as well.
    """

    name: str
    why: str
    found: str
    problem: str
    packages: tuple[str, ...]
    replaced: bool


@dataclass(frozen=True)
class Report:
    """Every tool, and the two questions that matter.

    Attributes:
        tools: all that was looked for.
        ziglang: version of ziglang in this environment; empty when it is not there.
        emulates: a riscv64 program can be run.
        compiles: a riscv64 program can be built.
    """

    tools: tuple[Tool, ...]
    ziglang: str
    emulates: bool
    compiles: bool

    @property
    def whole(self) -> bool:
        """Nothing is missing."""
        return self.emulates and self.compiles


def examine() -> Report:
    """Look at this machine, anew each time."""
    tools.find_qemu.cache_clear()
    tools.clang_version.cache_clear()
    zig = tools.find_ziglang() or ""
    found = (_qemu(), *_clang(), *_sysroot(), _native())
    compiles = bool(zig) or not any(t.problem for t in found if t.replaced)
    emulates = not any(t.problem for t in found if not t.replaced)
    return Report(found, zig, emulates, compiles)


def missing_packages(report: Report) -> tuple[Tool, ...]:
    """The tools whose packages have to be installed; none that ziglang stands in for."""
    return tuple(t for t in report.tools if t.problem and not (t.replaced and report.ziglang))


def _tool(name: str, why: str, found: str, problem: str, *packages: str, zig: bool) -> Tool:
    return Tool(name, why, found, problem or ("" if found else "missing"), packages, zig)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _qemu() -> Tool:
    qemu = tools.find_qemu()
    found = f"{_dotted(qemu.version)} ({qemu.path})" if qemu else ""
    if qemu and not qemu.plugins:
        found += ", without plugins: cannot count instructions"
    old = qemu is not None and qemu.version < tools.MINIMUM_QEMU
    problem = f"too old: {_dotted(tools.MINIMUM_QEMU)} or newer is needed" if old else ""
    why = "runs RISC-V programs and counts their instructions"
    return _tool("qemu-riscv64", why, found, problem, "qemu-user", zig=False)


def _clang() -> tuple[Tool, Tool]:
    clang = tools.find_clang()
    found = f"{_dotted(clang[1])} (clang{clang[0]})" if clang else ""
    old = clang is not None and clang[1][0] < tools.MINIMUM_CLANG
    problem = f"too old: {tools.MINIMUM_CLANG} or newer is needed" if old else ""
    lld = tools.find_lld(clang[0]) if clang and not old else None
    compiler = _tool(
        "clang",
        "compiles the runtime, the runner and the kernels for RISC-V",
        found,
        problem,
        "clang-19",
        zig=True,
    )
    linker = _tool("lld", "links RISC-V programs", str(lld) if lld else "", "", "lld-19", zig=True)
    return compiler, linker


def _sysroot() -> tuple[Tool, Tool]:
    libc, stdcpp = tools.sysroot_parts()
    names = tuple(f"libstdc++-{n}-dev-riscv64-cross" for n in (12, 13, 14, 11, 15))
    return (
        _tool(
            "riscv64 C library",
            "headers and libraries that RISC-V programs are built with",
            str(libc) if libc else "",
            "",
            "libc6-dev-riscv64-cross",
            zig=True,
        ),
        _tool(
            "riscv64 C++ library",
            "the same for C++",
            str(stdcpp) if stdcpp else "",
            "",
            *names,
            zig=True,
        ),
    )


def _native() -> Tool:
    try:
        found = tools.find_native().version
    except UserError:
        found = ""
    why = "compiles the counter that QEMU loads"
    return _tool("C compiler of this machine", why, found, "", "clang-19", "gcc", zig=True)


def print_report(report: Report) -> None:
    """The report as a table, and what to type."""
    table = Table(box=None, pad_edge=False)
    for heading in ("tool", "found", "needed for"):
        table.add_column(heading, overflow="fold")
    for tool in report.tools:
        instead = tool.problem and tool.replaced and report.ziglang
        mark = "yellow" if instead else "red" if tool.problem else "green"
        state = " ".join(part for part in (tool.found, tool.problem) if part)
        table.add_row(tool.name, f"[{mark}]{state}[/]", tool.why)
    table.add_row("ziglang", report.ziglang or "[dim]not installed[/]", "stands in for clang")
    _out.print(table)
    if report.whole:
        _out.print("everything is there")
    else:
        _out.print(f"type: {tools.PREPARE}", style="yellow")


def doctor(argv: Sequence[str]) -> int:
    """The verb ``doctor``; 0 when everything is there, else 2."""
    parser = argparse.ArgumentParser(prog="crosslab doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args(argv)
    report = examine()
    if arguments.json:
        wanted = [t.packages[0] for t in missing_packages(report)]
        print(json.dumps({**asdict(report), "whole": report.whole, "missing": wanted}, indent=2))
    else:
        print_report(report)
    return 0 if report.whole else 2


def prepare(argv: Sequence[str]) -> int:
    """The verb ``prepare``: install what is missing, or say what to type.

    Raises:
        UserError: something is missing that cannot be installed from here.
    """
    parser = argparse.ArgumentParser(prog="crosslab prepare", description=prepare.__doc__)
    parser.parse_args(argv)
    report = examine()
    if report.whole:
        _out.print(f"system packages: all there ({_summary(report)})", style="dim")
        return 0
    root = _root_command()
    if root is not None:
        _install_by_apt(missing_packages(report), root)
        report = examine()
    if report.emulates and not report.compiles:
        _install_zig()
        report = examine()
    if not report.whole:
        raise UserError(
            "these are missing: " + ", ".join(t.name for t in missing_packages(report)),
            remedy=_what_to_type(missing_packages(report)),
        )
    _out.print(f"system packages: all there ({_summary(report)})")
    return 0


def _summary(report: Report) -> str:
    qemu, clang = report.tools[0].found, report.tools[1].found
    missing = any(t.problem for t in report.tools if t.replaced)
    return f"qemu {qemu.split()[0]}, " + (
        f"ziglang {report.ziglang}" if missing else f"clang {clang.split()[0]}"
    )


def _what_to_type(missing: Sequence[Tool]) -> str:
    packages = " ".join(_unique(t.packages[0] for t in missing))
    if shutil.which("apt-get") is None:
        return f"install what Debian calls: {packages}"
    return f"type: sudo apt-get update && sudo apt-get install {packages}"


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _root_command() -> list[str] | None:
    """What goes before apt-get to run it as root; None when that cannot be done."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and tools.output_of(["sudo", "-n", "true"]) is not None:
        return ["sudo", "-n"]
    return None


def _install_by_apt(missing: Sequence[Tool], root: Sequence[str]) -> None:
    """Install what apt knows; what it does not know or cannot fetch is left missing."""
    _out.print("these system packages are missing and are installed now with apt-get:")
    for tool in missing:
        _out.print(f"  {tool.packages[0]}: {tool.why} ({tool.name} {tool.problem})")
    _apt(root, "update")
    known = {t.name: next((p for p in t.packages if _apt_knows(p)), None) for t in missing}
    # The emulator has no substitute: it does not fail with the compilers.
    for group in (False, True):
        names = _unique(n for t in missing if t.replaced is group and (n := known[t.name]))
        if names:
            _apt(root, "install", "-y", "--no-install-recommends", *names)


def _apt(root: Sequence[str], *arguments: str) -> None:
    environment = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"]
    command = [*root, *environment, "apt-get", "-q", *arguments]
    _out.print(f"  $ {shlex.join(command)}", style="dim", markup=False)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        _out.print(f"  apt-get ended with exit code {done.returncode}", style="yellow")


def _apt_knows(package: str) -> bool:
    return bool(tools.output_of(["apt-cache", "show", "--no-all-versions", package]))


def _install_zig() -> None:
    """Put ziglang into this Python's environment.

    Raises:
        LabError: pip cannot install it.
    """
    _out.print(
        f"no clang for RISC-V: {tools.ZIGLANG_PIN} takes its place and is installed into "
        f"{sys.prefix} (90 MB)"
    )
    hashes = " ".join(f"--hash=sha256:{h}" for h in tools.ZIGLANG_SHA256)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    with tempfile.NamedTemporaryFile("w", prefix="ziglang-", suffix=".txt") as pinned:
        pinned.write(f"{tools.ZIGLANG_PIN} {hashes}\n")
        pinned.flush()
        code = subprocess.run([*pip, "-r", pinned.name], check=False).returncode
    if code != 0:
        raise LabError(
            f"pip cannot install {tools.ZIGLANG_PIN}",
            remedy=_what_to_type(missing_packages(examine())),
            exit_code=2,
        )


def main(argv: Sequence[str]) -> int:
    """Do ``doctor`` or ``prepare``, whichever comes first in ``argv``."""
    verb = {"doctor": doctor, "prepare": prepare}[argv[0]]
    return verb(argv[1:])
