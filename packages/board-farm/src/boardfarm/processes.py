# SPDX-License-Identifier: Apache-2.0
"""The processes of a farm on this machine: starts, lists and ends a tracker and boards.

The processes outlive the command that starts them; a file lists them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from boardfarm.protocol import is_name, summary
from crosslab.address import Address
from crosslab.assemble.recipe_options import DEFAULT_VLEN
from crosslab.errors import LabError
from groundwork.files import atomic_write_json

START_SECONDS = 60.0
END_SECONDS = 10.0
LAST_LINES = 5
TRACKER = "tvm.exec.rpc_tracker"


@dataclass(frozen=True)
class FarmProcess:
    """A process that leads its own session of the operating system.

    Attributes:
        pid: process number.
        started: start in ticks since boot, to distinguish a later process with the same number.
        log: file of the process's output.
    """

    pid: int
    started: str
    log: str

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return start_of(self.pid) == self.started

    def end(self) -> None:
        """End the process and its children: by SIGTERM, or after END_SECONDS by SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive:
                return
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return
            _wait_until(lambda: not self.alive, END_SECONDS)


@dataclass(frozen=True)
class FarmState:
    """The state of a farm, as its file keeps it.

    Attributes:
        tracker: the tracker's address.
        key: name by which clients request the boards.
        measure: unit that the boards count, for people.
        vlen: bits of the vector registers of this machine's boards.
        service: the tracker's process; None for a tracker that another command started.
        boards: processes of the boards on this machine.
    """

    tracker: Address
    key: str
    measure: str
    vlen: int
    service: FarmProcess | None
    boards: tuple[FarmProcess, ...] = field(default=())

    def write(self, file: Path) -> None:
        """Write the state to its file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(file, asdict(self))

    @classmethod
    def read(cls, file: Path) -> FarmState | None:
        """Return the state in a file; None if the file is missing or malformed."""
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            service = FarmProcess(**table["service"]) if table["service"] else None
            boards = tuple(FarmProcess(**entry) for entry in table["boards"])
            address = Address(**table["tracker"])
            vlen = int(table.get("vlen", DEFAULT_VLEN))  # older files lack it
            return cls(address, table["key"], table["measure"], vlen, service, boards)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def state_file(project: Path) -> Path:
    """Return the path of the state file of a project's farm."""
    return project.resolve() / ".work" / "farm" / "farm.json"


def start_of(pid: int) -> str:
    """Return the start of a process in ticks since boot; "" if the process does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The command's name, in parentheses, may contain any characters.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def start_process(module: str, arguments: Sequence[str], log: Path) -> FarmProcess:
    """Start ``python -m module`` as leader of a new POSIX session; append its output to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    return FarmProcess(process.pid, start_of(process.pid), str(log))


def start_tracker(address: Address, log: Path) -> FarmProcess:
    """Start TVM's tracker and wait until it answers.

    Raises:
        LabError: the tracker does not answer; the message has its last lines.
    """
    span = ["--port", str(address.port), "--port-end", str(address.port + 1)]
    process = start_process(TRACKER, ["--host", address.host, *span], log)
    _await_service(process, f"the tracker did not start at {address}", lambda: answers(address))
    return process


def _await_service(process: FarmProcess, failure: str, ready: Callable[[], bool]) -> None:
    """Wait until a process serves; raise LabError if it does not. Any error ends the process."""
    try:
        done = _wait_until(lambda: not process.alive or ready(), START_SECONDS)
        if not done or not process.alive:
            raise LabError(f"{failure}{last_lines(Path(process.log))}")
    except BaseException:  # also Ctrl-C: the farm's state does not list the process yet
        process.end()
        raise


@dataclass(frozen=True)
class SchedulerState:
    """The state of a Dask scheduler, as its file keeps it.

    Attributes:
        address: the scheduler's address.
        process: the scheduler's process.
    """

    address: Address
    process: FarmProcess

    @classmethod
    def read(cls, file: Path) -> SchedulerState | None:
        """Return the state in a file; None if the file is missing or malformed."""
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            return cls(Address(**table["address"]), FarmProcess(**table["process"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def start_scheduler(address: Address, file: Path) -> SchedulerState:
    """Start a Dask scheduler, write its state to ``file``, and wait until it answers.

    Raises:
        LabError: the scheduler does not answer; the message has its last lines.
    """
    log = file.with_suffix(".log")
    words = ["farm", "scheduler", "--foreground", "--port", str(address.port)]
    state = SchedulerState(address, start_process("crosslab", words, log))
    atomic_write_json(file, asdict(state))

    def listens() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(address.pair, 1.0).close()
            return True
        return False

    _await_service(state.process, f"the scheduler did not start at {address}", listens)
    return state


def await_boards(state: FarmState, wanted: int) -> None:
    """Wait until ``wanted`` boards have joined the tracker.

    Raises:
        LabError: a board of this machine ends, or too few boards join within START_SECONDS.
    """

    def joined() -> bool:
        ended = [board for board in state.boards if not board.alive]
        if ended:
            raise LabError(f"a board ended{last_lines(Path(ended[0].log))}")
        return len(joined_boards(state.tracker, state.key)) >= wanted

    if not _wait_until(joined, START_SECONDS):
        raise LabError(
            f"{len(joined_boards(state.tracker, state.key))} of {wanted} boards joined "
            f"{state.tracker} within {START_SECONDS:g} s",
            remedy=f"see {state.boards[0].log}" if state.boards else "",
        )


def answers(address: Address) -> bool:
    """Return True if a tracker answers at an address."""
    try:
        summary(address, timeout=2.0)
    except OSError:
        return False
    return True


class JoinedBoard(NamedTuple):
    """A board that has joined a tracker.

    Attributes:
        measure: unit of the board's timer, for people.
        core: name of the database for schedules that the board measures.
    """

    measure: str
    core: str

    @property
    def named(self) -> bool:
        """True if the board says its unit, and a database whose name may be a folder's."""
        return bool(self.measure) and self.measure.isprintable() and is_name(self.core)


def joined_boards(address: Address, key: str) -> list[JoinedBoard]:
    """Return the boards that have joined under a key; [] if no tracker answers."""
    try:
        known = summary(address, timeout=5.0)["server_info"]
    except (OSError, KeyError):
        return []
    boards = [entry for entry in known if entry.get("key") == f"server:{key}"]
    return [
        JoinedBoard(str(entry.get("measure", "")), str(entry.get("core", ""))) for entry in boards
    ]


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def last_lines(log: Path) -> str:
    """Return the end of a message: the last lines of a log, or "it said nothing"."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    except OSError:
        lines = []
    return "; its last lines:\n  " + "\n  ".join(lines) if lines else "; it said nothing"


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
