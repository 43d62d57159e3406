# SPDX-License-Identifier: Apache-2.0
"""Sessions of an emulated board: the board's program under QEMU, timed by the counter."""

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
from crosslab.host.toolchain import SYSROOT
from crosslab.run.counter_plugin import Counter
from crosslab.run.emulator import GuestMachine


@dataclass(frozen=True, kw_only=True)
class EmulatedBoard(BoardSession):
    """A board that runs under QEMU.

    Attributes:
        counter: emulator and counting plugin.
        machine: the emulated CPU.
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
        command += ["-L", str(SYSROOT), "-plugin", option]
        agent_end, guest_end = socket.socketpair()
        answering = threading.Thread(target=self._answer, args=(agent_end, report), daemon=True)
        with agent_end, guest_end:
            guest_file = guest_end.fileno()
            command.append(str(self.program))
            process = self._start(client, command, str(guest_file), folder, guest_file)
            guest_end.close()
            answering.start()
            yield process

    def _answer(self, meter: socket.socket, report: Path) -> None:
        """Answer each request of the guest's timer with the report's cost, or why it has none."""
        try:
            while meter.recv(16):
                try:
                    answer = str(self.costs.read(report))
                except (ValueError, KeyError) as error:
                    answer = str(error).replace("\n", " ") or "the counter's report is incomplete"
                meter.sendall(f"{answer}\n".encode())
        except OSError:
            return
