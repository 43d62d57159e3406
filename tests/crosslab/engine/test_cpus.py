# SPDX-License-Identifier: Apache-2.0
"""Which library and which CPUs the runner takes on chips whose cores differ."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import shared_builds, text_probe

from crosslab.host.toolchain import Toolchain

K3 = ",".join(["256h"] * 8 + ["1024h"] * 8)
GATED_K3 = ",".join(["256h"] * 8 + ["1024hg"] * 8)
K1 = ",".join(["256m"] * 4 + ["256"] * 4)
ALL, LARGE = list(range(16)), list(range(8, 16))


@pytest.fixture(scope="module")
def cpus_probe(sanitizers: Toolchain) -> Path:
    return text_probe.build_probe(sanitizers, shared_builds.CACHE, "cpus_probe")


def choose(probe: Path, cpus: str, libraries: str) -> subprocess.CompletedProcess[str]:
    command = [str(probe), cpus, libraries]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("cpus", "libraries", "library", "chosen"),
    [
        ("256,256", "128,256,512", 1, [0, 1]),
        ("1024", "128,256", 1, [0]),
        # Eight cores of 1024 bits compute more than sixteen of which 256 are used.
        (K3, "256,1024", 1, LARGE),
        (K3, "256", 0, ALL),
        ("256,256,256,256,512", "256,512", 0, [0, 1, 2, 3, 4]),
        # Two cores of 512 bits compute as much as four of 256.
        ("256,256,512,512", "256,512", 1, [2, 3]),
        ("256,256h", "256h", 0, [1]),
        ("256,256", "256,256h", 0, [0, 1]),
        ("0,0,256,256", "128,256", 1, [2, 3]),
        ("0,0", "0", 0, [0, 1]),
        # K1: eight CPUs, of which four have the matrix unit.
        (K1, "256,256m", 0, list(range(8))),
        (K1, "256m", 0, [0, 1, 2, 3]),
        ("256m,256m,256m,256m", "256,256m", 1, [0, 1, 2, 3]),
        (K1, "256", 0, list(range(8))),
        # The A100s of a K3 behind their gate, alone or not at all.
        (GATED_K3, "256,1024", 1, LARGE),
        (GATED_K3, "256", 0, list(range(8))),
        ("256,256,1024g", "256,1024", 1, [2]),
        ("256," * 5 + "1024g", "256,1024", 0, [0, 1, 2, 3, 4]),
        ("256m,256,256,256,256", "256,256m", 0, [0, 1, 2, 3, 4]),
        ("256,256", "256,256m", 0, [0, 1]),
    ],
)
def test_the_library_with_which_the_chip_computes_most(
    cpus_probe: Path, cpus: str, libraries: str, library: int, chosen: list[int]
) -> None:
    done = choose(cpus_probe, cpus, libraries)
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.splitlines()[0].split()] == [library, *chosen]


@pytest.mark.parametrize(
    ("cpus", "libraries", "message"),
    [
        ("128,256", "512", "registers of at least 512 bits, but this CPU has vector registers of"),
        ("0", "128,256", "registers of at least 128 bits, but this CPU has no vector registers"),
        ("256", "256h", "vectors of halves (Zvfh), but this CPU has none"),
    ],
)
def test_no_cpu_that_runs_a_library(
    cpus_probe: Path, cpus: str, libraries: str, message: str
) -> None:
    done = choose(cpus_probe, cpus, libraries)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_process_stays_on_the_cpus_that_were_chosen(cpus_probe: Path) -> None:
    done = choose(cpus_probe, "0", "0")
    here = len(os.sched_getaffinity(0))
    assert [int(word) for word in done.stdout.splitlines()[1].split()] == [here, 1, 1]


@pytest.mark.parametrize(
    ("open_cpus", "lines"),
    [
        # The gate lets nobody through, one CPU, or four and then one.
        (0, [" 0 1"]),
        (1, [" 0 1 2g", " 2"]),
        (4, [" 0 1 2g 3g 4g 5g", "refused 2"]),
    ],
)
def test_a_gate_opens_further_cpus_to_a_thread(
    cpus_probe: Path, tmp_path: Path, open_cpus: int, lines: list[str]
) -> None:
    gate = tmp_path / "set_ai_thread"
    command = [str(cpus_probe), "gate", str(gate), str(open_cpus)]
    # Without the file, the CPUs behind it do not exist.
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (0, [" 0 1"]), done.stderr
    gate.touch()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr
    # Each probe is a thread of its own, and opens the gate for itself.
    threads = gate.read_text(encoding="utf-8").splitlines()
    assert len(threads) == len(set(threads)) >= 1 + open_cpus
