# SPDX-License-Identifier: Apache-2.0
"""Finding compilers and the emulator, and what is said when they are missing or too old."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import shared_builds

from crosslab.assemble.runtime import build_runtime
from crosslab.errors import LabError, UserError
from crosslab.host import toolchain
from crosslab.host.toolchain import (
    ZIGLANG_PIN,
    CompilerKind,
    Emulator,
    Toolchain,
    find_qemu,
    find_ziglang,
    version_tuple,
)
from crosslab.run import emulator
from crosslab.run.emulator import GuestMachine, run_guest

USER_MISTAKE = 2


def lab(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    if path is not None:
        environment["PATH"] = path
    command = [sys.executable, "-m", "crosslab", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def old_clang(folder: Path) -> str:
    """A folder for PATH in which clang is of a version that lacks what is needed."""
    program(folder, "clang", "echo 14.0.6")
    return program(folder, "clang++", "echo 14.0.6")


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


@pytest.mark.parametrize(("suffix", "package"), [("-22", "lld-22"), ("", "lld")])
def test_doctor_names_the_linker_of_the_clang_that_is_installed(
    tmp_path: Path, suffix: str, package: str
) -> None:
    for name in ("clang", "clang++"):
        program(tmp_path, f"{name}{suffix}", "echo 22.1.8")
    linker = next(
        tool
        for tool in json.loads(lab("doctor", "--json", path=str(tmp_path)).stdout)["tools"]
        if tool["name"] == "lld"
    )
    assert linker["problem"] == "missing"
    assert linker["packages"] == [package]


def test_a_clang_that_ziglang_cannot_replace_is_named_with_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` has nothing to install then."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_ziglang", lambda: "0.15.2")
    toolchain.clang_version.cache_clear()
    try:
        with pytest.raises(UserError, match="clang 19 or newer is not installed") as caught:
            toolchain.find_cross(CompilerKind.CLANG)
    finally:
        toolchain.clang_version.cache_clear()
    assert caught.value.remedy and "clang-19 lld-19" in caught.value.remedy


def test_prepare_prints_what_to_type_when_it_cannot_install(tmp_path: Path) -> None:
    done = lab("prepare", path=str(tmp_path))
    assert done.returncode == USER_MISTAKE
    assert "error: missing tools: qemu-riscv64" in done.stderr
    assert "install these packages of Debian: qemu-user" in done.stderr
    assert "Traceback" not in done.stderr


def program(folder: Path, name: str, script: str) -> str:
    """A folder for PATH with a program in it that is a script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, ["qemu-riscv64 is not installed", "crosslab prepare"]),
        ("echo qemu-riscv64 version 6.2.0", ["is version 6.2.0, without RVV 1.0", "newer"]),
        ("exit 1", ["qemu-riscv64 is not installed"]),
    ],
)
def test_the_job_refuses_an_emulator_that_cannot_serve(
    tmp_path: Path, script: str | None, words: list[str]
) -> None:
    path = str(tmp_path) if script is None else program(tmp_path, "qemu-riscv64", script)
    done = lab("build-and-test", "--tvm-tree", str(tmp_path), path=path)
    assert done.returncode == USER_MISTAKE
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(find_ziglang() is not None, reason="ziglang takes clang's place here")
@pytest.mark.parametrize(
    ("version", "words"),
    [(None, "clang 19 or newer is not installed"), ("14.0.6", "is version 14.0.6, 19 or newer")],
)
def test_a_compiler_that_cannot_serve_is_refused(
    tmp_path: Path, version: str | None, words: str
) -> None:
    path = str(tmp_path) if version is None else old_clang(tmp_path)
    done = lab("kernels", "--target", "riscv64", "--output", str(tmp_path / "out"), path=path)
    assert done.returncode == USER_MISTAKE
    assert words in done.stderr and "crosslab prepare" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_cpu_that_the_emulator_does_not_know_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version, which knows other options."""
    script = """case $1 in --version) echo qemu-riscv64 version 9.2.0; exit;; esac
echo "qemu-riscv64: Property 'rv64-riscv-cpu.vext_spec' not found" >&2
exit 1"""
    monkeypatch.setenv("PATH", f"{program(tmp_path, 'qemu-riscv64', script)}:/usr/bin:/bin")
    find_qemu.cache_clear()
    try:
        with pytest.raises(LabError, match=r"QEMU 9\.2\.0 does not know the CPU rv64,v=true"):
            run_guest(tmp_path / "guest")
    finally:
        find_qemu.cache_clear()


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
    tools = shared_builds.cross()
    aims = [flag for flag in tools.cxx if flag.startswith(("-march", "-mcpu"))]
    assert aims
    assert not any("v" in flag.rpartition("rv64")[2] for flag in aims)


def test_an_emulated_cpu_is_spelled_for_qemu() -> None:
    assert GuestMachine(vlen=512).cpu == "rv64,v=true,vlen=512,vext_spec=v1.0"
    assert GuestMachine(vlen=0).cpu == "rv64"
    with pytest.raises(UserError, match="VLEN of 100"):
        GuestMachine(vlen=100)


@pytest.mark.parametrize(
    ("version", "options"), [((7, 2, 22), "Zfh=true"), ((9, 2), "zfh=true,zvfh=true")]
)
def test_halves_are_asked_for_by_the_emulators_own_names(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], options: str
) -> None:
    qemu = Emulator(Path("qemu-riscv64"), version, plugins=True)
    monkeypatch.setattr(emulator, "require_qemu", lambda: qemu)
    assert GuestMachine(zvfh=True).cpu.endswith(f",{options}")


def test_the_runtime_is_refused_without_sources(tmp_path: Path) -> None:
    tools: Toolchain = shared_builds.cross()
    with pytest.raises(UserError, match="has no runtime sources"):
        build_runtime(tmp_path, tools, tmp_path)


def test_the_cpp_library_is_that_of_the_debian_release(tmp_path: Path) -> None:
    """Debian 13 has version 14 alone; a hint that names 12 cannot be typed there."""
    for name in ("gcc-14-base:amd64.list", "gcc-14-base:amd64.md5sums", "gcc-defaults.list"):
        (tmp_path / name).touch()
    first, second, *_ = toolchain.stdcpp_packages(tmp_path)
    assert (first, second) == ("libstdc++-14-dev-riscv64-cross", "libstdc++-12-dev-riscv64-cross")
