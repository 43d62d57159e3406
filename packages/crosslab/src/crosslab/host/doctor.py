# SPDX-License-Identifier: Apache-2.0
"""Missing tools of this machine: their purpose and their installation."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from crosslab.errors import LabError, UserError
from crosslab.host import optional_tools
from crosslab.host import toolchain as tools
from groundwork import apt
from groundwork.command_line import Parser
from groundwork.offline import offline

_out = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Tool:
    """A tool of this machine, or a missing one.

    Attributes:
        name: of the tool.
        why: its purpose.
        found: version or path; empty when it is missing.
        problem: empty when it is good.
        packages: Debian packages that install it, the preferred one first.
        replaced: ziglang can replace it.
    """

    name: str
    why: str
    found: str
    problem: str
    packages: tuple[str, ...]
    replaced: bool


@dataclass(frozen=True)
class Report:
    """Every tool, and the abilities of this machine.

    Attributes:
        tools: that the project uses.
        ziglang: version of ziglang in this environment; empty when it is missing.
        emulates: riscv64 programs can be run.
        compiles: riscv64 programs can be built.
    """

    tools: tuple[Tool, ...]
    ziglang: str
    emulates: bool
    compiles: bool

    @property
    def whole(self) -> bool:
        """True if riscv64 programs can be built, by clang or ziglang, and run."""
        return self.emulates and self.compiles


def examine() -> Report:
    """Look for every tool on this machine, without results of earlier calls."""
    tools.find_qemu.cache_clear()
    tools.clang_version.cache_clear()
    zig = tools.find_ziglang() or ""
    found = (_qemu(), *_clang(), *_sysroot(), _native())
    compiles = bool(zig) or not any(t.problem for t in found if t.replaced)
    emulates = not any(t.problem for t in found if not t.replaced)
    return Report(found, zig, emulates, compiles)


def missing_packages(report: Report) -> tuple[Tool, ...]:
    """Return the tools whose packages have to be installed, without those that ziglang replaces."""
    return tuple(t for t in report.tools if t.problem and not (t.replaced and report.ziglang))


def _tool(name: str, why: str, found: str, problem: str, *packages: str, zig: bool) -> Tool:
    return Tool(name, why, found, problem or ("" if found else "missing"), packages, zig)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _qemu() -> Tool:
    qemu = tools.find_qemu()
    found = f"{_dotted(qemu.version)} ({qemu.path})" if qemu else ""
    if qemu and not qemu.plugins:
        found += ", without plugins: another build is downloaded to count instructions"
    old = qemu is not None and qemu.version < tools.MINIMUM_QEMU
    problem = f"too old: {_dotted(tools.MINIMUM_QEMU)} or newer is needed" if old else ""
    why = "runs RISC-V programs and counts their instructions"
    return _tool("qemu-riscv64", why, found, problem, "qemu-user", zig=False)


def _clang() -> tuple[Tool, Tool]:
    clang = tools.find_clang()
    found = f"{_dotted(clang[1])} (clang{clang[0]})" if clang else ""
    old = clang is not None and clang[1][0] < tools.MINIMUM_CLANG
    problem = f"too old: {tools.MINIMUM_CLANG} or newer is needed" if old else ""
    lld = str(tools.find_lld(clang[0]) or "") if clang and not old else ""
    why = "compiles the runtime, the runner and the kernels for RISC-V"
    return (
        _tool("clang", why, found, problem, tools.CLANG_PACKAGE, zig=True),
        _tool("lld", "links RISC-V programs", lld, "", tools.lld_package(), zig=True),
    )


def _sysroot() -> tuple[Tool, Tool]:
    for_c, for_cxx = (str(part or "") for part in tools.sysroot_parts())
    why, same = "headers and libraries for RISC-V programs", "the same for C++"
    packages = tools.stdcpp_packages()
    return (
        _tool("riscv64 C library", why, for_c, "", tools.LIBC_PACKAGE, zig=True),
        _tool("riscv64 C++ library", same, for_cxx, "", *packages, zig=True),
    )


def _native() -> Tool:
    try:
        found = tools.find_native().version
    except UserError:
        found = ""
    why = "compiles the counter that QEMU loads"
    return _tool("C compiler of this machine", why, found, "", tools.CLANG_PACKAGE, "gcc", zig=True)


def print_report(report: Report) -> None:
    """Print the report as a table, and the command that installs what is missing."""
    table = Table(box=None, pad_edge=False)
    for heading in ("tool", "found", "needed for"):
        table.add_column(heading, overflow="fold")
    for tool in report.tools:
        instead = tool.problem and tool.replaced and report.ziglang
        mark = "yellow" if instead else "red" if tool.problem else "green"
        state = " ".join(part for part in (tool.found, tool.problem) if part)
        table.add_row(tool.name, f"[{mark}]{state}[/]", tool.why)
    table.add_row("ziglang", report.ziglang or "[dim]not installed[/]", "replaces clang")
    _out.print(table)
    if report.whole:
        _out.print("all tools are installed")
    else:
        _out.print(f"type: {tools.PREPARE}", style="yellow")


def doctor(argv: Sequence[str]) -> int:
    """Print the tools of this machine; return 0 if :attr:`Report.whole`, else 2."""
    parser = Parser(
        prog="crosslab doctor",
        description="List the tools that this machine needs, and the command that installs the "
        "missing ones.",
    )
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
    """Install the missing tools; with ``--tests``, also those of tests.

    Raises:
        UserError: something is missing that cannot be installed from here.
    """
    parser = Parser(
        prog="crosslab prepare",
        description="Install the missing system packages, or print the command that does.",
    )
    parser.add_argument(
        "--tests",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="install also the tools of the tests that these options of pytest select",
    )
    arguments = parser.parse_args(argv)
    report = examine()
    if not report.whole:
        report = _install(report)
    _out.print(f"system packages: all installed ({_summary(report)})", style="dim")
    if arguments.tests is not None:
        optional_tools.prepare(arguments.tests)
    return 0


def _install(report: Report) -> Report:
    """Install the missing tools; return the report afterwards.

    Raises:
        UserError: something is missing that cannot be installed from here.
    """
    if not apt.refusal():
        _install_by_apt(missing_packages(report))
        report = examine()
    if report.emulates and not report.compiles and not offline():
        _install_zig()
        report = examine()
    if not report.whole:
        raise UserError(
            "missing tools: " + ", ".join(t.name for t in missing_packages(report)),
            remedy=_what_to_type(missing_packages(report)),
        )
    return report


def _summary(report: Report) -> str:
    qemu, clang = report.tools[0].found, report.tools[1].found
    missing = any(t.problem for t in report.tools if t.replaced)
    return f"qemu {qemu.split()[0]}, " + (
        f"ziglang {report.ziglang}" if missing else f"clang {clang.split()[0]}"
    )


def _what_to_type(missing: Sequence[Tool]) -> str:
    return apt.command_line(_unique(t.packages[0] for t in missing))


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _install_by_apt(missing: Sequence[Tool]) -> None:
    """Install the packages of missing tools that apt knows and can fetch."""
    _out.print("these system packages are missing and are installed now with apt-get:")
    apt.update()
    known = {t.name: next(filter(apt.knows, t.packages), None) for t in missing}
    for tool in missing:
        package = known[tool.name] or tool.packages[0]
        _out.print(f"  {package}: {tool.why} ({tool.name} {tool.problem})")
    # The emulator has no substitute: it does not fail with the compilers.
    for group in (False, True):
        names = _unique(n for t in missing if t.replaced is group and (n := known[t.name]))
        if names:
            _out.print(f"  {' '.join(names)}: {apt.size_of(names)}")
            apt.install(names)


def _install_zig() -> None:
    """Put ziglang into this Python's environment.

    Raises:
        LabError: pip cannot install it.
    """
    _out.print(
        f"no clang for RISC-V: {tools.ZIGLANG_PIN} is installed instead into {sys.prefix} (90 MB)"
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
