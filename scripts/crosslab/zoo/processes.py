# SPDX-License-Identifier: Apache-2.0
"""Processes for families: the zoo ends one that hangs or takes all memory."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from crosslab.errors import LabError
from crosslab.zoo.job import Spec
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, first_reason


@dataclass
class FamilyProcesses:
    """Runs specs in processes of their own.

    Attributes:
        timeout: seconds after which one is ended.
        running: what is running now, to be ended with the command.
    """

    timeout: float
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def run(self, spec: Spec) -> FamilyOutcome:
        """One family in one quantization.

        Raises:
            LabError: the process itself failed; UserError's code is kept.
        """
        key, logs = spec.key, spec.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"zoo-{key.family}-{key.quantization}-{key.vlen}.log"
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            asked, told = Path(folder) / "spec.pickle", Path(folder) / "outcome.json"
            asked.write_bytes(pickle.dumps(spec))
            try:
                code = self._wait([str(asked), str(told)], log)
            except subprocess.TimeoutExpired:
                reason = f"the family took more than {self.timeout:g} s"
                return FamilyOutcome(
                    **key._asdict(),
                    outcome=FamilyStatus.TIMEOUT,
                    reason=reason,
                    seconds=self.timeout,
                )
            if code == 0:
                return FamilyOutcome.read(json.loads(told.read_text(encoding="utf-8")))
        said = first_reason(log.read_text(encoding="utf-8", errors="replace"))
        message = f"{key.family}, {key.quantization}: {said}"
        raise LabError(message, remedy=f"its output is in {log}", exit_code=2 if code == 2 else 1)

    def _wait(self, arguments: Sequence[str], log: Path) -> int:
        command = [sys.executable, "-m", "crosslab.zoo.job", *arguments]
        with log.open("wb") as sink, self.lock:
            if self.stopped:
                raise LabError("the command was stopped")
            # A session of its own: what it starts is ended with it.
            process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
            self.running.add(process)
        try:
            return process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            raise
        finally:
            with self.lock:
                self.running.discard(process)

    def stop(self) -> None:
        """End all running processes, and start no further one."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                _end(process)


def outcomes_here(specs: Sequence[Spec], jobs: int, timeout: float) -> Iterator[FamilyOutcome]:
    """Run specs on this machine, several at a time; yield each outcome when it is ready.

    What runs is ended where the caller stops.

    Raises:
        LabError: a process itself failed; UserError's code is kept.
    """
    processes = FamilyProcesses(timeout)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(processes.run, spec) for spec in specs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            processes.stop()
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
