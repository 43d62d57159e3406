# SPDX-License-Identifier: Apache-2.0
"""Sessions of an emulated board: the board's program under QEMU, with the counter as its clock."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from boardfarm.board_session import BoardSession
from boardfarm.meter import Meter
from crosslab.run.counter_plugin import Counter
from crosslab.run.emulator import GuestMachine


@dataclass(frozen=True, kw_only=True)
class EmulatedBoard(BoardSession):
    """A board under QEMU.

    Attributes:
        counter: emulator and plugin.
        machine: the CPU.
        costs: reads the counter's reports.
    """

    counter: Counter
    machine: GuestMachine
    costs: Meter

    @contextlib.contextmanager
    def _started(self, client: socket.socket, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        report = folder / "counts.json"
        qemu = self.counter.qemu
        command = [*qemu.command, "-cpu", self.machine.cpu_of(qemu), "-seed", "1"]
        option = f"{self.counter.plugin},out={report}"
        command += ["-L", str(self.machine.sysroot), "-plugin", option]
        ours, theirs = socket.socketpair()
        answering = threading.Thread(target=self._answer, args=(ours, report), daemon=True)
        with ours, theirs:
            asked = theirs.fileno()
            command.append(str(self.program))
            process = self._start(client, command, str(asked), folder, asked)
            theirs.close()
            answering.start()
            yield process

    def _answer(self, meter: socket.socket, report: Path) -> None:
        """Answer the guest's timer until the guest ends."""
        try:
            while meter.recv(16):
                try:
                    answer = str(self.costs.read(report))
                except (ValueError, KeyError) as error:
                    answer = str(error).replace("\n", " ") or "the counter's report is incomplete"
                meter.sendall(f"{answer}\n".encode())
        except OSError:
            return
