# SPDX-License-Identifier: Apache-2.0
"""One run at a time in a checkout: the second waits, says for whom, and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import pathlib, sys
from sessions import checkout_lock
checkout_lock.acquire(pathlib.Path(sys.argv[1]))
print("mine", flush=True)
sys.stdin.readline()
"""


def start(folder: Path, **extra: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **extra}
    environment.pop("MLC_RVV_RUN", None) if not extra else None
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line(stream: object) -> str:
    return str(stream.readline()).strip()  # type: ignore[attr-defined]


def test_second_run_waits_and_says_for_whom(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line(first.stdout) == "mine"
    second = start(tmp_path)
    assert line(second.stderr) == f"waiting: {tmp_path} is in use by process {first.pid}"
    assert second.poll() is None
    first.communicate("\n")
    assert line(second.stdout) == "mine"
    second.communicate("\n")
    assert (first.returncode, second.returncode) == (0, 0)


def test_killed_run_leaves_the_folder_free(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line(first.stdout) == "mine"
    first.kill()
    first.communicate()
    second = start(tmp_path)
    out, err = second.communicate("\n")
    assert (out, err) == ("mine\n", "")


def test_a_run_started_by_the_holder_does_not_wait(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line(first.stdout) == "mine"
    inner = start(tmp_path, MLC_RVV_RUN=str(tmp_path))
    out, err = inner.communicate("\n", timeout=60)
    assert (out, err) == ("mine\n", "")
    first.communicate("\n")
