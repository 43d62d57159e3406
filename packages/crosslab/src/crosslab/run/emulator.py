# SPDX-License-Identifier: Apache-2.0
"""Run a riscv64 program under QEMU's user-mode emulation."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from crosslab.errors import LabError, UserError
from crosslab.host.toolchain import SYSROOT, Emulator, require_qemu

VLENS = (128, 256, 512, 1024)
LAST_LINES = 20
# QEMU's messages, in every version so far, about an unknown option of the CPU.
CPU_OPTION_REFUSED = ("Property '", "unable to find CPU model")

# Timeout of a guest in a bench, in seconds: counting a long prompt takes hours.
DAY = 24 * 3600.0


@dataclass(frozen=True)
class GuestMachine:
    """The emulated CPU and the limits of the guest.

    Attributes:
        vlen: width of a vector register in bits; 0: a CPU without vectors.
        threads: value of TVM_NUM_THREADS.
        timeout: seconds after which the guest is killed.
        zvfh: the CPU has half-precision numbers, scalar and in vectors (Zfh and Zvfh).
        environment: further environment variables of the guest.
    """

    vlen: int = 256
    threads: int = 1
    timeout: float = 3600.0
    zvfh: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vlen and self.vlen not in VLENS:
            widths = ", ".join(map(str, VLENS))
            raise UserError(f"no emulated CPU has a VLEN of {self.vlen}", remedy=f"use: {widths}")

    @property
    def cpu(self) -> str:
        """Option ``-cpu`` of the system's QEMU."""
        return self.cpu_of(require_qemu())

    def cpu_of(self, qemu: Emulator) -> str:
        """Return the option ``-cpu`` of an emulator."""
        return cpu_option(self.vlen, self.zvfh, qemu.version)


def cpu_option(vlen: int, zvfh: bool, qemu: tuple[int, ...]) -> str:
    """Return QEMU's ``-cpu`` in the spelling of a QEMU version; see :class:`GuestMachine`."""
    vectors = {"v": "true", "vlen": str(vlen), "vext_spec": "v1.0"} if vlen else {}
    properties = {**vectors, **(_halves(qemu) if zvfh else {})}
    return ",".join(["rv64", *(f"{k}={v}" for k, v in properties.items())])


def _halves(qemu: tuple[int, ...]) -> dict[str, str]:
    """Return the emulator's CPU options for half-precision numbers (Zfh and Zvfh).

    Before 8.1 the option is ``Zfh``, and half-precision vectors are always on.
    """
    return {"Zfh": "true"} if qemu < (8, 1) else {"zfh": "true", "zvfh": "true"}


def run_guest(
    program: Path,
    arguments: Sequence[str] = (),
    machine: GuestMachine = GuestMachine(),
    *,
    cwd: Path | None = None,
    qemu: Emulator | None = None,
    plugin: Sequence[str] = (),
    check: bool = True,
) -> CompletedProcess[str]:
    """Run a program in the emulator, without this machine's environment variables.

    Environment and arguments lie on the guest's stack: instruction counts are reproducible only if
    their lengths are equal, which relative paths (``cwd``) make easy.

    Args:
        program: the guest.
        arguments: its arguments.
        machine: the CPU.
        cwd: working folder of the guest.
        qemu: the emulator; None: the system's emulator.
        plugin: QEMU options before the program's name, such as ``-plugin``.
        check: treat every exit code except 0 as an error.

    Raises:
        UserError: there is no emulator.
        LabError: QEMU lacks the CPU, or the guest crashes, runs out of time or (with ``check``)
            fails; the guest's exit code 2, for bad input, becomes the error's exit code.
    """
    qemu = qemu or require_qemu()
    command = [*qemu.command, "-cpu", machine.cpu_of(qemu), "-seed", "1"]
    if SYSROOT.is_dir():  # for dynamically linked guests
        command += ["-L", str(SYSROOT)]
    command += [*plugin, str(program if cwd is None else program.resolve()), *arguments]
    result = _execute(command, machine, cwd)
    code, last = result.returncode, _last(result.stdout, result.stderr)
    if code < 0:
        raise LabError(f"{program.name} was ended by {_signal(code)}{last}")
    if any(mark in result.stderr for mark in CPU_OPTION_REFUSED) and not result.stdout:
        have = ".".join(map(str, qemu.version))
        raise LabError(f"QEMU {have} does not know the CPU {machine.cpu_of(qemu)}{last}")
    if check and code != 0:
        raise LabError(
            f"{program.name} failed with exit code {code}{last}", exit_code=2 if code == 2 else 1
        )
    return result


def _execute(
    command: Sequence[str], machine: GuestMachine, cwd: Path | None
) -> CompletedProcess[str]:
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
        last = _last(_text(error.stdout), _text(error.stderr))
        raise LabError(f"the guest did not end within {machine.timeout:g} s{last}") from error
    return CompletedProcess(command, done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", errors="replace")


def _signal(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _last(*outputs: str) -> str:
    lines = [line for output in outputs for line in output.splitlines()][-LAST_LINES:]
    if not lines:
        return "; it printed nothing"
    return "; its last output:\n  " + "\n  ".join(lines)
