# SPDX-License-Identifier: Apache-2.0
"""Sessions of an emulated board: the board's program under QEMU, with the counter as its clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from crosslab.farm.meter import Meter
from crosslab.host.toolchain import require_qemu
from crosslab.run.emulator import GuestMachine

# A hung session ends by the client's own bound; this one is for clients that give none.
MOST_SECONDS = 600.0
# The emulator takes as long to start; a client's time begins when its session does.
START_SECONDS = 8.0
MEMORY = 2 << 30


@dataclass(frozen=True)
class EmulatedBoard:
    """A board under QEMU.

    Attributes:
        program: what :func:`build_board` made.
        plugin: the counter.
        machine: the CPU.
        meter: reads the counter's reports.
        memory: bytes that the emulator may use.
    """

    program: Path
    plugin: Path
    machine: GuestMachine
    meter: Meter
    memory: int = MEMORY

    def session(self, client: socket.socket, timeout: float | None) -> str:
        """Serve one client; says how it ended: "ended", "timeout", or what ended it.

        Candidates run with the rights of the user who started the board.
        """
        with tempfile.TemporaryDirectory(prefix="board-") as folder:
            ours, theirs = socket.socketpair()
            report = Path(folder) / "counts.json"
            bound = timeout + START_SECONDS if timeout else MOST_SECONDS
            answering = threading.Thread(target=self._answer, args=(ours, report), daemon=True)
            with ours, theirs:
                process = self._start(client, theirs, Path(folder), report)
                theirs.close()
                client.close()
                answering.start()
                try:
                    _, said = process.communicate(timeout=bound)
                except subprocess.TimeoutExpired:
                    _end(process)
                    return "timeout"
                except BaseException:
                    _end(process)
                    raise
        if process.returncode == 0:
            return "ended"
        if process.returncode < 0:
            return f"ended by {signal.Signals(-process.returncode).name}"
        lines = said.decode(errors="replace").strip().splitlines()
        return f"failed: {lines[-1] if lines else process.returncode}"

    def _start(
        self, client: socket.socket, meter: socket.socket, folder: Path, report: Path
    ) -> subprocess.Popen[bytes]:
        files = (client.fileno(), meter.fileno())
        work = folder / "files"
        work.mkdir()
        command = [str(require_qemu().path), "-cpu", self.machine.cpu, "-seed", "1"]
        command += ["-L", str(self.machine.sysroot), "-plugin", f"{self.plugin},out={report}"]
        command += [str(self.program), *map(str, files)]
        bounded = ["/bin/sh", "-c", 'ulimit -v "$0"; ulimit -c 0; exec "$@"']
        if shutil.which("setpriv"):  # a board that is killed takes its session with it
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        return subprocess.Popen(
            [*bounded, str(self.memory // 1024), *command],
            cwd=work,
            env={"TVM_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=files,
            start_new_session=True,
        )

    def _answer(self, meter: socket.socket, report: Path) -> None:
        """Answer the guest's timer until the guest ends."""
        try:
            while meter.recv(16):
                try:
                    answer = str(self.meter.read(report))
                except (ValueError, KeyError) as error:
                    answer = str(error).replace("\n", " ") or "the report is not whole"
                meter.sendall(f"{answer}\n".encode())
        except OSError:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
