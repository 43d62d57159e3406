# SPDX-License-Identifier: Apache-2.0
"""Subprocesses that check families, so that the zoo can end a hanging check."""

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
from dataclasses import dataclass, field, replace
from pathlib import Path

from crosslab.errors import LabError
from crosslab.zoo.job import Spec
from crosslab.zoo.outcome import FamilyOutcome, FamilyStatus, first_reason


@dataclass
class FamilyProcesses:
    """Runner of specs in separate processes.

    Attributes:
        timeout: seconds after which a process is killed.
        running: processes that run now; they are killed when the command stops.
    """

    timeout: float
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def run(self, spec: Spec) -> FamilyOutcome:
        """Check a family in a separate process; return the outcome, also that of a timeout.

        Raises:
            LabError: the process fails; a UserError keeps its exit code.
        """
        key, logs = spec.key, spec.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / f"zoo-{key.family}-{key.quantization}-{key.vlen}.log"
        with tempfile.TemporaryDirectory(prefix=".zoo-", dir=spec.cache) as folder:
            if spec.layers:
                # Gigabytes, which only this outcome needs.
                spec = replace(spec, models=Path(folder))
            request, response = Path(folder) / "spec.pickle", Path(folder) / "outcome.json"
            request.write_bytes(pickle.dumps(spec))
            try:
                code = self._wait([str(request), str(response)], log)
            except subprocess.TimeoutExpired:
                reason = f"the family took more than {self.timeout:g} s"
                return FamilyOutcome(
                    **key._asdict(),
                    outcome=FamilyStatus.TIMEOUT,
                    reason=reason,
                    seconds=self.timeout,
                )
            if code == 0:
                return FamilyOutcome.read(json.loads(response.read_text(encoding="utf-8")))
        summary = first_reason(log.read_text(encoding="utf-8", errors="replace"))
        message = f"{key.family}, {key.quantization}: {summary}"
        raise LabError(message, remedy=f"its output is in {log}", exit_code=2 if code == 2 else 1)

    def _wait(self, arguments: Sequence[str], log: Path) -> int:
        command = [sys.executable, "-m", "crosslab.zoo.job", *arguments]
        with log.open("wb") as sink, self.lock:
            if self.stopped:
                raise LabError("the command was stopped")
            # In a new session, so that its children are killed, too.
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
        """Kill all running processes, and start no more."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                _end(process)


def outcomes_here(specs: Sequence[Spec], jobs: int, timeout: float) -> Iterator[FamilyOutcome]:
    """Check specs on this machine, ``jobs`` at a time; yield each outcome when it is ready.

    If the caller stops, running processes are killed.

    Raises:
        LabError: a process fails; a UserError keeps its exit code.
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
