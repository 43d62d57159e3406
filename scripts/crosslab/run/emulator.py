# SPDX-License-Identifier: Apache-2.0
"""Run a riscv64 program under QEMU's user-mode emulation."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import SYSROOT, Emulator, require_qemu

VLENS = (128, 256, 512, 1024)
LAST_LINES = 20
# What QEMU says when it does not know an option of the CPU, in every version so far.
CPU_OPTION_REFUSED = ("Property '", "unable to find CPU model")

# Seconds that a bench gives a guest: counting a long prompt takes hours.
DAY = 24 * 3600.0


@dataclass(frozen=True)
class GuestMachine:
    """The emulated CPU and its bounds.

    Attributes:
        vlen: width of a vector register in bits; 0 is a CPU without vectors.
        threads: what TVM_NUM_THREADS is set to.
        memory: bytes of address space that the emulator may use; None: no bound.
        timeout: seconds after which the guest is killed.
        zvfh: it has halves, single ones and in vectors (Zfh and Zvfh).
        sysroot: where dynamically linked guests find their libraries.
        environment: further variables that the guest sees.
    """

    vlen: int = 256
    threads: int = 1
    memory: int | None = None
    timeout: float = 3600.0
    zvfh: bool = False
    sysroot: Path = SYSROOT
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vlen and self.vlen not in VLENS:
            widths = ", ".join(map(str, VLENS))
            raise UserError(f"no emulated CPU has a VLEN of {self.vlen}", remedy=f"use: {widths}")

    @property
    def cpu(self) -> str:
        """The system's QEMU's ``-cpu``."""
        return self.cpu_of(require_qemu())

    def cpu_of(self, qemu: Emulator) -> str:
        """An emulator's ``-cpu``."""
        return cpu_option(self.vlen, self.zvfh, qemu.version)


def cpu_option(vlen: int, zvfh: bool, qemu: tuple[int, ...]) -> str:
    """QEMU's ``-cpu``, in the spelling of its version; see :class:`GuestMachine`."""
    vectors = {"v": "true", "vlen": str(vlen), "vext_spec": "v1.0"} if vlen else {}
    properties = {**vectors, **(_halves(qemu) if zvfh else {})}
    return ",".join(["rv64", *(f"{k}={v}" for k, v in properties.items())])


def _halves(qemu: tuple[int, ...]) -> dict[str, str]:
    """The emulator's options for halves: Zfh, and Zvfh where there is an option of it.

    Before 8.1 its names begin with a capital, and halves in vectors work without being asked for.
    """
    return {"Zfh": "true"} if qemu < (8, 1) else {"zfh": "true", "zvfh": "true"}


@dataclass(frozen=True)
class GuestResult:
    """Result of one guest process.

    Attributes:
        returncode: its exit code.
        stdout: what it printed.
        stderr: what it complained of.
        seconds: how long the emulator took.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run_guest(
    program: Path,
    arguments: Sequence[str] = (),
    machine: GuestMachine = GuestMachine(),
    *,
    cwd: Path | None = None,
    qemu: Emulator | None = None,
    plugin: Sequence[str] = (),
    check: bool = True,
) -> GuestResult:
    """Run a program in a clean environment, independent of this machine's.

    Its environment and arguments lie on its stack: counts of instructions are only the same
    from run to run when these are as long, which relative paths (``cwd``) make easy.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU.
        cwd: where it runs.
        qemu: the emulator; None: the system's.
        plugin: QEMU's ``-plugin`` option and the like, before the program's name.
        check: whether any exit code but 0 is an error.

    Raises:
        UserError: there is no emulator, or (with ``check``) the guest exits with 2, its own
            sign of bad input.
        LabError: the guest crashes, runs out of time, or (with ``check``) fails.
    """
    qemu = qemu or require_qemu()
    command = [*qemu.command, "-cpu", machine.cpu_of(qemu), "-seed", "1"]
    if machine.sysroot.is_dir():
        command += ["-L", str(machine.sysroot)]
    command += [*plugin, str(program if cwd is None else program.resolve()), *arguments]
    result = _execute(command, machine, cwd)
    if result.returncode < 0:
        raise LabError(f"{program.name} was ended by {_signal(result)}{_last(result)}")
    if any(mark in result.stderr for mark in CPU_OPTION_REFUSED) and not result.stdout:
        have = ".".join(map(str, qemu.version))
        raise LabError(f"QEMU {have} does not know the CPU {machine.cpu_of(qemu)}{_last(result)}")
    if check and result.returncode != 0:
        raise LabError(
            f"{program.name} failed with exit code {result.returncode}{_last(result)}",
            exit_code=2 if result.returncode == 2 else 1,
        )
    return result


def _execute(command: Sequence[str], machine: GuestMachine, cwd: Path | None) -> GuestResult:
    if machine.memory is not None:
        kilobytes = str(machine.memory // 1024)
        command = ["/bin/sh", "-c", 'ulimit -v "$0"; exec "$@"', kilobytes, *command]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={"TVM_NUM_THREADS": str(machine.threads), **machine.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=machine.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        partial = GuestResult(0, _text(error.stdout), _text(error.stderr), machine.timeout)
        raise LabError(
            f"the guest did not end within {machine.timeout:g} s{_last(partial)}"
        ) from error
    seconds = time.monotonic() - start
    return GuestResult(done.returncode, _text(done.stdout), _text(done.stderr), seconds)


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", errors="replace")


def _signal(result: GuestResult) -> str:
    try:
        return signal.Signals(-result.returncode).name
    except ValueError:
        return f"signal {-result.returncode}"


def _last(result: GuestResult) -> str:
    lines = [*result.stdout.splitlines(), *result.stderr.splitlines()][-LAST_LINES:]
    if not lines:
        return "; it printed nothing"
    return "; its last output:\n  " + "\n  ".join(lines)
