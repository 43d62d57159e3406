# SPDX-License-Identifier: Apache-2.0
"""The runner's checks in C++; ``ctest --preset asan`` in ``runner/`` runs them without Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support import shared_builds, text_probe

from crosslab.assemble.cmake import RUNNER
from crosslab.host.toolchain import Toolchain

TESTS = RUNNER / "cmake" / "tests.cmake"


def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_each_check_passes_and_ctest_has_it(sanitizers: Toolchain) -> None:
    program = text_probe.build_probe(sanitizers, shared_builds.CACHE, "unit")
    names = run(program).stdout.split()
    (line,) = (x for x in TESTS.read_text().splitlines() if x.startswith("foreach(name "))
    assert {*names} == {*line.removeprefix("foreach(name ").removesuffix(")").split()}
    done = {name: run(program, name) for name in names}
    assert {n: d.stderr for n, d in done.items() if d.returncode} == {}
