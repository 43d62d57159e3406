# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU time of programs that a function starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from crosslab.host.cost import Cost, cost_of, kept_cost

MIB = 1 << 20
# Memory of two processes at the same time, and pages of a mapped file.
PROGRAM = """
import mmap, subprocess, sys, time
size, file = int(sys.argv[1]), sys.argv[2]
with open(file, "rb") as stream:
    pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    sum(pages[::4096])
held = b"x" * size
if len(sys.argv) > 3:
    subprocess.run([sys.executable, "-c", sys.argv[3], sys.argv[1], file], check=True)
else:
    time.sleep(0.5)
"""


def test_memory_is_that_of_all_programs_without_mapped_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 256 * MIB)
    held = bytearray(b"x" * 300 * MIB)  # the caller's own, which does not count
    words = [sys.executable, "-c", PROGRAM, str(60 * MIB), str(file), PROGRAM]
    # A program that runs before, like a server that another test left on, does not count either.
    large = f"held = b'x' * {300 * MIB}; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", large], **pipes) as earlier:
        assert earlier.stdout
        earlier.stdout.readline()
        done, cost = cost_of(lambda: subprocess.run(words, check=True))
        earlier.communicate(b"\n")
    assert done.returncode == 0
    assert 120 * MIB < cost.memory < 250 * MIB
    assert cost.cpu > 0
    assert len(held) == 300 * MIB


def test_the_cost_of_a_build_is_that_of_its_first_run(tmp_path: Path) -> None:
    build = tmp_path / "build-1"
    assert kept_cost(build, Cost(5, 2.5)) == Cost(5, 2.5)
    assert kept_cost(build, Cost(0, 0.0)) == Cost(5, 2.5)
    assert kept_cost(tmp_path / "build-2", Cost(0, 0.0)) == Cost(0, 0.0)
