# SPDX-License-Identifier: Apache-2.0
"""A search that is ended by a signal leaves no worker and no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

WORK = Path(__file__).resolve().parents[1] / "data" / "smollm2.work.json"


@pytest.mark.skipif(sys.platform != "linux", reason="children are counted in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_a_search(number: signal.Signals, tmp_path: Path) -> None:
    """The pipe of its output ends when the last process that holds it does."""
    out = tmp_path / "fronts.json"
    words = ["--model", str(WORK), "--search", "--hardware", "systolic128x128"]
    run = subprocess.Popen(
        [sys.executable, "-m", "costmodel", *words, "--json", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        while len(children.read_text().split()) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        os.kill(run.pid, number)
        _, said = run.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    expected = (
        (130, "interrupted: run it again to go on\n") if number is signal.SIGINT else (-number, "")
    )
    assert (run.returncode, said) == expected
    assert list(tmp_path.iterdir()) == []
