# SPDX-License-Identifier: Apache-2.0
"""A process ends with its parent, whatever ends the parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import multiprocessing, os, signal, sys, time
from groundwork.interrupts import end_with_parent

def work(parent):
    end_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)

process = multiprocessing.get_context("fork").Process(target=work, args=(os.getpid(),))
process.start()
process.join()
"""
STRANGER = """
from groundwork.interrupts import end_with_parent
end_with_parent(1 << 30)
print("still here")
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie waits for somebody to collect it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_process_ends_when_a_signal_ends_its_parent(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.send_signal(number)
        assert parent.wait() == -number
        deadline = time.monotonic() + 30
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(child)


def test_process_ends_when_its_parent_ended_before() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRANGER], check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL and not done.stdout
