# SPDX-License-Identifier: Apache-2.0
"""Sessions of a board: a process of the board's program for each client.

Standard library only: a real board may have no other packages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Time limit of a session whose client sets no limit.
MOST_SECONDS = 600.0
# An emulator takes this long to start; a client's time begins with the session.
START_SECONDS = 8.0
MEMORY = 2 << 30


@dataclass(frozen=True)
class BoardSession:
    """Serves each client with a process of the board's program.

    Attributes:
        program: the program from :func:`boardfarm.board_program.build_board`.
        meter: the program's argument METER: the kernel's event "cycles" or "task-clock".
        emulator: command before the program; empty on a board.
        memory: bytes that a session may use.
    """

    program: Path
    meter: str = "cycles"
    emulator: Sequence[str] = ()
    memory: int = MEMORY

    def session(self, client: socket.socket, timeout: float | None) -> str:
        """Serve a client; return "ended", "timeout", or the error that ended the session.

        The session ends START_SECONDS after ``timeout`` seconds, or without it after MOST_SECONDS.
        Candidates run with the rights of the user who started the board.
        """
        with tempfile.TemporaryDirectory(prefix="board-") as folder:
            bound = timeout + START_SECONDS if timeout else MOST_SECONDS
            with self._started(client, Path(folder)) as process:
                client.close()
                try:
                    _, errors = process.communicate(timeout=bound)
                except subprocess.TimeoutExpired:
                    end(process)
                    return "timeout"
                except BaseException:
                    end(process)
                    raise
        if process.returncode == 0:
            return "ended"
        if process.returncode < 0:
            return f"ended by {signal.Signals(-process.returncode).name}"
        lines = errors.decode(errors="replace").strip().splitlines()
        return f"failed: {lines[-1] if lines else process.returncode}"

    @contextlib.contextmanager
    def _started(self, client: socket.socket, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start and yield the session's process; a subclass answers its meter during the block."""
        yield self._start(client, [*self.emulator, str(self.program)], self.meter, folder)

    def _start(
        self, client: socket.socket, command: list[str], meter: str, folder: Path, *files: int
    ) -> subprocess.Popen[bytes]:
        work = folder / "files"
        work.mkdir()
        bounded = ["/bin/sh", "-c", 'ulimit -v "$0"; ulimit -c 0; exec "$@"']
        if shutil.which("setpriv"):  # ends the session if the board is killed
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        return subprocess.Popen(
            [*bounded, str(self.memory // 1024), *command, str(client.fileno()), meter],
            cwd=work,
            env={"TVM_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(client.fileno(), *files),
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a session's process and its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
