# SPDX-License-Identifier: Apache-2.0
"""Finding compilers and the emulator, and what is said when they are missing or too old."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runner_kit

from crosslab.emulator import GuestMachine
from crosslab.errors import UserError
from crosslab.runtime import build_runtime, ffi_root
from crosslab.toolchain import ZIGLANG_PIN, Kind, Toolchain, find_ziglang, version_tuple

SCRIPTS = runner_kit.PROJECT / "scripts"
USER_MISTAKE = 2


def lab(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS), "COLUMNS": "200"}
    if path is not None:
        environment["PATH"] = path
    command = [sys.executable, "-m", "crosslab", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def old_clang(folder: Path) -> str:
    """A folder for PATH in which clang is of a version that lacks what is needed."""
    for name in ("clang", "clang++"):
        program = folder / name
        program.write_text("#!/bin/sh\necho 14.0.6\n")
        program.chmod(0o755)
    return str(folder)


def test_doctor_tells_what_there_is() -> None:
    done = lab("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["whole"] else USER_MISTAKE)
    assert report["whole"] == (not report["missing"])
    assert {tool["name"] for tool in report["tools"]} >= {"qemu-riscv64", "clang", "lld"}
    assert all(tool["why"] and tool["packages"] for tool in report["tools"])
    assert all(tool["found"] or tool["problem"] for tool in report["tools"])


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    done = lab("doctor", "--json", path=str(tmp_path))
    report = json.loads(done.stdout)
    assert done.returncode == USER_MISTAKE
    assert not report["whole"]
    assert "qemu-user" in report["missing"]
    assert ("clang-19" in report["missing"]) == (find_ziglang() is None)


def test_doctor_says_that_a_compiler_is_too_old(tmp_path: Path) -> None:
    done = lab("doctor", path=old_clang(tmp_path))
    assert done.returncode == USER_MISTAKE
    assert "14.0.6 (clang) too old: 19 or newer is needed" in done.stdout


def test_prepare_prints_what_to_type_when_it_cannot_install(tmp_path: Path) -> None:
    done = lab("prepare", path=str(tmp_path))
    assert done.returncode == USER_MISTAKE
    assert "error: these are missing: qemu-riscv64" in done.stderr
    assert "install what Debian calls: qemu-user" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], [], ["doctor", "--nonsense"]])
def test_mistyped_commands_are_refused(arguments: list[str]) -> None:
    done = lab(*arguments)
    assert done.returncode == USER_MISTAKE
    assert done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_versions_are_read_from_what_tools_print() -> None:
    assert version_tuple("qemu-riscv64 version 7.2.22 (Debian 1:7.2+dfsg)") == (7, 2, 22)
    assert version_tuple("19\n") == (19,)
    assert version_tuple("no number") == ()
    assert version_tuple(ZIGLANG_PIN.split("==")[1])


def test_the_compiler_never_aims_at_vectors() -> None:
    """Throwing C++ compiled with vectors is aborted by the unwinder."""
    tools = runner_kit.cross()
    aims = [flag for flag in tools.cxx if flag.startswith(("-march", "-mcpu"))]
    assert aims
    assert not any("v" in flag.rpartition("rv64")[2] for flag in aims)
    assert (tools.sysroot is None) == (tools.kind is Kind.ZIG)


def test_an_emulated_cpu_is_spelled_for_qemu() -> None:
    machine = GuestMachine(vlen=512, features={"zfh": "true"})
    assert machine.cpu == "rv64,v=true,vlen=512,vext_spec=v1.0,zfh=true"
    assert GuestMachine(vlen=0).cpu == "rv64"
    with pytest.raises(UserError, match="VLEN of 100"):
        GuestMachine(vlen=100)


def test_the_runtime_is_refused_without_sources(tmp_path: Path) -> None:
    tools: Toolchain = runner_kit.cross()
    with pytest.raises(UserError, match="has no runtime sources"):
        build_runtime(tmp_path, tools, tmp_path)
    with pytest.raises(UserError, match=r"the release pins 0\.0\.1"):
        ffi_root("0.0.1")
