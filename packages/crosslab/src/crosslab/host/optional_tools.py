# SPDX-License-Identifier: Apache-2.0
"""System tools that tests alone use: sanitizers, a browser, a booted riscv64 machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crosslab.host import toolchain as tools
from groundwork import apt

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Exit codes of pytest.
USAGE_ERROR, NO_TESTS = 4, 5


@dataclass(frozen=True)
class OptionalTool:
    """A tool whose absence skips tests.

    Attributes:
        name: its usual name.
        why: the tests that use it.
        found: it is here.
        packages: Debian packages that bring it; the first that apt knows is installed.
        tests: files or folders of these tests; empty: there are many.
    """

    name: str
    why: str
    found: bool
    packages: tuple[str, ...]
    tests: tuple[str, ...] = ()


def find_browser() -> str | None:
    """Return the path of a Chromium, under any of its names; None without one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def examine() -> tuple[OptionalTool, ...]:
    """Look for each tool, without results of earlier calls; clang's only beside a fitting clang."""
    gcc, machine = shutil.which("g++"), shutil.which("qemu-system-riscv64")
    board = "tests/endtoend/test_board.py"
    return (
        *_beside_clang(),
        OptionalTool("g++", "TVM's libraries for this machine", bool(gcc), ("g++",)),
        OptionalTool(
            "dpkg-source",
            "Debian's own reading of an exported series",
            bool(shutil.which("dpkg-source")),
            ("dpkg-dev",),
            ("packages/forkpatch/tests/",),
        ),
        OptionalTool(
            "Chromium",
            "pages in a browser",
            bool(find_browser()),
            ("chromium",),
            ("tests/server/test_chat_page.py", "tests/report/test_in_browser.py"),
        ),
        OptionalTool(
            "curl",
            "a client of the server",
            bool(shutil.which("curl")),
            ("curl",),
            ("tests/server/test_clients.py", board),
        ),
        OptionalTool(
            "qemu-system-riscv64",
            "the artefact on a booted machine",
            bool(machine),
            ("qemu-system-riscv", "qemu-system-misc"),  # split since Debian 13
            (board,),
        ),
    )


def prepare(options: Sequence[str] = ()) -> None:
    """Install the missing tools of the selected tests; print the tools that cannot be installed.

    Args:
        options: options of pytest, which select the tests; empty: all tests.
    """
    missing = [tool for tool in examine() if not tool.found]
    if missing and options:
        missing = _selected(missing, options)
    if not missing:
        return
    reason = apt.refusal()
    if not reason:
        apt.update()
        packages = {tool.name: _package(tool) for tool in missing}
        print("these packages are missing for the tests, and are installed now:", file=sys.stderr)
        for tool in missing:
            package = packages[tool.name]
            print(f"  {package}: {tool.why}, {apt.size_of([package])}", file=sys.stderr)
        for package in packages.values():
            apt.install([package])
        missing = [tool for tool in examine() if not tool.found and tool.name in packages]
        reason = "apt-get failed"
    if missing:
        names = ", ".join(f"{tool.packages[-1]} ({tool.why})" for tool in missing)
        advice = apt.command_line([tool.packages[-1] for tool in missing])
        print(f"not installed, so their tests skip: {names}: {reason}; {advice}", file=sys.stderr)


def _selected(missing: Sequence[OptionalTool], options: Sequence[str]) -> list[OptionalTool]:
    """Return the tools with a test that pytest's options select.

    Return no tool if pytest rejects the options. Return all tools, and print the errors, if pytest
    cannot collect the tests.
    """
    # A package has a root of its own, if its tests alone are selected.
    fixed = ("--collect-only", "-qq", "-n0", "--rootdir=.")
    collect = [sys.executable, "-m", "pytest", *options, *fixed]
    if not any(Path(word.partition("::")[0]).exists() for word in options):
        # Instead of all tests, whose collection takes long.
        collect += [path for tool in missing for path in tool.tests]
    done = subprocess.run(collect, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == USAGE_ERROR:
        return []  # pytest reports the mistake when it runs
    if done.returncode not in (0, NO_TESTS):
        print("pytest cannot collect these tests, so the tools of all count:", file=sys.stderr)
        errors = [line for line in done.stdout.splitlines() if line.startswith(("E  ", "ERROR "))]
        print(*(f"  {line}" for line in errors or [done.stderr.strip()]), sep="\n", file=sys.stderr)
        return list(missing)
    return [
        tool
        for tool in missing
        if not tool.tests or any(line.startswith(tool.tests) for line in done.stdout.splitlines())
    ]


def _package(tool: OptionalTool) -> str:
    return next(filter(apt.knows, tool.packages), tool.packages[-1])


def _beside_clang() -> Sequence[OptionalTool]:
    """Return the tools of clang's version; none without a fitting clang, as ziglang lacks them."""
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
