# SPDX-License-Identifier: Apache-2.0
"""File locks: a second process waits and says for whom; a killed holder frees the lock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.locks import locked

CODE = """
import pathlib, subprocess, sys
from groundwork.locks import locked
inheritable = sys.argv[2:] == ["inheritable"]
with locked(pathlib.Path(sys.argv[1]), "the store", inheritable=inheritable):
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.readline()
"""


def start(path: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(path), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_held(path: Path) -> bool:
    with locked(path, "the store", wait=False) as held:
        return not held


def line(stream: object) -> str:
    return str(stream.readline()).strip()  # type: ignore[attr-defined]


def test_second_process_waits_and_says_for_whom(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = start(path)
    assert line(first.stdout) and is_held(path)
    second = start(path)
    assert line(second.stderr) == f"waiting: the store is in use by process {first.pid}"
    assert second.poll() is None
    first.communicate("\n")
    assert line(second.stdout)
    second.communicate("\n")
    assert (first.returncode, second.returncode, is_held(path)) == (0, 0, False)


@pytest.mark.parametrize("options", [(), ("inheritable",)], ids=["holder", "inheritable"])
def test_a_killed_holder_frees_the_lock_unless_a_child_inherited_it(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = tmp_path / "lock"
    first = start(path, *options)
    child = int(line(first.stdout))
    # The child lives on: it reads from a pipe whose other end this test keeps open.
    keep = os.open(f"/proc/{child}/fd/0", os.O_RDWR)
    first.kill()
    first.wait()
    assert is_held(path) == bool(options)
    os.close(keep)
    first.communicate()
    with locked(path, "the store"):
        assert is_held(path)
    assert not is_held(path)
